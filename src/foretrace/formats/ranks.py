"""Aligning the ranks of a job: one job, one clock, and process groups that some of the traces do not name.

Ranks on one host share a clock. On several hosts clocks differ, and collectives show by how much: no rank can end a
collective before the last rank has started it. So the ends on two ranks differ by no more than the kernels took.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.load import rank_in_name
from foretrace.graph import Collective, ForetraceError, Graph
from foretrace.graph.tables import median

ENDING_TOGETHER = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
"""Collectives that end at the same time on all their ranks; a broadcast's root may leave early."""
MIN_EPOCH_NS = 10**17
"""An origin after this (in 1973) is a wall-clock time; an earlier one counts from the machine's boot."""
MAX_CLOCK_DIFFERENCE_S = 60.0
"""No two hosts of a job have clocks further apart than this."""
CLOCK_ERROR_US = 10.0
"""Error of timestamps on one clock."""
SPARSE = 8
"""A number in the names of files is a rank if it is below so many times the number of files, else a process id."""
_NUMBERS = re.compile(r"\d+")
VIOLATIONS = 0.05
"""Share of collectives that may end impossibly early or late before the clocks count as different."""

Key = tuple[str, str, tuple[int, ...]]
"""Kind, group and ranks of a collective."""


class _Spans(NamedTuple):
    """Starts and ends of one rank's collectives of one kind and group."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]


def align_ranks(graphs: list[Graph]) -> tuple[list[Graph], list[str]]:
    """The ranks of a job on one clock, and notes on what was assumed; ranks of several jobs are refused."""
    _check_one_job(graphs)
    graphs, notes = infer_groups(graphs)
    graphs, clock_notes = align_clocks(graphs)
    return graphs, notes + clock_notes


def numbered_by_name(graphs: list[Graph]) -> None:
    """Number ranks that neither their traces nor the usual places in the names of their files tell apart.

    The rank is the number in which the names differ, or else their place in the order of names. Traces that exchange
    nothing need not be of one job, and stay as they are.

    >>> from foretrace.graph import Collective, OpTable
    >>> reduce = Collective("all_reduce", "", 1024, kernel=-1, op=0)
    >>> ranks = [Graph(OpTable.of([]), source=f"TP-{n}-DP-0.json", collectives=[reduce]) for n in (10, 9)]
    >>> numbered_by_name(ranks)
    >>> [graph.rank for graph in ranks]
    [10, 9]
    """
    numbered = len({graph.rank for graph in graphs}) == len(graphs)
    numbered &= all(graph.rank < SPARSE * len(graphs) or "rank" in graph.source.lower() for graph in graphs)
    if numbered or any(graph.world > 1 or not graph.collectives for graph in graphs):
        return
    numbers = [[int(number) for number in _NUMBERS.findall(graph.source)] for graph in graphs]
    columns = [column for column in zip(*numbers) if len(set(column)) == len(graphs) > max(column) / SPARSE]
    places = sorted(range(len(graphs)), key=lambda at: (numbers[at], graphs[at].source))
    alike = len({len(found) for found in numbers}) == 1
    for at, graph in enumerate(graphs):
        graph.rank = min(columns, key=max)[at] if columns and alike else places.index(at)
    graphs[0].notes.append("the traces do not say which rank they are of: ranks are numbered by the names of the files")


def check_ranks_known(graphs: list[Graph]) -> None:
    """Refuse traces that look like the same rank because neither they nor their names say which ranks they are of."""
    untold = [graph for graph in graphs if graph.world == 1 and rank_in_name(Path(graph.source), alone=True) is None]
    for one, other in pairwise(sorted(untold, key=lambda graph: graph.rank)):
        if one.rank == other.rank and one.source != other.source:
            raise ForetraceError(
                f"neither {one.source} nor {other.source} tells which rank it is of",
                "Give the traces of one job only, with files named after their ranks: rank-0…, rank-1….",
            )


def _check_one_job(graphs: list[Graph]) -> None:
    for one, other in pairwise(graphs):
        if one.rank == other.rank:
            what = f"{one.source} and {other.source} are both of rank {one.rank}"
        elif one.world != other.world:
            what = f"{one.source} is of a job of {one.world} ranks, {other.source} of one of {other.world}"
        else:
            continue
        raise ForetraceError(what, "Give the traces of one job only, one a rank.")
    if all(graph.origin_ns > MIN_EPOCH_NS for graph in graphs):
        _check_simultaneous(graphs)


def _check_simultaneous(graphs: list[Graph]) -> None:
    """Refuse traces taken minutes apart, or one after the other and of different steps."""
    windows = sorted((_window(graph), i) for i, graph in enumerate(graphs))
    for (earlier, i), (later, j) in pairwise(windows):
        one, other = graphs[i], graphs[j]
        gap_s = (later[0] - earlier[1]) / 1e9
        steps, other_steps = ({step.name for step in graph.steps} for graph in (one, other))
        if gap_s > MAX_CLOCK_DIFFERENCE_S or (gap_s > 0 and steps and other_steps and not steps & other_steps):
            raise ForetraceError(
                f"{other.source} starts {gap_s:,.1f} s after {one.source} ends", "Give the traces of one job only."
            )


def _window(graph: Graph) -> tuple[float, float]:
    """First start and last end, in nanoseconds since the epoch."""
    tables = [table for table in (graph.ops, graph.calls, graph.kernels) if len(table)]
    first, last = min(float(table.start.min()) for table in tables), max(float(table.end.max()) for table in tables)
    return graph.origin_ns + first * 1e3, graph.origin_ns + last * 1e3


def align_clocks(graphs: list[Graph]) -> tuple[list[Graph], list[str]]:
    """The graphs with a common time zero, and notes on what was assumed.

    The wall time of each trace counts; collectives correct it where it is impossible, and replace it where it is
    missing.
    """
    if len(graphs) < 2 or not all(graph.has_times for graph in graphs):
        return graphs, []
    one_file = len({graph.source for graph in graphs}) == 1
    known = one_file or all(graph.origin_ns > MIN_EPOCH_NS for graph in graphs)
    if known:
        zero = min(graph.origin_ns for graph in graphs)
        graphs = [graph.shifted((graph.origin_ns - zero) / 1e3) for graph in graphs]
    offsets, used, residual = _offsets([_collective_spans(graph) for graph in graphs], always=not known)
    if not used:
        return graphs, [] if known else ["the traces have no wall time and no common collectives: ranks start together"]
    moved = [graph.shifted(-offset) for graph, offset in zip(graphs, offsets)]
    for graph in moved:
        graph.origin_ns = moved[0].origin_ns
    spread = (max(offsets) - min(offsets)) / 1e3
    differ = f"clocks of the ranks differ by {spread:.3f} ms" if known else "the traces have no wall time"
    return moved, [
        f"{differ}: aligned by {used:,} collectives, whose ends then agree within {residual:.1f} us (median)"
    ]


def _collective_spans(graph: Graph) -> dict[Key, _Spans]:
    rows: dict[Key, list[Collective]] = defaultdict(list)
    for collective in graph.collectives:
        if collective.kind in ENDING_TOGETHER and max(collective.kernel, collective.op) >= 0:
            ranks = collective.ranks or graph.groups.get(collective.group, ())
            rows[collective.kind, collective.group, ranks].append(collective)
    return {key: _Spans(*np.array(sorted(_span(graph, c) for c in rows[key])).T) for key in rows}


def _span(graph: Graph, collective: Collective) -> tuple[float, float]:
    table, row = (graph.kernels, collective.kernel) if collective.kernel >= 0 else (graph.ops, collective.op)
    return float(table.start[row]), float(table.end[row])


def _offsets(ranks: list[dict[Key, _Spans]], always: bool) -> tuple[list[float], int, float]:
    """How far each clock is ahead of the first rank's, the number of collectives used, and the median residual.

    No collectives are used if the clocks already agree, unless ``always``.
    """
    offsets = [0.0] * len(ranks)
    used, residuals = 0, [np.zeros(0)]
    reached, pending = {0}, [0]
    while pending:
        here = pending.pop()
        for there in sorted(set(range(len(ranks))) - reached):
            pairs = _common(ranks[here], ranks[there])
            if pairs is None:
                continue
            reached.add(there)
            pending.append(there)
            later = pairs[1].end - pairs[0].end
            ahead = float(median(later))
            # If moving the clock does not help, these are not parts of the same collectives after all.
            wrong, wrong_then = _impossible(*pairs, 0.0), _impossible(*pairs, ahead)
            helps = wrong > VIOLATIONS and wrong_then < wrong / 2
            offsets[there] = offsets[here] + (ahead if always or helps else 0.0)
            if always or helps:
                used += len(later)
                residuals.append(np.abs(later - ahead))
    every = np.concatenate(residuals)
    return offsets, used, float(median(every)) if len(every) else 0.0


def _common(one: dict[Key, _Spans], other: dict[Key, _Spans]) -> tuple[_Spans, _Spans] | None:
    """The collectives that two ranks have in common, in order; None for none."""
    keys = [key for key in one if key in other and len(one[key].end) == len(other[key].end)]
    if not keys:
        return None
    mine, theirs = (np.concatenate([np.array(rank[key]) for key in keys], axis=1) for rank in (one, other))
    return _Spans(*mine), _Spans(*theirs)


def _impossible(one: _Spans, other: _Spans, ahead: float) -> float:
    """Share of collectives that a rank ends before the other starts, if the other's clock is that far ahead."""
    too_late = other.start - ahead > one.end + CLOCK_ERROR_US
    too_early = other.end - ahead < one.start - CLOCK_ERROR_US
    return float(np.mean(too_late | too_early))


def infer_groups(graphs: list[Graph]) -> tuple[list[Graph], list[str]]:
    """The graphs with process groups on all ranks if some name them, and notes on the others.

    A profiler trace of an older PyTorch names no groups, its execution trace does. A rank without an execution trace is
    assumed to communicate in the groups of a rank that calls the same collectives in the same order, if it is a member.

    >>> from foretrace.graph import Collective, OpTable
    >>> def rank(number, group):
    ...     reduce = Collective("all_reduce", group, 1024, kernel=-1, op=0)
    ...     return Graph(OpTable.of([]), rank=number, world=2, collectives=[reduce])
    >>> (_, other), notes = infer_groups([rank(0, "tensor"), rank(1, "")])
    >>> other.collectives[0].group, notes
    ('tensor', ['the trace of rank 1 names no process groups: those of rank 0 are assumed'])
    """
    named = [graph for graph in graphs if graph.collectives and all(one.group for one in graph.collectives)]
    found, notes = list[Graph](), list[str]()
    for graph in graphs:
        unnamed = not any(one.group or one.ranks for one in graph.collectives)
        like = next((other for other in named if _may_share(graph, other)), None) if unnamed else None
        if like is None:
            found.append(graph)
            continue
        both = zip(graph.collectives, like.collectives)
        collectives = [replace(one, group=other.group, ranks=other.ranks) for one, other in both]
        found.append(replace(graph, collectives=collectives, groups={**like.groups, **graph.groups}))
        notes.append(f"the trace of rank {graph.rank} names no process groups: those of rank {like.rank} are assumed")
    return found, notes


def _may_share(graph: Graph, other: Graph) -> bool:
    """Whether one rank calls the same collectives as another, in groups that it is a member of."""
    if not graph.collectives or [c.kind for c in graph.collectives] != [c.kind for c in other.collectives]:
        return False
    groups = (one.ranks or other.groups.get(one.group, ()) for one in other.collectives)
    return all(not ranks or graph.rank in ranks for ranks in groups)
