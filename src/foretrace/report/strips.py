"""A timeline as strips: what each thread and each stream does, in so many columns of equal time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from foretrace.forecast.families import family
from foretrace.graph import PHASES, Graph
from foretrace.graph.tables import SYNC, Floats

COLUMNS = 1200
WAITING = "waiting for the device"
IDLE = ""


@dataclass(frozen=True)
class Piece:
    """Neighbouring columns in which a lane does the same kind of thing."""

    first: int
    columns: int
    what: str


@dataclass(frozen=True)
class Strip:
    """One lane."""

    name: str
    pieces: list[Piece]


def strips(graph: Graph, end: float) -> list[Strip]:
    """The lanes of a predicted step, threads first: threads by phase, streams by kernel family.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", phase="forward", start_us=0.0, end_us=5.0)])
    >>> strips(Graph(ops), end=10.0)[0].pieces
    [Piece(first=0, columns=600, what='forward')]
    """
    times = (np.arange(COLUMNS) + 0.5) * end / COLUMNS
    return [*_threads(graph, times), *_streams(graph, times)]


def _threads(graph: Graph, times: Floats) -> list[Strip]:
    ops, waits = graph.ops, graph.calls.kind == SYNC
    # The pause before a call is the call's own, so the thread that called last is the one that works.
    turn = ops.thread[np.maximum(np.searchsorted(ops.start, times, "right") - 1, 0)]
    found = []
    for thread in np.unique(ops.thread).tolist():
        rows = np.flatnonzero(ops.thread == thread)
        at = np.searchsorted(ops.start[rows], times, "right") - 1
        inside = (at >= 0) & ((turn == thread) | (times < ops.end[rows[at]])) & (times <= ops.end[rows].max())
        words = [PHASES[ops.phase[rows[place]]] if works else IDLE for place, works in zip(at.tolist(), inside)]
        for start, stop in zip(graph.calls.start[waits].tolist(), graph.calls.end[waits].tolist()):
            for column in np.flatnonzero((times >= start) & (times < stop)).tolist():
                words[column] = WAITING if words[column] else IDLE
        found.append(Strip(f"thread {thread}", _pieces(words)))
    return found


def _streams(graph: Graph, times: Floats) -> list[Strip]:
    kernels, ops = graph.kernels, graph.ops
    found = []
    for stream in np.unique(kernels.stream).tolist():
        rows = np.flatnonzero(kernels.stream == stream)
        rows = rows[np.argsort(kernels.start[rows], kind="stable")]
        at = np.searchsorted(kernels.start[rows], times, "right") - 1
        runs = (at >= 0) & (times < kernels.end[rows[at]])
        words = [
            family(kernels.names[kernels.name[row]], ops.names[ops.name[kernels.op[row]]]) if busy else IDLE
            for row, busy in zip(rows[at].tolist(), runs.tolist())
        ]
        found.append(Strip(f"stream {stream}", _pieces(words)))
    return found


def _pieces(words: list[str]) -> list[Piece]:
    pieces, first = [], 0
    for what, same in groupby(words):
        count = len(list(same))
        if what:
            pieces.append(Piece(first, count, what))
        first += count
    return pieces
