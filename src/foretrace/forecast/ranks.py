"""What each rank of a simulated job does: how long, how much of it waiting, and for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from foretrace.forecast.collectives import Meetings
from foretrace.forecast.device import active_and_idle, overlap, waiting
from foretrace.forecast.intervals import total
from foretrace.forecast.observation import PerRank, Rows
from foretrace.graph import Graph
from foretrace.graph.tables import Floats

MOST_PAIRS = 100
"""Who waits for whom is told of so many pairs: a thousand ranks have a million."""


def rank_rows(graphs: list[Graph], host_us: Sequence[float], met: list[Meetings], alike: dict[int, int]) -> Rows:
    """A row for each graph, of whose host's own work it is told how long it takes. Times are milliseconds.

    ``bubble_ms`` is what of the job's device span a rank's device neither computes nor transfers: it stands still, or
    waits for others with nothing else to do.
    """
    span, waits = device_span(graphs), wait_ms(graphs, met)
    begin = min((step.start for graph in graphs for step in graph.steps), default=0.0)
    rows: Rows = []
    for position, (graph, host) in enumerate(zip(graphs, host_us)):
        talk = overlap(graph, position, met)
        active, idle = (us / 1e3 for us in active_and_idle(graph))
        (step,) = graph.steps
        rows.append({
            "rank": graph.rank,
            "stands_for": 1 + sum(other == graph.rank for other in alike.values()),
            "start_ms": (step.start - begin) / 1e3,
            "step_ms": step.ms,
            "device_span_ms": active + idle,
            "device_active_ms": active,
            "wait_ms": waits[graph.rank],
            "communication_ms": talk["communication_ms"],
            "exposed_communication_ms": talk["exposed_ms"],
            "bubble_ms": max(span - active + talk["exposed_wait_ms"], 0.0) if span else 0.0,
            "host_ms": float(host) / 1e3,
        })  # fmt: skip
    return rows


def device_span(graphs: list[Graph]) -> float:
    """Milliseconds from the first kernel's start to the last one's end, over all ranks."""
    busy = [graph.kernels for graph in graphs if len(graph.kernels)]
    return float(max(k.end.max() for k in busy) - min(k.start.min() for k in busy)) / 1e3 if busy else 0.0


def wait_ms(graphs: list[Graph], met: list[Meetings]) -> PerRank:
    """For each rank, how long it waits for others: in several collectives at a time, it waits once."""
    waits = {}
    for position, graph in enumerate(graphs):
        start, end, _ = waiting(position, met)
        waits[graph.rank] = total(start, end) / 1e3
    return waits


def who_waits(graphs: list[Graph], met: list[Meetings]) -> Rows:
    """Pairs of ranks of which one waits for the other, the longest first: rank, waits_for, ms, count."""
    us: dict[tuple[int, int], float] = defaultdict(float)
    seen: dict[tuple[int, int], list[tuple[Floats, Floats]]] = defaultdict(list)
    for group in met:
        ranks = [graphs[member].rank for member in group.members]
        for column, late in enumerate(ranks):
            rows = group.last_member == column
            start, wait = group.start[rows], group.wait[rows]
            for place in np.flatnonzero(wait.sum(axis=0) > 0).tolist():
                us[ranks[place], late] += float(wait[:, place].sum())
                seen[ranks[place], late].append((start[:, place], wait[:, place]))
    longest = sorted(us, key=lambda pair: (-us[pair], pair))[:MOST_PAIRS]
    rows_of = [_pair(*pair, seen[pair]) for pair in longest]
    return sorted(rows_of, key=lambda row: (-row["ms"], row["rank"], row["waits_for"]))


def _pair(rank: int, late: int, waits: Sequence[tuple[Floats, Floats]]) -> dict[str, Any]:
    """What a rank waits for another one; in several collectives at a time, it waits once."""
    start, wait = (np.concatenate(column) for column in zip(*waits))
    ms = total(start, start + wait) / 1e3
    return {"rank": rank, "waits_for": late, "ms": ms, "count": int(np.count_nonzero(wait))}
