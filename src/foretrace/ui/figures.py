"""Figures of what is in the folder, for the list: step, platform, ranks and memory of each item, where known cheaply.

Documents and recordings say them in a small file. A trace has to be read for them: they are known once it was opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from foretrace.analysis.report import StepReport
from foretrace.errors import ForetraceError
from foretrace.record.folder import read_rank, read_world
from foretrace.report.formatting import bytes_, ms, printable
from foretrace.ui.documents import read_document
from foretrace.ui.folder import MAX_ITEMS, RECORDING, TRACE, Item

Key = tuple[Path, int]
"""A file or a folder, and when it changed last."""


@dataclass(frozen=True)
class Figures:
    """One line of the list; empty where nothing is known."""

    step: str = ""
    on: str = ""
    ranks: str = ""
    memory: str = ""


NOTHING = Figures()
_observed: dict[Key, Figures] = {}
"""Figures of traces that were opened."""


def changed_at(path: Path) -> int:
    """When a file, or anything in a folder, changed last."""
    return max((file.stat().st_mtime_ns for file in [path, *path.glob("*"), *path.glob("*/*")]), default=0)


def figures_of(path: Path, item: Item) -> Figures:
    """What is known of an item; nothing of a damaged one, which says so when it is opened."""
    try:
        key = path, changed_at(path)
        if item.kind == TRACE:
            return _observed.get(key, NOTHING)
        return _of_recording(*key) if item.kind == RECORDING else _of_document(*key)
    except (OSError, ForetraceError):
        return NOTHING


def remember(path: Path, report: StepReport) -> None:
    """Remember the figures of a measured step."""
    devices = {graph.device for graph in report.workings.graphs if graph.device} if report.workings else set[str]()
    memory = report.peak_memory_bytes
    if len(_observed) >= MAX_ITEMS:
        _observed.clear()
    _observed[path, changed_at(path)] = _figures(report.step_ms, ", ".join(sorted(devices)), report.world, memory)


@lru_cache(MAX_ITEMS)
def _of_recording(path: Path, changed: int) -> Figures:
    folders = sorted(path.glob("rank-*"), key=lambda folder: (len(folder.name), folder.name))
    if not folders:
        return NOTHING
    rank = read_rank(folders[0])
    times = rank.plain.synced_ms
    return _figures(median(times) if times else None, rank.device, read_world(path), rank.plain.peak_memory_bytes)


@lru_cache(MAX_ITEMS)
def _of_document(path: Path, changed: int) -> Figures:
    """The result of a prediction or a plan; the best of a sweep, the last of a what-if and of a scaling curve."""
    fields: Any = read_document(path)
    for name in ("best", "after"):
        fields = fields[name] if isinstance(fields.get(name), dict) else fields
    if isinstance(fields.get("scaling"), list) and fields["scaling"] and isinstance(fields["scaling"][-1], dict):
        fields = {**fields, **fields["scaling"][-1]}
    memory = fields.get("peak_memory_bytes", fields.get("memory_bytes"))
    return _figures(fields.get("step_ms"), fields.get("platform"), fields.get("world", fields.get("ranks")), memory)


def _figures(step_ms: object, on: object, ranks: object, memory: object) -> Figures:
    """Anyone may have edited such a file: what has not its field's type is left out."""
    return Figures(
        step=f"{ms(step_ms)} ms" if isinstance(step_ms, float | int) and 0 < step_ms < 1e12 else "",
        on=printable(on) if isinstance(on, str) else "",
        ranks=f"{ranks:,}" if type(ranks) is int and 0 < ranks < 1e9 else "",
        memory=bytes_(memory) if isinstance(memory, float | int) and 0 < memory < 1e18 else "",
    )
