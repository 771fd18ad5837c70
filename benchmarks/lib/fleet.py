"""A fleet made of few recorded steps: edits of batch, sequence, dtype, width and ranks, with hours of a heavy tail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import foretrace as ft
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job
from foretrace.transforms.resize.batch_sequence import batch_size
from foretrace.whatif.changes import edit_step

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
LARGEST = 450
"""Ops of a step that is edited: larger ones take seconds each."""
SEQUENCES = (128, 256, 512, 1024, 2048)
TAIL = 1.2
"""Exponent of the Pareto distribution of hours: a tenth of the jobs has most of them."""


def recorded_steps(folders: Sequence[Path]) -> list[Path]:
    """Recordings in folders, those of the H200 among published traces included."""
    return sorted(path for folder in (SHARED / "traces/h200", *folders) for path in folder.glob("*/") if path.is_dir())


def varied_jobs(paths: Sequence[Path], count: int, seed: int = 0) -> Iterator[tuple[str, Job]]:
    """So many jobs, each a recorded step with random edits; edits that a step does not allow are left out."""
    draw = np.random.default_rng(seed)
    bases: dict[Path, Graph] = {}
    made = 0
    while made < count:
        path = paths[int(draw.integers(len(paths)))]
        changes, ranks = _drawn(draw)
        if path not in bases:
            (bases[path],) = ft.load(path).graphs
        graph = bases[path]
        if len(graph.ops) > LARGEST or _in_8_bits(graph):
            continue
        try:
            edited = _edited(graph, changes)
            sharded = bool(made % 3 == 0)  # FSDP gathers and scatters where data-parallel ranks reduce
            job = ft.parallelize(edited, data=ranks, sharded=sharded) if ranks > 1 else Job([edited], edited.source)
        except ForetraceError:
            continue
        made += 1
        yield f"{path.name} {' '.join(changes)} x{ranks}", job


def _in_8_bits(graph: Graph) -> bool:
    """Whether a step multiplies in float8, which an A100 can't."""
    return any(tensor.dtype.startswith("float8") for op in graph.ops for tensor in op.tensors)


def _drawn(draw: Any) -> tuple[list[str], int]:
    changes = []
    if draw.random() < 0.8:
        changes.append(f"batch*{draw.choice([0.25, 0.5, 2, 3, 4])}")
    if draw.random() < 0.3:
        changes.append("autocast=bf16")
    if draw.random() < 0.2:
        changes.append("seq*0.5")
    return changes, int(draw.choice([1, 1, 2, 4, 8]))


def _edited(graph: Graph, changes: Sequence[str]) -> Graph:
    for change in changes:
        name, star, factor = change.partition("*")
        if not star:
            graph = edit_step(graph, [change])
        elif name == "batch":
            old = batch_size(graph)
            if old is None:
                raise ForetraceError("no batch was found", "")
            graph = edit_step(graph, [f"batch={max(int(old * float(factor)), 1)}"])
        else:
            lengths = Counter(size for op in graph.ops for tensor in op.tensors[:1] for size in tensor.shape[1:2])
            old = max((size for size in lengths if size in SEQUENCES), key=lambda size: lengths[size], default=None)
            if old is None:
                raise ForetraceError("no sequence was found", "")
            graph = edit_step(graph, [f"seq={old // 2}/{old}"])
    return graph


def heavy_tail(count: int, seed: int = 0) -> list[float]:
    """GPU hours of so many jobs."""
    return [float(hours) for hours in (np.random.default_rng(seed).pareto(TAIL, count) + 1) * 10]
