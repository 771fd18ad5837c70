"""The timeline chart: what each thread and each stream does when, in columns of small integers.

Times are in tenths of a microsecond; each start is stored as the difference from the one before. Every interval has a
name, a kind that gives it its colour, and, for a kernel, the op that launched it. These three are stored once in a
table; an interval holds its row there, and that of its details (`foretrace.report.pages.details`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretrace.analysis.breakdown import kernel_family
from foretrace.analysis.collectives import collective_times
from foretrace.analysis.report import Legs, Workings
from foretrace.graph import PHASES
from foretrace.graph.calls import dispatched
from foretrace.graph.tables import SYNC, Floats, Longs
from foretrace.report.formatting import short_name
from foretrace.report.pages.details import NO_RANK, PER_US, Details, RankDetails

DEVICE_WAIT, RANK_WAIT = "waits for the device", "waits for other ranks"
MAX_RANKS_DRAWN = 16
"""Ranks that one timeline shows: of more, the first, the last, and some between."""
PHASE_KINDS = {"forward": "forward", "backward": "backward", "optimizer": "optimizer step", "other": "other calls"}
"""Kinds of calls by phase; names that no kernel family has."""
MAX_NAME = 160
"""Characters of a name that a page carries: those of templates have thousands."""

Label = tuple[str, str, str]
"""Name, kind and op of an interval."""


@dataclass
class Lane:
    """The intervals of one thread or one stream."""

    rank: int
    label: str
    start: Floats
    end: Floats
    what: Longs
    """Rows in the table of labels."""
    about: Longs
    """Rows in the table of details."""

    def columns(self, origin: float) -> dict[str, Any]:
        """Small integers for JSON."""
        order = np.lexsort((self.end, self.start))
        start = np.rint((self.start[order] - origin) * PER_US).astype(np.int64)
        length = np.maximum(np.rint((self.end - self.start)[order] * PER_US), 1).astype(np.int64)
        return {
            "rank": self.rank,
            "label": self.label,
            "start": np.diff(start, prepend=0).tolist(),
            "length": length.tolist(),
            "what": self.what[order].tolist(),
            "about": self.about[order].tolist(),
        }


@dataclass
class _Labels:
    """Distinct labels, in the order in which they came up."""

    rows: dict[Label, int] = field(default_factory=dict)
    known: dict[Label, int] = field(default_factory=dict)
    """Rows by the full names: thousands of calls have few names."""

    def code(self, name: str, kind: str, op: str = "") -> int:
        label = (name, kind, op)
        if label not in self.known:
            shown = (short_name(name)[:MAX_NAME], kind, short_name(op)[:MAX_NAME])
            self.known[label] = self.rows.setdefault(shown, len(self.rows))
        return self.known[label]


def timelines(steps: Iterable[tuple[Workings | None, str]]) -> dict[str, Any] | None:
    """The timelines of some steps, each with its title, as one chart; None where no step has any workings."""
    drawn = [timeline(workings, title) for workings, title in steps if workings is not None]
    return {"kind": "timeline", "timelines": drawn} if drawn else None


def timeline(workings: Workings, title: str) -> dict[str, Any]:
    """The lanes of a step, rank by rank, threads first; and where the critical path runs.

    >>> from foretrace.analysis.measure import measure_step
    >>> from foretrace.graph import Graph, Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", phase="forward", start_us=3.0, end_us=5.0)])
    >>> drawn = timeline(measure_step(Graph(ops)).workings, "measured")
    >>> drawn["lanes"][0]["start"], drawn["lanes"][0]["length"], drawn["what"], drawn["path"]["lane"]
    ([0], [20], [('aten::mm', 'forward', '')], [0])
    """
    labels, details, lanes = _Labels(), Details(), list[Lane]()
    key: dict[tuple[int, bool, int], int] = {}
    waits = _waits(workings)
    shown = _shown(len(workings.graphs))
    for position in shown:
        known = RankDetails(workings, position, details)
        for thread, lane in _threads(known, labels):
            key[position, False, thread] = len(lanes)
            lanes.append(lane)
        for stream, lane in _streams(known, *waits[position], labels):
            key[position, True, stream] = len(lanes)
            lanes.append(lane)
    origin = min((float(lane.start.min()) for lane in lanes if len(lane.start)), default=0.0)
    end = max((float(lane.end.max()) for lane in lanes if len(lane.end)), default=origin)
    return {
        "title": title,
        "end_ms": (end - origin) / 1e3,
        "lanes": [lane.columns(origin) for lane in lanes],
        "what": list(labels.rows),
        "about": list(details.rows),
        "texts": list(details.texts),
        "path": _path(workings.legs(), key, origin),
        "ranks": [workings.graphs[position].rank for position in shown],
        "left_out": len(workings.graphs) - len(shown),
    }


def _shown(ranks: int) -> list[int]:
    return list(np.unique(np.linspace(0, ranks - 1, min(ranks, MAX_RANKS_DRAWN)).round().astype(int)).tolist())


def _threads(known: RankDetails, labels: _Labels) -> Iterator[tuple[int, Lane]]:
    """Dispatcher calls by phase, and over them the waits for the device."""
    graph, ops, calls = known.graph, known.graph.ops, known.graph.calls
    rows = dispatched(graph)
    rows = rows[np.isfinite(ops.start[rows])]
    waits = np.flatnonzero(calls.kind == SYNC)
    pairs = zip(ops.name[rows].tolist(), ops.phase[rows].tolist())
    what = np.fromiter(
        (labels.code(ops.names[name], PHASE_KINDS[PHASES[phase]]) for name, phase in pairs), np.int64, len(rows)
    )
    waiting = [labels.code(calls.names[name], DEVICE_WAIT) for name in calls.name[waits].tolist()]
    threads = np.append(ops.thread[rows], calls.thread[waits])
    for thread in threads[np.sort(np.unique(threads, return_index=True)[1])].tolist():  # as they come up
        called, waited = ops.thread[rows] == thread, calls.thread[waits] == thread
        start = np.append(ops.start[rows[called]], calls.start[waits[waited]])
        end = np.append(ops.end[rows[called]], calls.end[waits[waited]])
        codes = np.append(what[called], np.array(waiting, np.int64)[waited])
        about = np.append(known.of_calls(rows[called].tolist()), np.zeros(int(waited.sum()), np.int64))
        yield thread, Lane(graph.rank, f"thread {thread}", start, end, codes, about)


def _streams(known: RankDetails, wait: Floats, last: Longs, labels: _Labels) -> Iterator[tuple[int, Lane]]:
    """Kernels by family; a collective first waits for the last rank, then transfers."""
    graph = known.graph
    about = known.of_kernels(last)
    kernels, op_names = graph.kernels, [*graph.ops.names.items, ""]
    op = np.append(graph.ops.name, len(op_names) - 1)[kernels.op]
    names = [(kernels.names[name], op_names[one]) for name, one in zip(kernels.name.tolist(), op.tolist())]
    what = np.fromiter((labels.code(name, kernel_family(name, of), of) for name, of in names), np.int64, len(kernels))
    for stream in np.unique(kernels.stream).tolist():
        rows = np.flatnonzero(kernels.stream == stream)
        held = rows[wait[rows] > 0]
        waiting = np.array([labels.code(names[row][0], RANK_WAIT, names[row][1]) for row in held.tolist()], np.int64)
        start = np.append(kernels.start[rows] + wait[rows], kernels.start[held])
        end = np.append(kernels.end[rows], kernels.start[held] + wait[held])
        codes, details = np.append(what[rows], waiting), about[np.append(rows, held)]
        yield stream, Lane(graph.rank, f"stream {stream}", start, end, codes, details)


def waits_for_ranks(workings: Workings) -> list[Floats]:
    """How long each kernel of each rank waits for other ranks."""
    return [wait for wait, _ in _waits(workings)]


def _waits(workings: Workings) -> list[tuple[Floats, Longs]]:
    """How long each kernel of each rank waits for other ranks, and for which: the one that arrives last."""
    graphs = workings.graphs
    found = [(np.zeros(len(graph.kernels)), np.full(len(graph.kernels), NO_RANK, np.int64)) for graph in graphs]
    # Sends and receives are matched in a simulated job only: a trace does not name their other end.
    for group in (*collective_times(graphs)[0], *workings.collectives):
        last = np.array([graphs[member].rank for member in group.members])[group.last_member]
        for column, member in enumerate(group.members):
            there = group.kernel[:, column] >= 0
            rows, (wait, whom) = group.kernel[there, column], found[member]
            wait[rows] = np.maximum(group.wait[there, column], 0.0)
            whom[rows] = np.where(wait[rows] > 0, last[there], NO_RANK)
    return found


def _path(legs: Legs, key: dict[tuple[int, bool, int], int], origin: float) -> dict[str, list[int]]:
    """The path's legs by lane; those that follow each other on a lane are one."""
    where = zip(legs.rank.tolist(), legs.on_device.tolist(), legs.lane.tolist())
    lane = np.array([key.get(place, -1) for place in where], np.int64)
    start, end = (np.rint((times - origin) * PER_US).astype(np.int64) for times in (legs.start, legs.end))
    drawn = (lane >= 0) & (end > start)
    lane, start, end = lane[drawn], start[drawn], end[drawn]
    breaks = np.ones(len(lane), bool)
    # Where a leg does not go on from the one before it: on another lane, or after a pause.
    breaks[1:] = (np.diff(lane) != 0) | (start[1:] - end[:-1] > PER_US)
    first = np.flatnonzero(breaks)
    last = np.append(first[1:], len(lane)) - 1 if len(first) else first
    return {
        "lane": lane[first].tolist(),
        "start": np.diff(start[first], prepend=0).tolist(),
        "length": (end[last] - start[first]).tolist(),
    }
