"""A step as lanes for a page to draw: what each thread and each stream does when, in columns of small numbers.

Times are whole tenths of a microsecond; each start is stored as its distance from the one before. What is drawn has a
name, a kind that gives it its colour, and, for a kernel, the op that launched it. These three are kept once in a table,
and a piece knows its row there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretrace.forecast.collectives import meetings
from foretrace.forecast.families import family
from foretrace.forecast.workings import Legs, Workings
from foretrace.graph import PHASES, Graph
from foretrace.graph.calls import dispatched
from foretrace.graph.tables import SYNC, Floats, Ints, Longs
from foretrace.report.names import short

FOR_DEVICE, FOR_RANKS = "waits for the device", "waits for other ranks"
RANKS_DRAWN = 16
"""Ranks that one picture holds: of more, the first, the last, and some between."""
CALLS = {"forward": "forward", "backward": "backward", "optimizer": "optimizer step", "other": "other calls"}
"""Kinds of what threads do, apart from the families of kernels that are called alike."""
TENTHS = 10.0
"""Of a microsecond, the unit of the columns."""
LONGEST_NAME = 160

What = tuple[str, str, str]


@dataclass
class Lane:
    """What one thread or one stream does, in order."""

    rank: int
    label: str
    start: Floats
    end: Floats
    what: Longs
    """Rows in the table of names, kinds and ops."""

    def columns(self, origin: float) -> dict[str, Any]:
        """Small whole numbers for JSON."""
        order = np.lexsort((self.end, self.start))
        start = np.rint((self.start[order] - origin) * TENTHS).astype(np.int64)
        length = np.maximum(np.rint((self.end - self.start)[order] * TENTHS), 1).astype(np.int64)
        return {
            "rank": self.rank,
            "label": self.label,
            "start": np.diff(start, prepend=0).tolist(),
            "length": length.tolist(),
            "what": self.what[order].tolist(),
        }


@dataclass
class _Words:
    """Distinct names, kinds and ops, in the order in which they came up."""

    rows: dict[What, int] = field(default_factory=dict)
    known: dict[What, int] = field(default_factory=dict)
    """Rows of those as their files call them: thousands of calls have few names."""

    def code(self, name: str, kind: str, op: str = "") -> int:
        asked = (name, kind, op)
        if asked not in self.known:
            told = (short(name)[:LONGEST_NAME], kind, short(op)[:LONGEST_NAME])
            self.known[asked] = self.rows.setdefault(told, len(self.rows))
        return self.known[asked]


def timeline(workings: Workings, title: str) -> dict[str, Any]:
    """The lanes of a step, rank by rank, threads first; and where the critical path runs.

    >>> from foretrace.forecast.observe import observe
    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", phase="forward", start_us=3.0, end_us=5.0)])
    >>> drawn = timeline(observe(Graph(ops)).workings, "measured")
    >>> drawn["lanes"][0]["start"], drawn["lanes"][0]["length"], drawn["what"], drawn["path"]["lane"]
    ([0], [20], [('aten::mm', 'forward', '')], [0])
    """
    words, lanes = _Words(), list[Lane]()
    key: dict[tuple[int, bool, int], int] = {}
    waits = waits_for_ranks(workings)
    shown = _shown(len(workings.graphs))
    for position in shown:
        graph = workings.graphs[position]
        for thread, lane in _threads(graph, words):
            key[position, False, thread] = len(lanes)
            lanes.append(lane)
        for stream, lane in _streams(graph, waits[position], words):
            key[position, True, stream] = len(lanes)
            lanes.append(lane)
    origin = min((float(lane.start.min()) for lane in lanes if len(lane.start)), default=0.0)
    end = max((float(lane.end.max()) for lane in lanes if len(lane.end)), default=origin)
    return {
        "title": title,
        "end_ms": (end - origin) / 1e3,
        "lanes": [lane.columns(origin) for lane in lanes],
        "what": list(words.rows),
        "path": _path(workings.legs(), key, origin),
        "ranks": [workings.graphs[position].rank for position in shown],
        "left_out": len(workings.graphs) - len(shown),
    }


def _shown(ranks: int) -> list[int]:
    return list(np.unique(np.linspace(0, ranks - 1, min(ranks, RANKS_DRAWN)).round().astype(int)).tolist())


def _threads(graph: Graph, words: _Words) -> Iterator[tuple[int, Lane]]:
    """Dispatcher calls by phase, and over them the waits for the device."""
    ops, calls = graph.ops, graph.calls
    rows = dispatched(graph)
    rows = rows[np.isfinite(ops.start[rows])]
    waits = np.flatnonzero(calls.kind == SYNC)
    pairs = zip(ops.name[rows].tolist(), ops.phase[rows].tolist())
    what = np.fromiter(
        (words.code(ops.names[name], CALLS[PHASES[phase]]) for name, phase in pairs), np.int64, len(rows)
    )
    waiting = [words.code(calls.names[name], FOR_DEVICE) for name in calls.name[waits].tolist()]
    threads = np.append(ops.thread[rows], calls.thread[waits])
    for thread in threads[np.sort(np.unique(threads, return_index=True)[1])].tolist():  # as they come up
        ours, theirs = ops.thread[rows] == thread, calls.thread[waits] == thread
        start = np.append(ops.start[rows[ours]], calls.start[waits[theirs]])
        end = np.append(ops.end[rows[ours]], calls.end[waits[theirs]])
        codes = np.append(what[ours], np.array(waiting, np.int64)[theirs])
        yield thread, Lane(graph.rank, f"thread {thread}", start, end, codes)


def _streams(graph: Graph, wait: Floats, words: _Words) -> Iterator[tuple[int, Lane]]:
    """Kernels by family; a collective first waits for the last rank, then transfers."""
    kernels, op_names = graph.kernels, [*graph.ops.names.items, ""]
    op = np.append(graph.ops.name, len(op_names) - 1)[kernels.op]
    names = [(kernels.names[name], op_names[one]) for name, one in zip(kernels.name.tolist(), op.tolist())]
    what = np.fromiter((words.code(name, family(name, of), of) for name, of in names), np.int64, len(kernels))
    for stream in np.unique(kernels.stream).tolist():
        rows = np.flatnonzero(kernels.stream == stream)
        held = rows[wait[rows] > 0]
        waiting = np.array([words.code(names[row][0], FOR_RANKS, names[row][1]) for row in held.tolist()], np.int64)
        yield (
            stream,
            Lane(
                graph.rank,
                f"stream {stream}",
                np.append(kernels.start[rows] + wait[rows], kernels.start[held]),
                np.append(kernels.end[rows], kernels.start[held] + wait[held]),
                np.append(what[rows], waiting),
            ),
        )


def waits_for_ranks(workings: Workings) -> list[Floats]:
    """How long each kernel of each rank waits for other ranks."""
    waits = [np.zeros(len(graph.kernels)) for graph in workings.graphs]
    # Sends and receives meet in a simulated job only: a trace does not name their other end.
    for group in (*meetings(workings.graphs)[0], *workings.met):
        for column, member in enumerate(group.members):
            rows = group.kernel[:, column]
            waits[member][rows[rows >= 0]] = np.maximum(group.wait[rows >= 0, column], 0.0)
    return waits


def _path(legs: Legs, key: dict[tuple[int, bool, int], int], origin: float) -> dict[str, list[int]]:
    """The path's legs by lane; those that follow each other on a lane are one."""
    where = zip(legs.graph.tolist(), legs.on_device.tolist(), legs.lane.tolist())
    lane = np.array([key.get(place, -1) for place in where], np.int64)
    start, end = (np.rint((times - origin) * TENTHS).astype(np.int64) for times in (legs.start, legs.end))
    drawn = (lane >= 0) & (end > start)
    lane, start, end = lane[drawn], start[drawn], end[drawn]
    first = np.flatnonzero(_breaks(lane, start, end))
    last = np.append(first[1:], len(lane)) - 1 if len(first) else first
    return {
        "lane": lane[first].tolist(),
        "start": np.diff(start[first], prepend=0).tolist(),
        "length": (end[last] - start[first]).tolist(),
    }


def _breaks(lane: Longs, start: Longs, end: Longs) -> Ints:
    """Where a leg does not go on from the one before it: on another lane, or after a pause."""
    breaks = np.ones(len(lane), bool)
    breaks[1:] = (np.diff(lane) != 0) | (start[1:] - end[:-1] > TENTHS)
    return breaks
