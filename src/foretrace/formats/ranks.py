"""Ranks on one clock: by the wall time each trace gives, and by their collectives where that is off.

Ranks on one host share a clock. On several hosts clocks differ, and collectives tell by how much. No rank can end a
collective before the last rank has started it. So the ends on two ranks differ by no more than the kernels took.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Collective, Graph

TOGETHER = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
"""Collectives that all their ranks end together; a broadcast's root may leave early."""
EPOCH_FROM_NS = 10**17
SLACK_US = 10.0
"""What stamps of one clock may be off by."""
VIOLATIONS = 0.05
"""Share of collectives that may end impossibly early or late before we say that the clocks differ."""

Key = tuple[str, str, tuple[int, ...]]


class _Spans(NamedTuple):
    """When one rank's collectives of one kind and group started and ended."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]


def on_one_clock(graphs: list[Graph]) -> tuple[list[Graph], list[str]]:
    """The graphs with a common time zero, and what had to be assumed for it."""
    if len(graphs) < 2 or not all(_has_times(graph) for graph in graphs):
        return graphs, []
    known = all(graph.origin_ns > EPOCH_FROM_NS for graph in graphs)
    if known:
        zero = min(graph.origin_ns for graph in graphs)
        graphs = [graph.shifted((graph.origin_ns - zero) / 1e3) for graph in graphs]
    offsets, used, residual = _offsets([_collective_spans(graph) for graph in graphs], always=not known)
    if not used:
        return graphs, [] if known else ["the traces give no wall time and share no collectives: ranks start together"]
    moved = [graph.shifted(-offset) for graph, offset in zip(graphs, offsets)]
    for graph in moved:
        graph.origin_ns = moved[0].origin_ns
    spread = (max(offsets) - min(offsets)) / 1e3
    return moved, [
        f"clocks of the ranks differ by {spread:.3f} ms: moved onto one by {used:,} collectives, "
        f"whose ends then agree within {residual:.1f} us (median)"
    ]


def _has_times(graph: Graph) -> bool:
    return bool(len(graph.kernels) or np.isfinite(graph.ops.start).any())


def _collective_spans(graph: Graph) -> dict[Key, _Spans]:
    rows: dict[Key, list[Collective]] = defaultdict(list)
    for collective in graph.collectives:
        if collective.kind in TOGETHER and max(collective.kernel, collective.op) >= 0:
            ranks = collective.ranks or graph.groups.get(collective.group, ())
            rows[collective.kind, collective.group, ranks].append(collective)
    return {key: _Spans(*np.array(sorted(_span(graph, c) for c in rows[key])).T) for key in rows}


def _span(graph: Graph, collective: Collective) -> tuple[float, float]:
    table, row = (graph.kernels, collective.kernel) if collective.kernel >= 0 else (graph.ops, collective.op)
    return float(table.start[row]), float(table.end[row])


def _offsets(ranks: list[dict[Key, _Spans]], always: bool) -> tuple[list[float], int, float]:
    """How far each rank's clock is ahead of the first one's, from how many collectives, and what is left then.

    No collectives are used where the clocks already agree, unless ``always``.
    """
    offsets = [0.0] * len(ranks)
    used, residuals = 0, [np.zeros(0)]
    reached, waiting = {0}, [0]
    while waiting:
        here = waiting.pop()
        for there in sorted(set(range(len(ranks))) - reached):
            pairs = _common(ranks[here], ranks[there])
            if pairs is None:
                continue
            reached.add(there)
            waiting.append(there)
            later = pairs[1].end - pairs[0].end
            ahead = float(np.median(later))
            # Where moving the clock does not help, these are not parts of the same collectives after all.
            wrong, wrong_then = _impossible(*pairs, 0.0), _impossible(*pairs, ahead)
            helps = wrong > VIOLATIONS and wrong_then < wrong / 2
            offsets[there] = offsets[here] + (ahead if always or helps else 0.0)
            if always or helps:
                used += len(later)
                residuals.append(np.abs(later - ahead))
    every = np.concatenate(residuals)
    return offsets, used, float(np.median(every)) if len(every) else 0.0


def _common(one: dict[Key, _Spans], other: dict[Key, _Spans]) -> tuple[_Spans, _Spans] | None:
    """The collectives that two ranks did together, in order; None where there are none."""
    keys = [key for key in one if key in other and len(one[key].end) == len(other[key].end)]
    if not keys:
        return None
    mine, theirs = (np.concatenate([np.array(rank[key]) for key in keys], axis=1) for rank in (one, other))
    return _Spans(*mine), _Spans(*theirs)


def _impossible(one: _Spans, other: _Spans, ahead: float) -> float:
    """Share of collectives that a rank ends before the other starts, were the other's clock that far ahead."""
    too_late = other.start - ahead > one.end + SLACK_US
    too_early = other.end - ahead < one.start - SLACK_US
    return float(np.mean(too_late | too_early))


# --- was formats.nameless: Collectives of which a trace does not name the group: as the other ranks of the job name theirs.


def grouped_alike(graphs: list[Graph]) -> tuple[list[Graph], list[str]]:
    """The graphs with groups for all ranks, where some say which, and a word on the others.

    A profiler trace of an older PyTorch names no groups, its execution trace does. A rank that came without one is
    taken to exchange in the groups of a rank that calls the same kinds in the same order, if it is a member of them.

    >>> from foretrace.graph import Collective, OpTable
    >>> def rank(number, group):
    ...     reduce = Collective("all_reduce", group, 1024, kernel=-1, op=0)
    ...     return Graph(OpTable.of([]), rank=number, world=2, collectives=[reduce])
    >>> (_, other), notes = grouped_alike([rank(0, "tensor"), rank(1, "")])
    >>> other.collectives[0].group, notes
    ('tensor', ["rank 1's trace names no groups: they are taken to be those of rank 0"])
    """
    named = [graph for graph in graphs if graph.collectives and all(one.group for one in graph.collectives)]
    found, notes = list[Graph](), list[str]()
    for graph in graphs:
        nameless = not any(one.group or one.ranks for one in graph.collectives)
        like = next((other for other in named if _may_share(graph, other)), None) if nameless else None
        if like is None:
            found.append(graph)
            continue
        both = zip(graph.collectives, like.collectives)
        collectives = [replace(one, group=other.group, ranks=other.ranks) for one, other in both]
        found.append(replace(graph, collectives=collectives, groups={**like.groups, **graph.groups}))
        notes.append(f"rank {graph.rank}'s trace names no groups: they are taken to be those of rank {like.rank}")
    return found, notes


def _may_share(graph: Graph, other: Graph) -> bool:
    """Whether one rank calls what another does, in groups that it is a member of."""
    if not graph.collectives or [c.kind for c in graph.collectives] != [c.kind for c in other.collectives]:
        return False
    groups = (one.ranks or other.groups.get(one.group, ()) for one in other.collectives)
    return all(not ranks or graph.rank in ranks for ranks in groups)
