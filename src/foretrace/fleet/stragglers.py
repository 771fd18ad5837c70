"""Stragglers over weeks, from span logs: how much slower a job is than if all its workers were equally fast.

Each step of a log is simulated with other durations: all spans of a kind as long as their mean (transfers: as their
median), and back again for a worker, a stage or a kind of span at a time. The method, and what the figures are called,
is that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.report import NotebookDocument
from foretrace.fleet.span_log import SENDS, Schedule, Spans, read_spans
from foretrace.graph.tables import Floats

SLOWEST = 0.03
"""Share of the workers that count as the slowest."""
KIND_OF = {kind: f"{kind.partition('-')[0]}-pp-comm" for kind in SENDS}


@dataclass(slots=True)
class WorkerRow:
    """A worker, and how much slower the job is for its spans alone."""

    rank: int
    dp_rank: int
    stage: int
    slowdown: float


@dataclass
class StragglerReport(NotebookDocument):
    """The cost of stragglers in a job. Slowdowns are how many times as long a step takes as the ideal one."""

    source: str
    workers: int
    steps: int
    step_s: float
    """Mean step time as logged."""
    explained_s: float
    """The same simulated without what the log does not explain, as pauses of hosts."""
    ideal_s: float
    """With all spans of a kind equally long."""
    slowdown: float
    """S: of the whole job."""
    by_optype: dict[str, float]
    """With the spans of one kind as they were, and all others ideal; the same below."""
    by_dp_rank: dict[int, float]
    by_stage: dict[int, float]
    by_worker: list[WorkerRow]
    """S_w, the slowest first."""
    slowest_workers: list[int]
    """Their ranks: 3 % of all."""
    without_workers: float
    """M_W: share of the slowdown that goes away if the slowest workers are as fast as others."""
    last_stage: int
    without_last_stage: float
    """M_S: the same for the last pipeline stage, which computes the loss."""
    by_step: dict[int, float] = field(default_factory=dict)
    """S of each step."""
    heat: list[list[float]] = field(default_factory=list, repr=False)
    """S_w of each worker (rows, in rank order) in each step; part of the JSON."""
    notes: list[str] = field(default_factory=list)


def find_stragglers(path: Path) -> StragglerReport:
    """What stragglers cost the job of a span log."""
    spans = read_spans(path)
    schedule = Schedule(spans, str(path))
    was, ideal = schedule.transfers, schedule.ideal
    measured = schedule.logged_s
    now, best = schedule.step_s(was), schedule.step_s(ideal)

    def alone(chosen: NDArray[np.bool_]) -> Floats:
        """Slowdown of each step with some spans as they were and all others ideal."""
        return schedule.step_s(np.where(chosen, was, ideal))

    def without(chosen: NDArray[np.bool_]) -> Floats:
        """Each step with some spans ideal and all others as they were."""
        return schedule.step_s(np.where(chosen, ideal, was))

    kinds = np.array([KIND_OF.get(key[0], key[0]) for key in schedule.keys])[:, None, None]
    stages = np.array([key[2] for key in schedule.keys])[:, None, None]
    ranks = schedule.ranks[None, None, :]
    by_kind = {str(kind): alone(kinds == kind) for kind in sorted(set(kinds.ravel().tolist()))}
    by_rank = {int(rank): alone(np.broadcast_to(ranks == rank, was.shape)) for rank in schedule.ranks}
    by_stage = {stage: alone(np.broadcast_to(stages == stage, was.shape)) for stage in range(schedule.stages)}
    workers = _workers(spans, by_rank, by_stage, best)
    slowest = slowest_of(workers)
    of_worst = np.zeros(was.shape, bool)
    for row in slowest:
        of_worst |= (stages == row.stage) & (ranks == row.dp_rank)
    last = np.broadcast_to(stages == schedule.stages - 1, was.shape)
    in_rank_order = sorted(workers, key=lambda row: row.rank)
    return StragglerReport(
        source=str(path),
        workers=len(workers),
        steps=len(schedule.steps),
        step_s=float(measured.mean()),
        explained_s=float(now.mean()),
        ideal_s=float(best.mean()),
        slowdown=float(now.mean() / best.mean()),
        by_optype=ranked_slowdowns(by_kind, best),
        by_dp_rank=ranked_slowdowns(by_rank, best),
        by_stage=ranked_slowdowns(by_stage, best),
        by_worker=workers,
        slowest_workers=[row.rank for row in slowest],
        without_workers=removed_share(now, without(of_worst), best),
        last_stage=schedule.stages - 1,
        without_last_stage=removed_share(now, without(last), best),
        by_step={int(step): float(ratio) for step, ratio in zip(schedule.steps, now / best)},
        heat=[
            np.minimum(by_rank[row.dp_rank] / best, by_stage[row.stage] / best).round(4).tolist()
            for row in in_rank_order
        ],
        notes=list(_notes(measured, now)),
    )


def ranked_slowdowns(seconds: Mapping[Any, Floats], best: Floats) -> dict[Any, float]:
    """Slowdown of the job against the ideal one, by setting, the largest first."""
    ratios = {name: float(each.mean() / best.mean()) for name, each in seconds.items()}
    return dict(sorted(ratios.items(), key=lambda item: -item[1]))


def removed_share(now: Floats, without: Floats, best: Floats) -> float:
    """Share of the slowdown that goes away in a setting."""
    lost = float(now.mean() - best.mean())
    return float(now.mean() - without.mean()) / lost if lost > 0 else 0.0


def slowest_of(workers: Sequence[WorkerRow]) -> Sequence[WorkerRow]:
    """The slowest of some workers that are sorted, the slowest first."""
    return workers[: math.ceil(SLOWEST * len(workers))]


def _workers(spans: Spans, by_rank: dict[int, Floats], by_stage: dict[int, Floats], best: Floats) -> list[WorkerRow]:
    """Workers by what their data-parallel rank and their stage both cost, the slowest first."""
    rows = sorted({*zip(spans.rank.tolist(), spans.dp_rank.tolist(), spans.stage.tolist())})
    found = [
        WorkerRow(rank, dp, stage, float(min(by_rank[dp].mean(), by_stage[stage].mean()) / best.mean()))
        for rank, dp, stage in rows
    ]
    return sorted(found, key=lambda row: (-row.slowdown, row.rank))


def _notes(measured: Floats, now: Floats) -> Iterator[str]:
    unexplained = 1 - float(now.mean() / measured.mean())
    if abs(unexplained) > 0.05:
        yield f"{100 * unexplained:.0f} % of the step are pauses that the log does not explain"
