"""Span logs: the timed spans of each worker in each step, which of them wait for which, and steps simulated from them.

A span log has a row for each timed span of a worker in a step: micro-batches forward and backward, what pipeline stages
send each other, collectives of data-parallel ranks, the optimizer. Spans wait for each other in the same way in every
step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import ForetraceError
from foretrace.files import read_error
from foretrace.fleet.store import arrow
from foretrace.graph.tables import Floats

FORWARD, BACKWARD = "forward-compute", "backward-compute"
PARAMS, GRADS, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LAYERNORM, EMBEDDING, CLIP = "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad"
GC, OPTIMIZER = "gc", "optimizer"
MAX_STAGES, MAX_SECONDS = 4096, 1e12
MAX_GAPS = 1 << 24
"""Spans that a log may lack, before it is no longer said which."""
SENDS = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
"""Spans between pipeline stages, and how far away the other stage is."""
TRANSFERS = (*SENDS, PARAMS, GRADS, SEPARATE, LAYERNORM, EMBEDDING, CLIP)
"""Kinds of spans whose ideal length is their median: some wait, and a mean would count that."""
DATA_PARALLEL = (PARAMS, GRADS, SEPARATE, CLIP)
"""Kinds of spans that wait for the same one of all data-parallel ranks."""
CLOCKS_S, NEGATIVE_S = 5e-5, 1e-2
"""What clocks of workers may be apart; and how far before its start a transfer may end and still be one."""

Key = tuple[str, int, int]
"""Kind of span, its number in the step, and its stage: the same in all steps and data-parallel ranks."""
Times = NDArray[np.float64]
"""For each key, step and data-parallel rank."""


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


COLUMNS = Spans._fields


def read_spans(path: Path) -> Spans:
    """A span log: Parquet or CSV with the columns of `Spans`, times in seconds."""
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
        self.place = {key: number for number, key in enumerate(self.keys)}
        self.start, self.duration = self._times(triples, source)
        self.before: dict[Key, list[Key]] = {key: [] for key in self.keys}
        """What each span waits for."""
        self.groups: dict[Key, tuple[Key, ...]] = {}
        """Spans that end together, for each of them."""
        self._pairs: dict[tuple[str, int, tuple[int, int]], list[Key]] = defaultdict(list)
        """Sends and receives that are each other's, by kind, number and stages."""
        for stage in range(self.stages):
            self._compute_and_sends(stage)
            self._collectives(stage)
        self._join()
        self.order = self._ordered(source)

    def _times(self, triples: list[Key], source: str) -> tuple[Times, Times]:
        """Start and duration of each span; refuses a log in which not every worker has all spans in every step."""
        index = (
            np.array([self.place[one] for one in triples]),
            np.searchsorted(self.steps, self.spans.step),
            np.searchsorted(self.ranks, self.spans.dp_rank),
        )
        shape = (len(self.keys), len(self.steps), len(self.ranks))
        advice = "Give steps that all workers logged as a whole."
        if math.prod(shape) > len(triples) + MAX_GAPS:
            raise ForetraceError(f"{source}: most steps lack most spans", advice)
        counts = np.zeros(shape, np.int64)
        np.add.at(counts, index, 1)
        if not (counts == 1).all():
            key = self.keys[int(np.argwhere(counts != 1)[0][0])]
            raise ForetraceError(
                f"{source}: not every step of every worker has one {key[0]} number {key[1]} on stage {key[2]}", advice
            )
        start, duration = np.zeros(shape), np.zeros(shape)
        start[index], duration[index] = self.spans.start_ts, self.spans.duration
        return start, duration

    def named(self, stage: int, *kinds: str) -> list[Key]:
        """Spans of these kinds on a stage, in the order of the first step of the first rank."""
        found = [key for key in self.keys if key[2] == stage and key[0] in kinds]
        return sorted(found, key=lambda key: (self._begin(key), key[1], key[0]))

    def _chain(self, keys: Sequence[Key], after: Sequence[Key] = ()) -> None:
        last = list(after)
        for key in keys:
            self.before[key] += last
            last = [key]

    def _begin(self, key: Key) -> float:
        return float(self.start[self.place[key], 0, 0])

    def _end(self, key: Key) -> float:
        return self._begin(key) + float(self.duration[self.place[key], 0, 0])

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
            if 0 <= self._chunk(micro_batch)[1] + away < self._chunks:  # else there is no stage to send to
                other = (stage + away) % self.stages
                pair = (stage, other) if not receives else (other, stage)
                self._pairs[kind.replace("recv", "send"), number, pair].append(key)
                number += 1

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
            took[rows] = end[rows] - _all_begun(group, self.start[rows])
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

    @property
    def logged_s(self) -> Floats:
        """Length of each step as logged."""
        end = self.start + self.duration
        return np.asarray(end.max(axis=(0, 2)) - self.start.min(axis=(0, 2)))

    def step_s(self, took: Times) -> Floats:
        """Length of each step if spans take so long."""
        begin, end = np.empty_like(took), np.empty_like(took)
        for group in self.order:
            rows = [self.place[key] for key in group]
            for key, row in zip(group, rows):
                before = [self.place[other] for other in self.before[key]]
                begin[row] = end[before].max(axis=0) if before else 0.0
            if group[0] in self.groups:
                end[rows] = _all_begun(group, begin[rows]) + took[rows]
            else:
                end[rows] = begin[rows] + took[rows]
        return np.asarray(end.max(axis=(0, 2)) - begin.min(axis=(0, 2)))


def _all_begun(group: tuple[Key, ...], begin: Times) -> Times:
    """When all spans have begun that end together; those of data-parallel ranks wait for all ranks."""
    last: Times = begin.max(axis=0)
    if group[0][0] in DATA_PARALLEL:
        last = np.broadcast_to(last.max(axis=1, keepdims=True), last.shape)
    return last
