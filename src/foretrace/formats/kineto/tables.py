"""Op, runtime call and kernel tables from the columns of a profiler trace: which op called and launched what."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.call_tree import activities, call_order, innermost, kinds_by_name, parents, phases_by_time
from foretrace.formats.kineto.arguments import Arguments
from foretrace.formats.kineto.columns import MODULE_PREFIX, Columns, Rows
from foretrace.graph import CallTable, KernelTable, Names, OpTable
from foretrace.graph.operators import communicates
from foretrace.graph.tables import (
    CALL,
    COLLECTIVE,
    COMPUTE,
    FUNCTION,
    LAUNCH,
    MODULE,
    NODE,
    OTHER_CALL,
    RECORD_EVENT,
    STREAM_BITS,
    SYNC,
    WAIT_EVENT,
    ActivityTable,
    Floats,
    Ints,
    Longs,
    distinct,
)  # fmt: skip

_CALL_KINDS = (
    (LAUNCH, re.compile(r"(cuda|cu|hip)(Ext|Drv)?(Module)?(Launch|Memcpy|Memset|GraphLaunch)")),
    (SYNC, re.compile(r"\w*Synchronize|synchronize|\w*QueueFinish|(ur|pi)Events?Wait$")),
    (WAIT_EVENT, re.compile(r"\w*StreamWaitEvent")),
    (RECORD_EVENT, re.compile(r"\w*EventRecord")),
)
_READS_EVENTS = re.compile(r"(cuda|cu|hip)EventElapsedTime")
"""Calls that take the time between two events, which both have to be over: whoever calls them waits first."""
_ASKS = re.compile(r"(cuda|cu|hip)(Event|Stream)Query")
"""Calls that ask whether the device is done, and do not wait for it: a loop of them waits."""
WAIT_US, SEEN_US, EARLY_US, ASKED = 100.0, 150.0, 10.0, 10
"""The shortest wait that is looked for, how long after the kernel that it was for it may end, and how long before (the
clocks of host and device differ); and how many times a loop asks at least."""
NANOSECONDS_FROM = 1e17
"""Timestamps are microseconds, in some builds of the profiler nanoseconds: no epoch in microseconds is this late."""
SAME_THREAD = 0.9
"""Share of a thread's launches that must lie inside another thread's ops for the two to count as one thread."""


class Clock(NamedTuple):
    """The earliest timestamp of a trace, and microseconds per unit of its timestamps."""

    first: Any
    unit: float

    @classmethod
    def of(cls, columns: Columns) -> Clock:
        """The clock of a trace."""
        first = min(rows["ts"].min() for rows in (columns.ops, columns.calls, columns.device) if rows.count)
        return cls(first, 1e-3) if first > NANOSECONDS_FROM else cls(np.floor(first), 1.0)

    @property
    def first_ns(self) -> int:
        """The earliest timestamp in nanoseconds."""
        return int(self.first) if self.unit < 1 else int(self.first) * 1000

    def since(self, timestamps: NDArray[Any]) -> Floats:
        """Microseconds since the earliest timestamp."""
        return np.asarray((timestamps - self.first) * self.unit, np.float64)

    def spans(self, rows: Rows, number: str) -> tuple[Floats, Floats, NDArray[np.intp]]:
        """Starts and ends of rows in call order, and that order; ``number`` is the column that numbers calls."""
        start = self.since(rows["ts"])
        end = start + rows["dur"].astype(np.float64) * self.unit
        order = call_order(start, end, rows[number])
        return start[order], end[order], order


def op_table(columns: Columns, clock: Clock) -> OpTable:
    """The table of dispatcher calls, autograd nodes, annotations and modules, with parents, phases and modules."""
    rows = columns.ops
    start, end, order = clock.spans(rows, "external")
    names = Names([str(name) for name in columns.op_names])
    thread = rows["thread"][order].astype(np.int32)
    ops = OpTable(
        name=rows["name"][order].astype(np.int32), start=start, end=end, thread=thread,
        parent=parents(thread, start, end), phase=np.zeros(0, np.int8), kind=rows["kind"][order].astype(np.int8),
        module=np.zeros(0, np.int32), names=names, modules=Names([""]), source=order.astype(np.int32),
        detail=Arguments(names, rows["name"], rows["signature"], columns.signatures), record=rows["record"][order],
    )  # fmt: skip
    if len(ops):
        ops.kind = kinds_by_name(ops)
        ops.phase = phases_by_time(ops)
    ops.module = _modules(ops)
    return ops


def _modules(ops: OpTable) -> Ints:
    """The innermost module around each row."""
    is_module = ops.kind == MODULE
    if not is_module.any():
        return np.zeros(len(ops), np.int32)
    code = np.array([ops.modules.code(name.removeprefix(MODULE_PREFIX)) for name in ops.names.items], np.int32)
    around = np.arange(len(ops))
    pending = np.flatnonzero(~is_module)
    while len(pending):
        around[pending] = ops.parent[around[pending]]
        pending = pending[(around[pending] >= 0) & ~is_module[around[pending]]]
    return np.where(around >= 0, code[ops.name[around]], 0).astype(np.int32)


def call_table(columns: Columns, ops: OpTable, clock: Clock) -> CallTable:
    """The table of calls into the device runtime, each with the op that made it."""
    rows = columns.calls
    start, end, order = clock.spans(rows, "correlation")
    names = Names([str(name) for name in columns.call_names])
    name = rows["name"][order].astype(np.int32)
    kinds = np.array([_call_kind(text) for text in names.items], np.int8)
    calls = CallTable(
        name=name, start=start, end=end, thread=rows["thread"][order].astype(np.int32),
        kind=kinds[name] if len(name) else np.zeros(0, np.int8), op=np.full(len(name), -1, np.int32),
        correlation=rows["correlation"][order], names=names,
    )  # fmt: skip
    calls.thread = _threads_of_calls(calls, ops)
    calls.op = innermost(ops.thread, ops.start, ops.end, ops.parent, calls.thread, calls.start)
    if ids_name_ops(columns):
        unknown = calls.op < 0
        calls.op[unknown] = _by_external_id(columns, ops, rows["external"][order][unknown], calls.start[unknown])
    if calls.names.matching(lambda text: bool(_READS_EVENTS.match(text) or _ASKS.match(text))).any():
        device = columns.device
        end = clock.since(device["ts"]) + device["dur"].astype(np.float64) * clock.unit
        return _with_unrecorded_waits(calls, ops, end)
    return calls


def _with_unrecorded_waits(calls: CallTable, ops: OpTable, kernel_end: Floats) -> CallTable:
    """The calls, and a sync for each wait for the device that is seen from what follows or fills it.

    Profilers leave out waits for events (Kineto for years did), which come before the time between two events is taken
    (DistributedDataParallel does, in every step), and a loop that asks whether an event is over is many calls. Such a
    pause ends as a kernel does.
    """
    reads = calls.names.matching(lambda text: bool(_READS_EVENTS.match(text)))[calls.name]
    if calls.names.matching(lambda text: "EventSynchronize" in text).any():
        reads[:] = False
    asks = calls.names.matching(lambda text: bool(_ASKS.match(text)))[calls.name]
    kernel_end = np.sort(kernel_end)
    found: list[tuple[float, float, int]] = []
    launching = distinct(calls.thread[calls.kind == LAUNCH])  # others are watchdogs
    for thread in launching[np.isin(launching, calls.thread[reads | asks])].tolist():
        mine = calls.thread == thread
        reading, asking = np.flatnonzero(mine & reads), np.flatnonzero(mine & asks)
        if not len(reading) and not len(_asked(calls, asking, np.zeros(0))[0]):
            continue
        called = (ops.thread == thread) & ((ops.kind == CALL) | (ops.kind == NODE))
        borders = [ops.start[called], ops.end[called], calls.start[mine & ~asks], calls.end[mine & ~asks]]
        busy = np.sort(np.concatenate(borders))
        first, last = _asked(calls, asking, busy)
        row, end = np.append(reading, first), np.append(calls.start[reading], calls.end[last])
        begin = np.append(_last_before(busy, calls.start[reading]), calls.start[first])
        seen = _last_before(kernel_end, end + EARLY_US)
        waits = (end - begin >= WAIT_US) & (seen >= np.maximum(end - SEEN_US, begin))
        found += zip(begin[waits].tolist(), end[waits].tolist(), row[waits].tolist())
    return _with_syncs(calls, found) if found else calls


def _last_before(times: Floats, end: Floats) -> Floats:
    """The last of some sorted times before each of others; minus infinity for none."""
    return np.asarray(np.append(times, -np.inf)[np.searchsorted(times, end) - 1])


def _asked(calls: CallTable, asks: Longs, others: Floats) -> tuple[Longs, Longs]:
    """The first and the last call of each loop that does nothing but ask the device, of the calls of one thread that
    ask it; ``others`` are the borders of what else the thread does.
    """
    if len(asks) < ASKED:
        return asks[:0], asks[:0]
    apart = calls.start[asks[1:]] - calls.end[asks[:-1]] > WAIT_US
    apart |= np.diff(np.searchsorted(others, calls.start[asks], "right")) > 0
    first = np.flatnonzero(np.append(True, apart))
    last = np.append(first[1:], len(asks)) - 1
    often = last - first + 1 >= ASKED
    return asks[first[often]], asks[last[often]]


def _with_syncs(calls: CallTable, waits: list[tuple[float, float, int]]) -> CallTable:
    """The calls with waits for an event at these times, each on the thread and inside the op of a call."""
    start, end, row = (np.array(column) for column in zip(*waits))
    rows = {
        "name": np.full(len(row), calls.names.code("cudaEventSynchronize")), "start": start, "end": end,
        "thread": calls.thread[row], "kind": np.full(len(row), SYNC), "correlation": np.zeros(len(row)),
        "op": calls.op[row],
    }  # fmt: skip
    every = {
        name: np.concatenate([getattr(calls, name), added]).astype(getattr(calls, name).dtype)
        for name, added in rows.items()
    }
    order = call_order(every["start"], every["end"])
    return CallTable(**{name: column[order] for name, column in every.items()}, names=calls.names)


def _call_kind(name: str) -> int:
    return next((kind for kind, pattern in _CALL_KINDS if pattern.match(name)), OTHER_CALL)


def _threads_of_calls(calls: CallTable, ops: OpTable) -> Ints:
    """Threads of the calls; those that are an op thread under another number get the number of the op thread.

    Older profilers number an unregistered thread by the lower half of its pthread handle: its ops and its runtime
    calls then seem to run on two threads.
    """
    thread = calls.thread.copy()
    of_calls, of_ops = distinct(calls.thread), distinct(ops.thread)
    without_calls = of_ops[~np.isin(of_ops, of_calls)]
    for unmatched in of_calls[~np.isin(of_calls, of_ops)]:
        at = calls.start[(calls.thread == unmatched) & (calls.kind == LAUNCH)]
        found = [code for code in without_calls if len(at) and _share_inside(ops, int(code), at) >= SAME_THREAD]
        if len(found) == 1:
            thread[calls.thread == unmatched] = found[0]
    return thread


def _share_inside(ops: OpTable, thread: int, at: Floats) -> float:
    """Share of some times at which an op is open on a thread."""
    rows = (ops.thread == thread) & ((ops.kind == CALL) | (ops.kind == NODE))
    start, end = ops.start[rows], np.maximum.accumulate(ops.end[rows])
    before = np.searchsorted(start, at, side="right") - 1
    return float(np.mean((before >= 0) & (end[before] >= at))) if len(start) else 0.0


def ids_name_ops(columns: Columns) -> bool:
    """Whether external ids of calls and kernels are those of ops; in older traces they repeat the correlation id."""
    rows = columns.calls if columns.calls.count else columns.device
    return bool(((rows["external"] >= 0) & (rows["external"] != rows["correlation"])).any())


def _by_external_id(columns: Columns, ops: OpTable, ids: Longs, at: Floats) -> Ints:
    """The op with each id, if exactly one has it and it had started by then; else -1."""
    known, first, counts = np.unique(columns.ops["external"][ops.source], return_index=True, return_counts=True)
    if not len(known):
        return np.full(len(ids), -1, np.int32)
    place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    row = first[place]
    fits = (known[place] == ids) & (ids >= 0) & (counts[place] == 1) & (ops.start[row] <= at)
    return np.where(fits, row, -1).astype(np.int32)


def kernel_table(
    columns: Columns, ops: OpTable, calls: CallTable, clock: Clock
) -> tuple[KernelTable, NDArray[np.intp]]:
    """The table of device work, with the call and the op that launched each row; and the event of each row."""
    rows = columns.device
    start, end, order = clock.spans(rows, "correlation")
    names = Names([str(name) for name in columns.kernel_names])
    name = rows["name"][order].astype(np.int32)
    kind = rows["kind"][order].astype(np.int8)
    if len(name):
        kind[(kind == COMPUTE) & names.matching(communicates)[name]] = COLLECTIVE
    call = _launchers(calls, rows["correlation"][order])
    ambiguous = _resolve_shared(calls, call, start)
    op = np.append(calls.op, np.int32(-1))[call]
    op[ambiguous] = -1
    if ids_name_ops(columns):
        unknown = op < 0
        op[unknown] = _by_external_id(columns, ops, rows["external"][order][unknown], start[unknown])
    kernels = KernelTable(
        name=name, start=start, end=end, stream=_lanes(rows["device"][order], rows["stream"][order]), kind=kind,
        call=call, op=op, nbytes=rows["nbytes"][order], grid=rows["grid"][order], block=rows["block"][order],
        names=names,
    )  # fmt: skip
    return kernels, order


def activity_table(columns: Columns, ops: OpTable, clock: Clock) -> ActivityTable:
    """The annotations among the ops, but for marks of steps and collectives, and Python functions that took long."""
    rows = columns.functions
    since = clock.since(rows["ts"])
    until = since + rows["dur"].astype(np.float64) * clock.unit
    functions = ActivityTable(
        name=rows["name"].astype(np.int32), start=since, end=until, thread=rows["thread"].astype(np.int32),
        kind=np.full(rows.count, FUNCTION, np.int8), names=Names([str(name) for name in columns.function_names]),
    )  # fmt: skip
    return activities(ops, functions)


def _launchers(calls: CallTable, correlation: Longs) -> Ints:
    """The call with each correlation id, -1 for none; of a launch and another call that share an id, the launch."""
    if not len(calls):
        return np.full(len(correlation), -1, np.int32)
    launch_last = np.lexsort((calls.kind == LAUNCH, calls.correlation))
    ids = calls.correlation[launch_last]
    place = np.searchsorted(ids, correlation, side="right") - 1
    found = (place >= 0) & (ids[place] == correlation) & (correlation != 0)
    call = np.where(found, launch_last[place], -1).astype(np.int32)
    used = call[found]
    calls.kind[used[calls.kind[used] == OTHER_CALL]] = LAUNCH
    return call


def shared_ids(calls: CallTable) -> NDArray[np.bool_]:
    """Which launches share their correlation id with others, as in traces that were merged or restarted."""
    launches = np.flatnonzero(calls.kind == LAUNCH)
    launches = launches[np.argsort(calls.correlation[launches], kind="stable")]
    same = np.diff(calls.correlation[launches]) == 0
    shared = np.zeros(len(calls), bool)
    shared[launches[:-1][same]] = True
    shared[launches[1:][same]] = True
    return shared


def _resolve_shared(calls: CallTable, call: Ints, start: Floats) -> NDArray[np.intp]:
    """Rows of the kernels whose launch is one of several with the same correlation id and can't be determined.

    ``call`` is changed in place: such a kernel gets the last launch before it. That launch is certain if every earlier
    launch with the id had its kernel by then, and this is the first kernel since.
    """
    shared = shared_ids(calls)
    rows = np.flatnonzero(np.append(shared, False)[call])
    if not len(rows):
        return rows
    launches = np.flatnonzero(shared)
    which = np.unique(calls.correlation[np.concatenate([launches, call[rows]])], return_inverse=True)[1]
    times = np.concatenate([calls.start[launches], start[rows]])
    place = np.empty(len(times), np.int64)
    place[np.argsort(times, kind="stable")] = np.arange(len(times))  # a launch comes before a kernel of the same time
    launched, mine = np.split(which * len(times) + place, [len(launches)])  # in order of ids, then of time
    first = which[len(launches) :] * len(times)
    in_order, kernels = np.argsort(launched), np.sort(mine)
    launched = launched[in_order]
    last = np.searchsorted(launched, mine) - 1
    before = last + 1 - np.searchsorted(launched, first)
    call[rows] = np.where(before > 0, launches[in_order[last]], call[rows])
    earlier = np.searchsorted(kernels, np.stack([mine, launched[last]])) - np.searchsorted(kernels, first)
    certain = (before > 0) & (earlier == before - 1).all(axis=0)
    return np.asarray(rows[~certain])


def _lanes(device: Longs, stream: Longs) -> Ints:
    """A number for each stream of each device: the stream's own if there is one device.

    >>> _lanes(np.array([0, 0]), np.array([7, 22])).tolist(), _lanes(np.array([0, 1]), np.array([7, 7])).tolist()
    ([7, 22], [7, 65543])
    """
    small = bool(((stream >= 0) & (stream < 1 << STREAM_BITS)).all())
    if len(distinct(device)) <= 1 and small:
        return stream.astype(np.int32)
    device = np.unique(device, return_inverse=True)[1]
    stream = stream if small else np.unique(stream, return_inverse=True)[1]
    return ((device << STREAM_BITS) + stream).astype(np.int32)
