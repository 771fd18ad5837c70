"""Stragglers over weeks, from span logs: how much slower a job is than if all its workers were equally fast.

A span log has a row for each timed span of a worker in a step: micro-batches forward and backward, what pipeline stages
send each other, collectives of data-parallel ranks, the optimizer. Spans wait for each other in the same way in every
step, so a step is simulated with other durations: all spans of a kind as long as their mean (transfers: as their
median), and back again for a worker, a stage or a kind of span at a time. The method, and what the figures are called,
is that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.report import NotebookDocument, plain
from foretrace.errors import ForetraceError
from foretrace.files import read_error
from foretrace.fleet.store import arrow
from foretrace.graph.tables import Floats

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "gmc")
FORWARD, BACKWARD = "forward-compute", "backward-compute"
PARAMS, GRADS, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LAYERNORM, EMBEDDING, CLIP = "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad"
GC, OPTIMIZER = "gc", "optimizer"
MAX_STAGES, MAX_SECONDS = 4096, 1e12
MAX_GAPS = 1 << 24
"""Spans that a log may lack, before it is no longer said which."""
SENDS = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
"""Spans between pipeline stages, and how far away the other stage is."""
PARTNER = {"forward-send": "forward-recv", "backward-send": "backward-recv"}
TRANSFERS = (*SENDS, PARAMS, GRADS, SEPARATE, LAYERNORM, EMBEDDING, CLIP)
"""Kinds of spans whose ideal length is their median: some wait, and a mean would count that."""
DATA_PARALLEL = (PARAMS, GRADS, SEPARATE, CLIP)
"""Kinds of spans that wait for the same one of all data-parallel ranks."""
CLOCKS_S, NEGATIVE_S = 5e-5, 1e-2
"""What clocks of workers may be apart; and how far before its start a transfer may end and still be one."""
SLOWEST = 0.03
"""Share of the workers that count as the slowest."""
KIND_OF = {kind: f"{kind.partition('-')[0]}-pp-comm" for kind in SENDS}

Key = tuple[str, int, int]
"""Kind of span, its number in the step, and its stage: the same in all steps and data-parallel ranks."""
Times = NDArray[np.float64]
"""For each key, step and data-parallel rank."""


@dataclass(slots=True)
class WorkerRow:
    """A worker, and how much slower the job is for its spans alone."""

    rank: int
    dp_rank: int
    stage: int
    slowdown: float


@dataclass
class StragglerReport(NotebookDocument):
    """What stragglers cost a job. Slowdowns are how many times as long a step takes as the ideal one."""

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

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``foretrace fleet stragglers --json``."""
        found: dict[str, Any] = {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}
        return found


class Spans(NamedTuple):
    """The columns of a span log."""

    dp_rank: NDArray[Any]
    stage: NDArray[Any]
    rank: NDArray[Any]
    step: NDArray[Any]
    optype: NDArray[Any]
    start_ts: Floats
    duration: Floats
    seq_id: NDArray[Any]
    mc: NDArray[Any]
    gmc: NDArray[Any]


def read_spans(path: Path) -> Spans:
    """A span log: Parquet or CSV with the columns of `COLUMNS`, times in seconds."""
    pa = arrow()
    try:
        if path.suffix == ".csv":
            import pyarrow.csv

            table = pyarrow.csv.read_csv(path)
        else:
            table = pa.parquet.ParquetFile(path).read()
        present = table.column_names
    except FileNotFoundError as error:
        raise read_error(path, error) from None
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        what = str(error).splitlines()[0][:120]
        raise ForetraceError(f"{path} can't be read ({what})", "Give a span log as Parquet or CSV.") from None
    missing = [name for name in COLUMNS if name not in present]
    if missing:
        raise ForetraceError(f"{path} is no span log: it has no column {missing[0]}", f"It needs {', '.join(COLUMNS)}.")
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        column = table.column(name)
        is_text, is_time = name == "optype", name in ("start_ts", "duration")
        try:
            if is_text:
                columns[name] = np.array(column.cast(pa.string()).to_pylist())
                continue
            columns[name] = np.asarray(column.to_numpy(), np.float64 if is_time else np.int64)
        except (ValueError, TypeError, pa.ArrowException):
            kind = "text" if is_text else "numbers"
            raise ForetraceError(f"{path}: the column {name} holds no {kind}", "Check the log.") from None
        if is_time and not (np.abs(columns[name]) < MAX_SECONDS).all():
            raise ForetraceError(f"{path}: the column {name} holds a time that is none", "Times are in seconds.")
    if not table.num_rows:
        raise ForetraceError(f"{path} holds no span", "Give a log of at least one step.")
    if not (columns["stage"].min() >= 0 and columns["stage"].max() < MAX_STAGES):
        raise ForetraceError(f"{path}: the column stage holds a number that is no stage's", "Stages count from 0.")
    return Spans(**columns)


class Schedule:
    """Which spans of a step wait for which, and the times of all steps and data-parallel ranks."""

    def __init__(self, spans: Spans, source: str = "the log") -> None:
        self.spans = spans
        self.steps = np.unique(spans.step)
        self.ranks = np.unique(spans.dp_rank)
        self.stages = int(spans.stage.max()) + 1
        triples = list(zip(spans.optype.tolist(), spans.seq_id.tolist(), spans.stage.tolist()))
        self.keys: list[Key] = sorted(set(triples))
        place = {key: number for number, key in enumerate(self.keys)}
        self.index = (
            np.array([place[one] for one in triples]),
            np.searchsorted(self.steps, spans.step),
            np.searchsorted(self.ranks, spans.dp_rank),
        )
        shape = (len(self.keys), len(self.steps), len(self.ranks))
        if math.prod(shape) > len(triples) + MAX_GAPS:
            raise ForetraceError(
                f"{source}: most steps lack most spans", "Give steps that all workers logged as a whole."
            )
        counts = np.zeros(shape, np.int64)
        np.add.at(counts, self.index, 1)
        if not (counts == 1).all():
            key = self.keys[int(np.argwhere(counts != 1)[0][0])]
            raise ForetraceError(
                f"{source}: not every step of every worker has one {key[0]} number {key[1]} on stage {key[2]}",
                "Give steps that all workers logged as a whole.",
            )
        self.start, self.duration = np.zeros(shape), np.zeros(shape)
        self.start[self.index], self.duration[self.index] = spans.start_ts, spans.duration
        self.before: dict[Key, list[Key]] = {key: [] for key in self.keys}
        self.groups: dict[Key, tuple[Key, ...]] = {}
        for stage in range(self.stages):
            self._compute_and_sends(stage)
            self._collectives(stage)
        self._join()
        self.place = place
        self.order = self._ordered(source)

    def named(self, stage: int, *kinds: str) -> list[Key]:
        """Spans of these kinds on a stage, in the order of the first step of the first rank."""
        found = [key for key in self.keys if key[2] == stage and key[0] in kinds]
        first = {key: self.start[number, 0, 0] for number, key in enumerate(self.keys)}
        return sorted(found, key=lambda key: (first[key], key[1], key[0]))

    def _chain(self, keys: Sequence[Key], after: Sequence[Key] = ()) -> None:
        last = list(after)
        for key in keys:
            self.before[key] += last
            last = [key]

    def _begin(self, key: Key) -> float:
        return float(self.start[self.keys.index(key), 0, 0])

    def _end(self, key: Key) -> float:
        number = self.keys.index(key)
        return float(self.start[number, 0, 0] + self.duration[number, 0, 0])

    def _chunk(self, key: Key) -> tuple[int, int]:
        """The model chunk of a span on its stage, and among those of all stages."""
        spans = self.spans
        here = (spans.optype == key[0]) & (spans.seq_id == key[1]) & (spans.stage == key[2])
        row = int(np.flatnonzero(here)[0])
        return int(spans.mc[row]), int(spans.gmc[row])

    @cached_property
    def _chunks(self) -> int:
        return (int(self.spans.mc.max()) + 1) * self.stages

    def _compute_and_sends(self, stage: int) -> None:
        """Micro-batches one after the other; what they are sent before them, what they send after them."""
        compute = self.named(stage, FORWARD, BACKWARD)
        self._chain(compute)
        for kind, away in SENDS.items():
            self._sends(stage, kind, away)
        backward = next((place for place, key in enumerate(compute) if key[0] == BACKWARD), 0)
        if backward >= 2:  # what the first backward is sent is asked for two micro-batches ahead
            for kind in ("backward-recv", "backward-send"):
                if (kind, 0, stage) in self.before:
                    self.before[kind, 0, stage].append(compute[backward - 2])

    def _sends(self, stage: int, kind: str, away: int) -> None:
        direction, receives = kind.partition("-")[0], kind.endswith("recv")
        compute = [key for key in self.named(stage, FORWARD, BACKWARD) if key[0].startswith(direction)]
        sends = self.named(stage, kind)
        self._chain(sends)
        if not sends or not compute:
            return
        if receives:  # what comes after the last micro-batch has begun is for none
            last = max(self._begin(key) for key in compute)
            used = [key for key in sends if self._begin(key) <= last + CLOCKS_S]
        else:
            first = min(self._end(key) for key in compute)
            used = [key for key in sends if self._end(key) >= first - CLOCKS_S]
        by_number = sorted(compute, key=lambda key: key[1])
        matched = by_number[len(by_number) - len(used) :] if receives else by_number[: len(used)]
        number = 0
        for key, micro_batch in zip(used, matched):
            if receives:
                self.before[micro_batch].append(key)
                earlier = (micro_batch[0], micro_batch[1] - 1, stage)
                self.before[key] += [earlier] if earlier in self.before else []
            else:
                self.before[key].append(micro_batch)
            if 0 <= self._chunk(micro_batch)[1] + away < self._chunks:  # else there is nobody to send to
                other = (stage + away) % self.stages
                pair = (stage, other) if not receives else (other, stage)
                self._pairs[kind.replace("recv", "send"), number, pair].append(key)
                number += 1

    @cached_property
    def _pairs(self) -> dict[tuple[str, int, tuple[int, int]], list[Key]]:
        """Sends and receives that are each other's, by kind, number and stages."""
        return defaultdict(list)

    def _collectives(self, stage: int) -> None:
        """Weights before the first micro-batch, gradients after the last, then the optimizer."""
        compute = self.named(stage, FORWARD, BACKWARD)
        data_parallel = self.named(stage, PARAMS, GRADS)
        self._chain(data_parallel)
        done: set[int] = set()
        for key in reversed(self.named(stage, PARAMS)):
            chunk = self._chunk(key)[0]
            inside = [one for one in compute if one[0] == FORWARD and self._chunk(one)[0] == chunk]
            if chunk not in done and inside:
                self.before[min(inside, key=self._begin)].append(key)
                done.add(chunk)
        grads, separate = sorted(self.named(stage, GRADS), key=lambda key: key[1]), self.named(stage, SEPARATE)
        if separate:
            self._overlapped_gradients(grads, compute)
        pause = self.named(stage, GC)
        last = [max(compute, key=self._end)] if compute else []
        self._chain(pause, last)
        after = [*(grads[-1:] if separate else []), *(pause or last)]
        ends = [
            *self.named(stage, LAYERNORM), *self.named(stage, EMBEDDING), *([] if separate else grads), *separate,
            *self.named(stage, CLIP), *self.named(stage, OPTIMIZER),
        ]  # fmt: skip
        self._chain(ends, after)

    def _overlapped_gradients(self, grads: Sequence[Key], compute: Sequence[Key]) -> None:
        done: set[int] = set()
        for key in grads:
            chunk = self._chunk(key)[0]
            inside = [one for one in compute if one[0] == BACKWARD and self._chunk(one)[0] == chunk]
            if chunk not in done and inside:
                self.before[key].append(max(inside, key=self._end))
                done.add(chunk)

    def _join(self) -> None:
        """Spans that end together: a send and its receive, and collectives of several stages."""
        for pair in self._pairs.values():
            self.groups |= dict.fromkeys(pair, tuple(pair))
        for key in self.keys:
            if key[0] in (*SENDS, PARAMS, GRADS, SEPARATE):
                self.groups.setdefault(key, (key,))
        for kind in (EMBEDDING, CLIP):
            group = tuple(key for key in self.keys if key[0] == kind)
            self.groups |= dict.fromkeys(group, group)

    def _ordered(self, source: str) -> list[tuple[Key, ...]]:
        """Spans, those that end together as one, each after all it waits for."""
        unit = {key: self.groups.get(key, (key,)) for key in self.keys}
        waits = {one: {unit[other] for key in one for other in self.before[key]} - {one} for one in set(unit.values())}
        order, ready = [], sorted(one for one, others in waits.items() if not others)
        after: dict[tuple[Key, ...], list[tuple[Key, ...]]] = defaultdict(list)
        for one, others in waits.items():
            for other in others:
                after[other].append(one)
        left = {one: len(others) for one, others in waits.items()}
        while ready:
            one = ready.pop()
            order.append(one)
            for other in after[one]:
                left[other] -= 1
                if not left[other]:
                    ready.append(other)
        if len(order) < len(waits):
            raise ForetraceError(f"{source}: its spans wait for each other in a circle", "Check kinds and numbers.")
        return order

    @cached_property
    def transfers(self) -> Times:
        """How long each span takes once all that end with it have begun; of others, all of their time."""
        took = self.duration.copy()
        end = self.start + self.duration
        for group in set(self.groups.values()):
            rows = [self.place[key] for key in group]
            began = self.start[rows].max(axis=0)
            if group[0][0] in DATA_PARALLEL:
                began = np.broadcast_to(began.max(axis=1, keepdims=True), began.shape)
            took[rows] = end[rows] - began
        took[took <= -NEGATIVE_S] = 0.0
        return took

    @cached_property
    def ideal(self) -> Times:
        """All spans of a kind equally long."""
        took = np.empty_like(self.transfers)
        kinds = np.array([key[0] for key in self.keys])
        for kind in sorted(set(kinds.tolist())):
            typical = np.median if kind in TRANSFERS else np.mean
            took[kinds == kind] = typical(self.transfers[kinds == kind])
        return took

    def step_s(self, took: Times) -> Floats:
        """Length of each step if spans take so long."""
        begin, end = np.empty_like(took), np.empty_like(took)
        for group in self.order:
            rows = [self.place[key] for key in group]
            for key, row in zip(group, rows):
                before = [self.place[other] for other in self.before[key]]
                begin[row] = end[before].max(axis=0) if before else 0.0
            if group[0] in self.groups:
                began = begin[rows].max(axis=0)
                if group[0][0] in DATA_PARALLEL:
                    began = np.broadcast_to(began.max(axis=1, keepdims=True), began.shape)
                end[rows] = began + took[rows]
            else:
                end[rows] = begin[rows] + took[rows]
        return np.asarray(end.max(axis=(0, 2)) - begin.min(axis=(0, 2)))


def find_stragglers(path: Path) -> StragglerReport:
    """What stragglers cost the job of a span log."""
    spans = read_spans(path)
    schedule = Schedule(spans, str(path))
    was, ideal = schedule.transfers, schedule.ideal
    measured = _logged(schedule)
    now, best = schedule.step_s(was), schedule.step_s(ideal)

    def alone(chosen: NDArray[np.bool_]) -> Floats:
        """Slowdown of each step with some spans as they were and all others ideal."""
        return schedule.step_s(np.where(chosen, was, ideal))

    kinds = np.array([KIND_OF.get(key[0], key[0]) for key in schedule.keys])[:, None, None]
    stages = np.array([key[2] for key in schedule.keys])[:, None, None]
    ranks = schedule.ranks[None, None, :]
    by_kind = {str(kind): alone(kinds == kind) for kind in sorted(set(kinds.ravel().tolist()))}
    by_rank = {int(rank): alone(np.broadcast_to(ranks == rank, was.shape)) for rank in schedule.ranks}
    by_stage = {stage: alone(np.broadcast_to(stages == stage, was.shape)) for stage in range(schedule.stages)}
    workers = _workers(spans, by_rank, by_stage, best)
    slowest = workers[: int(np.ceil(SLOWEST * len(workers)))]
    mine = np.zeros(was.shape, bool)
    for row in slowest:
        mine |= (stages == row.stage) & (ranks == row.dp_rank)
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
        by_optype=_ranked(by_kind, best),
        by_dp_rank=_ranked(by_rank, best),
        by_stage=_ranked(by_stage, best),
        by_worker=workers,
        slowest_workers=[row.rank for row in slowest],
        without_workers=_removed(schedule, mine, was, ideal, now, best),
        last_stage=schedule.stages - 1,
        without_last_stage=_removed(schedule, last, was, ideal, now, best),
        by_step={int(step): float(ratio) for step, ratio in zip(schedule.steps, now / best)},
        heat=[
            np.minimum(by_rank[row.dp_rank] / best, by_stage[row.stage] / best).round(4).tolist()
            for row in in_rank_order
        ],
        notes=list(_notes(measured, now)),
    )


def _logged(schedule: Schedule) -> Floats:
    """Length of each step as logged."""
    end = schedule.start + schedule.duration
    return np.asarray(end.max(axis=(0, 2)) - schedule.start.min(axis=(0, 2)))


def _ranked(seconds: dict[Any, Floats], best: Floats) -> dict[Any, float]:
    """Slowdowns, the largest first."""
    ratios = {name: float(each.mean() / best.mean()) for name, each in seconds.items()}
    return dict(sorted(ratios.items(), key=lambda item: -item[1]))


def _workers(spans: Spans, by_rank: dict[int, Floats], by_stage: dict[int, Floats], best: Floats) -> list[WorkerRow]:
    """Workers by what their data-parallel rank and their stage both cost, the slowest first."""
    rows = sorted({*zip(spans.rank.tolist(), spans.dp_rank.tolist(), spans.stage.tolist())})
    found = [
        WorkerRow(rank, dp, stage, float(min(by_rank[dp].mean(), by_stage[stage].mean()) / best.mean()))
        for rank, dp, stage in rows
    ]
    return sorted(found, key=lambda row: (-row.slowdown, row.rank))


def _removed(
    schedule: Schedule, chosen: NDArray[np.bool_], was: Times, ideal: Times, now: Floats, best: Floats
) -> float:
    """Share of the slowdown that goes away if some spans take what they ideally would."""
    without = schedule.step_s(np.where(chosen, ideal, was)).mean()
    lost = float(now.mean() - best.mean())
    return float(now.mean() - without) / lost if lost else 0.0


def _notes(measured: Floats, now: Floats) -> Iterator[str]:
    unexplained = 1 - float(now.mean() / measured.mean())
    if abs(unexplained) > 0.05:
        yield f"{100 * unexplained:.0f} % of the step are pauses that the log does not explain"
