"""Claim: a step recorded at A and edited to B makes the calls of the step recorded at B, with their shapes and types;
and its forecast is as near to the measured step at B as the forecast of B's own recording, within 5 % (geometric mean).

The steps are the examples' DLRM, BERT, GPT-2 and ResNet-50, recorded by `benchmarks.truth.edits_truth`; each edit is
made of the step as it was, and, where there is such an edit, back from the step that was changed. Kernel times are by
the shipped models on both sides. ``edited`` and ``direct`` are how far the forecasts are off from the median plain
step; ``apart`` is how far they are from each other, ``memory`` how far their peaks are. Where the host decides, both
are off by as much as the host of that hour was from the one that is shipped.

Not compared are tensors of no elements, the name by which a copy is looked at (both differ between versions),
and the looks with which autograd puts gradients in their places.

    python -m benchmarks.claims.accuracy.edits_recorded FOLDER        (the archives that edits_truth wrote)
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import foretrace as ft
from benchmarks.claims.accuracy.edits import geomean
from benchmarks.lib.table import H200, keep
from benchmarks.truth.edits_truth import CHANGED, FIRST
from foretrace.graph import ForetraceError, Graph
from foretrace.transforms.step import flatten
from foretrace.whatif.changes import edit_step

MEASURED_ON = H200
MOST = 0.05
ROOM, LOOK = "aten::empty", "aten::detach"
OTHERWISE = {"aten::_unsafe_view": "aten::view"}
"""A copy looked at in another shape, as ``reshape`` and as ``contiguous`` and ``view`` call it."""


def pairs(folder: Path) -> Iterator[tuple[str, str, Graph, Graph]]:
    """Model, edit, the step that is edited, the step that it should become."""
    for model, changed in CHANGED.items():
        known = {path.name: path for path in (folder / model).glob("*")}
        for one in changed:
            if FIRST not in known or one.name not in known:
                continue
            before, after = (ft.load(known[name]).graphs[0] for name in (FIRST, one.name))
            yield model, one.there, before, after
            if one.back:
                yield model, f"{one.there}, back by {one.back}", after, before


def calls_of(graph: Graph) -> list[tuple[Any, ...]]:
    """Each call of a step with the shapes and types of what it takes and makes."""
    calls = []
    for op in graph.ops:
        tensors = [(t.shape, t.dtype) for t in (*op.tensors, *op.produced)]
        own = op.name == LOOK and op.node.endswith("AccumulateGrad")
        if not own and (op.name != ROOM or any(t.numel for t in op.produced)):
            calls.append((OTHERWISE.get(op.name, op.name), *tensors))
    return calls


def unlike(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> str:
    """The first call that differs."""
    row = next((row for row, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    found, wanted = (str(calls[row][0]) if row < len(calls) else "nothing" for calls in (ours, theirs))
    return f"call {row}: {found}, not {wanted}" if found != wanted else f"call {row}: {found}, other shapes"


def row(model: str, edit: str, before: Graph, after: Graph) -> dict[str, Any]:
    """An edited step beside the recorded one."""
    truth = flatten(after)
    theirs = calls_of(truth)
    told: dict[str, Any] = {"model": model, "edit": edit, "calls": len(theirs)}
    try:
        step = edit_step(before, [edit.rpartition(" ")[2]])
    except ForetraceError as error:
        return {**told, "same": 0.0, "why": str(error)}
    ours = calls_of(step)
    same = sum(a == b for a, b in zip(ours, theirs)) / max(len(ours), len(theirs))
    there, direct = (ft.predict(graph, on="h200", kernels="model") for graph in (step, after))
    measured = median(after.unprofiled.synced_ms)
    return {
        **told,
        "same": same,
        "measured ms": measured,
        "edited": there.step_ms / measured - 1,
        "direct": direct.step_ms / measured - 1,
        "apart": there.step_ms / direct.step_ms - 1,
        "memory": there.peak_memory_bytes / direct.peak_memory_bytes - 1,
        "why": "" if same == 1 else unlike(ours, theirs),
    }


def unpacked(folder: Path, work: Path) -> None:
    """The recordings in all archives of a folder."""
    for archive in folder.glob("*.tar"):
        with tarfile.open(archive) as tar:
            tar.extractall(work / archive.stem, filter="data")


def main() -> int:
    rows = []
    with TemporaryDirectory() as work:
        unpacked(Path(sys.argv[1]), Path(work))
        rows += [row(*pair) for pair in pairs(Path(work))]
    total = {"model": "all", "edit": f"{len(rows)} edits", "calls": sum(row["calls"] for row in rows)}
    total["same"] = min(row["same"] for row in rows)
    told = [row for row in rows if "edited" in row]
    total |= {what: geomean([row[what] for row in told]) for what in ("edited", "direct", "apart", "memory")}
    keep("edits_recorded", [*rows, total])
    held = total["same"] == 1 and total["edited"] - total["direct"] <= MOST
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
