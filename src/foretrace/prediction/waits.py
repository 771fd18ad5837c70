"""Syncs and stream waits of a step: where its host waits for the device, and its streams for each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from foretrace.analysis.dependencies import WORK_WAIT, Streams, event_waits
from foretrace.analysis.dispatched import DispatchedCalls
from foretrace.graph import Constant, Graph, Op, Value
from foretrace.graph.operators import MAY_SYNCHRONIZE, SYNCHRONIZE, launches_nothing, waits_for_device
from foretrace.graph.tables import SYNC, Ints, Small, distinct

NO_SYNC, OWN_STREAM, ALL_STREAMS = range(3)
"""Which streams a call waits for before it returns."""

NO_STREAM = -2
"""In place of the number of a stream."""


@dataclass(frozen=True)
class Waits:
    """Waits of a step beyond the order of lanes."""

    host: Small
    """For each call, which streams the host waits for before the call returns."""
    streams: Ints
    """Pairs of calls: device work of the second starts after that of the first is done."""
    works: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    """Pairs of calls: before the second one, something waits for the collective that the first one issued."""


def step_waits(graph: Graph, step: DispatchedCalls) -> Waits:
    """The syncs and stream waits of a step.

    The graph is the step as it was read: it may hold calls that steer streams.
    """
    calls = step.calls
    host = np.full(len(calls.ops), NO_SYNC, np.int8)
    may_wait = calls.ops.names.matching(MAY_SYNCHRONIZE.__contains__)
    for row in np.flatnonzero(may_wait[calls.ops.name]).tolist():
        if waits_for_device(calls.ops[row]):
            host[row] = OWN_STREAM
    host[calls.calls.op[(calls.calls.kind == SYNC) & (calls.calls.op >= 0)]] = OWN_STREAM
    side = [(int(np.searchsorted(step.rows, row)), graph.ops[row]) for row in _side_rows(graph)]
    for place, op in side:
        # A sync between two calls holds the host at the end of the first of them.
        if op.name in SYNCHRONIZE and 0 < place < len(host):
            host[place - 1] = ALL_STREAMS
    works = list(_works(side, calls))
    stream = _working_streams(step) if side else step.stream
    held = _held_streams(works, stream, calls)
    pairs = {*_events(side, stream), *_seen(calls), *_collectives(calls), *held}
    awaited = {(issued, place) for issued, place, _ in works}
    return Waits(host, *(np.array(sorted(some), np.int32).reshape(-1, 2) for some in (pairs, awaited)))


def _side_rows(graph: Graph) -> list[int]:
    steers = graph.ops.names.matching(lambda name: name.startswith("cuda::") or name == WORK_WAIT)
    return np.flatnonzero(steers[graph.ops.name]).tolist() if len(graph.ops) else []


def _working_streams(step: DispatchedCalls) -> Ints:
    """The stream of each call that gives one something to do; none of the others, which no stream holds up."""
    members = {c.op for c in step.calls.collectives}
    silent = [row not in members and launches_nothing(op, "cpu") for row, op in enumerate(step.calls.ops)]
    return np.where(silent, NO_STREAM, step.stream).astype(np.int32)


def _events(side: list[tuple[int, Op]], stream: Ints) -> Iterator[tuple[int, int]]:
    """A stream that waits for an event runs its next call's work after that of the last call before the event."""
    recorded: dict[str, tuple[int, int]] = {}
    for place, op in side:
        named = {value.kind: value.value for value in op.args if isinstance(value, Constant)}
        if op.name == "cuda::event_record":
            recorded[named["event"]] = (place, int(named["stream"]))
        elif op.name == "cuda::stream_wait_event" and named["event"] in recorded:
            at, its_stream = recorded[named["event"]]
            before = np.flatnonzero(stream[:at] == its_stream)
            after = np.flatnonzero(stream[place:] == int(named["stream"]))
            if len(before) and len(after):
                yield int(before[-1]), int(after[0]) + place


def _works(side: list[tuple[int, Op]], calls: Graph) -> Iterator[tuple[int, int, int]]:
    """Collectives that are waited for, the call that comes after that wait, and the stream that waits."""
    waits = [(place, op) for place, op in side if op.name == WORK_WAIT and place < len(calls.ops)]
    if not waits:
        return
    issued: dict[str, int] = {}
    for call in sorted({c.op for c in calls.collectives if c.op >= 0}):
        issued |= dict.fromkeys(_named_works(calls.ops[call].outputs), call)
    for place, op in waits:
        for work in _named_works(op.args):
            if issued.get(work, place) < place:
                yield issued[work], place, op.stream


def _held_streams(works: list[tuple[int, int, int]], stream: Ints, calls: Graph) -> Iterator[tuple[int, int]]:
    """A wait holds the work that follows on its stream, and not the next collective."""
    members = {c.op for c in calls.collectives}
    for issued, place, held in works:
        later = (np.flatnonzero(stream[place:] == held) + place).tolist()
        computes = next((call for call in later if call not in members), None)
        if computes is not None:
            yield issued, computes


def _named_works(values: Iterable[Value]) -> list[str]:
    return [value.value for value in values if isinstance(value, Constant) and value.kind == "work"]


def _seen(calls: Graph) -> Iterator[tuple[int, int]]:
    """Waits between streams that a profile shows by its times."""
    if len(distinct(calls.kernels.stream)) < 2:
        return
    op = calls.kernels.op
    for before, after in op[event_waits(calls, Streams(calls))].tolist():
        if 0 <= before < after:
            yield before, after


def _collectives(calls: Graph) -> Iterator[tuple[int, int]]:
    """A collective starts after the work before it, and what touches its data next starts after it."""
    members = {c.op for c in calls.collectives if c.op >= 0}
    if not members:
        return
    pending: dict[int, int] = {}
    before = -1
    for place, op in enumerate(calls.ops):
        if place not in members and launches_nothing(op, "cpu"):  # on whatever device
            continue  # a look at what is on its way need not wait for it
        touched = {t.storage for t in (*op.tensors, *op.produced) if t.storage >= 0}
        yield from {(pending.pop(storage), place) for storage in touched & pending.keys()}
        if place in members:
            if before >= 0:
                yield before, place
            pending |= dict.fromkeys(touched, place)
        else:
            before = place
