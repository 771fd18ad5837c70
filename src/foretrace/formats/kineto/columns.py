"""The events of a profiler trace as columns: ops, runtime calls, device work and allocations."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.call_tree import STEP_MARK
from foretrace.formats.kineto.decode import Event
from foretrace.graph import ForetraceError
from foretrace.graph.tables import ANNOTATION, CALL, COMPUTE, COPY, MODULE, SET, distinct

NO_ARGUMENTS = b"[],[],[],[]"
"""The signature of an event without arguments."""
MODULE_PREFIX = "nn.Module: "
"""How the profiler marks modules among Python functions."""
_OPS = {"cpu_op": CALL, "Operator": CALL, "user_annotation": ANNOTATION, "python_function": MODULE}
_FUNCTION, _DEVICE_MARK = "python_function", "gpu_user_annotation"
_MEMORY, _PROCESS = "[memory]", "process_name"
BEGINS = {"B": "E", "b": "e", "S": "F"}
"""Phases of events that begin a span, with those of the events that end it: on a thread, and asynchronous ones."""
_OTHERS = {"i", "M", *BEGINS}
"""Phases of events without a duration that are read."""
_CALLS = re.compile(r"\w+_(runtime|driver)|Runtime")
"""Categories of runtime calls: cuda_runtime, cuda_driver, xpu_runtime, mtia_runtime, privateuse1_runtime."""
_DEVICE = ((COPY, re.compile(r"(\w+_)?[mM]emcpy")), (SET, re.compile(r"(\w+_)?[mM]emset")),
           (COMPUTE, re.compile(r"(\w+_)?[kK]ernel|hpu_op|mtia_ccp_events|mtia_workloadd")))  # fmt: skip
"""Categories of device work: kernel, gpu_memcpy and their like on other accelerators."""
NO_WORK = ("event_wait", "event_record")
"""Records of a device's queue in which it does nothing (MTIA's)."""
_COPIES = "dma_request"
"""MTIA's copies, among its other device records."""
_MAX_PRODUCT = 2**62
MAX_DISTINCT = 0.6
"""Share of distinct start times from which on no event can be in the file twice."""
LONG_FUNCTION_US = 100
"""Python functions that took less explain no gap of the device, and are most of a trace with stacks."""


_DEVICE_PROCESS = re.compile(
    r"(?i)/device:(?!cpu)|"
    r"(?!.*\b(api|cpu|host|overhead)\b).*\b(gpu|cuda|hip|xpu|npu|hpu|tpu|mtia|mlu|musa|gaudi|ascend)[\s_:#-]?\d*\b",
    re.ASCII,
)


def is_device(process: str) -> bool:
    """Whether a trace's process, by its name, is an accelerator.

    >>> [is_device(name) for name in ("/device:GPU:0", "Ascend Hardware", "CUDA functions", "GPU0", "gpu 1")]
    [True, True, True, True, True]
    >>> [is_device(name) for name in ("python", "/host:CPU", "CPU HIP API", "CUDA API", "gputil")]
    [False, False, False, False, False]
    """
    return bool(_DEVICE_PROCESS.match(process))


class Codes(dict[Hashable, int]):
    """A number for each distinct key, in the order of first use."""

    def __missing__(self, key: Hashable) -> int:
        code = self[key] = len(self)
        return code

    def of(self, other: Codes) -> NDArray[np.int64]:
        """For each code of another, the code that its key has here.

        >>> here, there = Codes(a=0, b=1), Codes(b=0, c=1)
        >>> here.of(there).tolist()
        [1, 2]
        """
        return np.fromiter(map(self.__getitem__, other), np.int64, len(other))


class Products(dict[tuple[int, ...], int]):
    """The number of blocks or threads of a three-dimensional size, cached: a trace has few sizes, each many times.

    >>> Products()[128, 4, 1]
    512
    """

    def __missing__(self, sizes: tuple[int, ...]) -> int:
        product = self[sizes] = min(math.prod(sizes), _MAX_PRODUCT) if sizes and min(sizes) > 0 else 0
        return product


class Rows:
    """Columns of equal length that grow by chunks."""

    def __init__(self, **columns: NDArray[Any]) -> None:
        self._parts = {name: [column] for name, column in columns.items()}
        self.count = len(next(iter(columns.values()), ()))

    def __getitem__(self, name: str) -> NDArray[Any]:
        parts = self._parts.get(name, [])
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts)]
        return parts[0] if parts else np.zeros(0, np.int64)

    def only(self, chosen: NDArray[np.bool_]) -> Rows:
        """The chosen rows."""
        return Rows(**{name: self[name][chosen] for name in self._parts})

    def first_of_equals(self) -> NDArray[np.bool_]:
        """Which rows are unlike all before them, whatever their arguments are.

        >>> Rows(ts=np.array([5, 5, 6]), name=np.array([1, 1, 1])).first_of_equals().tolist()
        [True, False, True]
        """
        columns = [self[name] for name in self._parts if name != "signature"]
        first = np.ones(self.count, bool)
        if self.count:
            order = np.lexsort(columns)
            first[order[1:]] = ~np.logical_and.reduce([column[order][1:] == column[order][:-1] for column in columns])
        return first

    def extend(self, other: Rows, **instead: NDArray[Any]) -> None:
        """Append the rows of another, with some of its columns replaced."""
        if other.count:
            for name in other._parts:
                self._parts.setdefault(name, []).append(instead.get(name, other[name]))
            self.count += other.count


class CollectiveArgs(NamedTuple):
    """A collective as the arguments of an event describe it."""

    collective: str
    sent: int
    received: int
    dtype: str
    group: str
    ranks: str
    source_rank: int | str = -1
    """Of a recv."""
    target_rank: int | str = -1
    """Of a send."""


class Columns:
    """The columns that a graph is built from, and the distinct names and signatures that they refer to."""

    def __init__(self) -> None:
        self.events = 0
        self.ops, self.calls, self.device, self.memory, self.functions = Rows(), Rows(), Rows(), Rows(), Rows()
        self.op_names, self.call_names, self.kernel_names, self.threads = Codes(), Codes(), Codes(), Codes()
        self.function_names, self.device_pids = Codes(), Codes()
        self.signatures: list[bytes] = []
        """Distinct argument lists of ops, undecoded."""
        self.op_collectives: dict[int, CollectiveArgs] = {}
        self.device_collectives: dict[int, CollectiveArgs] = {}
        self.device_steps: list[tuple[str, Any, Any]] = []
        """Marks of steps on the device's own track: name, beginning and end."""
        self.processes: list[str] = []
        """Names of the trace's processes, devices among them."""
        self.begun = 0
        """Events that begin a span which another event ends."""
        self.repeated = 0
        """Events that the file holds again, left out."""

    @classmethod
    def of(cls, events: list[Event], source: str) -> Columns:
        """The columns of some events; ``source`` is the file, for error messages."""
        columns = cls()
        columns.events = len(events)
        rows, others = EventLists(), []
        for event in events:
            if event.ph == "X":
                rows[event.cat].append(event)
            elif event.ph in _OTHERS:
                others.append(event)
        if rows.functions:  # most of a trace with stacks: only modules are ops
            is_module = [event.name.startswith(MODULE_PREFIX) for event in rows.functions]
            rows.ops += [event for event, module in zip(rows.functions, is_module) if module]
        columns._take_ops(rows.ops, source)
        columns._take_calls(rows.calls, source)
        columns._take_device(rows.device, rows.kinds, source)
        if rows.functions:
            some = zip(rows.functions, is_module)
            columns._take_functions([e for e, module in some if e.dur >= LONG_FUNCTION_US and not module], source)
        marks = [event for event in rows.marks if STEP_MARK.match(event.name) and 0 <= event.ts + event.dur < math.inf]
        columns.device_steps = [(event.name, event.ts, event.ts + event.dur) for event in marks]
        if others:
            columns._take_memory([event for event in others if event.name == _MEMORY and event.ph == "i"], source)
            columns.processes = [str(event.args.label) for event in others if event.name == _PROCESS]
            columns.begun = sum(event.ph in BEGINS for event in others)
        return columns

    @property
    def pids(self) -> list[Any]:
        """For each thread, the number of its process."""
        return [key[0] for key in self.threads if isinstance(key, tuple)]

    @property
    def hosts(self) -> list[Any]:
        """The numbers of the processes that launch work, or that have ops where none does."""
        rows, pids = self.calls if self.device.count else self.ops, self.pids
        return list(dict.fromkeys(pids[code] for code in distinct(rows["thread"]).tolist()))

    # Each takes all fields of an event at once: events lie far apart in memory, and to visit them anew for every
    # column takes longer than all else.

    def _take_ops(self, events: list[Event], source: str) -> None:
        rows = [
            (e.ts, e.dur, e.name, e.cat, (e.pid, e.tid), (one := e.args).external, one.record, one.collective,
             b",".join((one.dims, one.types, one.strides, one.concrete)))
            for e in events
        ]  # fmt: skip
        ts, dur, name, kind, thread, external, record, collective, undecoded = _transposed(rows, 9)
        signatures = Codes()
        self.op_collectives = _collectives(events, collective)
        self.ops = Rows(
            **_times(ts, dur, events, source),
            name=_codes(self.op_names, name),
            kind=_codes(_OPS, kind),
            thread=_codes(self.threads, thread),
            external=np.array(external, np.int64),
            record=np.array(record, np.int64),
            signature=_codes(signatures, undecoded),
        )
        self.signatures = list(signatures)  # type: ignore[arg-type]

    def _take_calls(self, events: list[Event], source: str) -> None:
        rows = [(e.ts, e.dur, e.name, (e.pid, e.tid), e.args.external, e.args.correlation) for e in events]
        ts, dur, name, thread, external, correlation = _transposed(rows, 6)
        self.calls = Rows(
            **_times(ts, dur, events, source),
            name=_codes(self.call_names, name),
            thread=_codes(self.threads, thread),
            external=np.array(external, np.int64),
            correlation=np.array(correlation, np.int64),
        )

    def _take_device(self, events: list[Event], kinds: dict[str, int], source: str) -> None:
        mtia = any(cat.startswith("mtia") for cat in kinds)
        if mtia:
            events = [event for event in events if event.name not in NO_WORK]
        rows = [
            (e.ts, e.dur, e.name, e.cat, e.pid, (one := e.args).grid, one.block, one.nbytes, one.external,
             one.correlation, one.device, one.stream, one.collective)
            for e in events
        ]  # fmt: skip
        columns = _transposed(rows, 13)
        ts, dur, name, cat, pid, grid, block, nbytes, external, correlation, device, stream, collective = columns
        kind, products = _codes(kinds, cat), Products()
        if mtia:
            kind[[row for row, one in enumerate(name) if one == _COPIES]] = COPY
        self.device_collectives = _collectives(events, collective)
        self.device = Rows(
            **_times(ts, dur, events, source),
            name=_codes(self.kernel_names, name),
            kind=kind,
            grid=_codes(products, grid),
            block=_codes(products, block),
            nbytes=np.array([size if isinstance(size, int) else 0 for size in nbytes], np.int64),
            external=np.array(external, np.int64),
            correlation=np.array(correlation, np.int64),
            device=np.array(device, np.int64),
            stream=np.array(stream, np.int64),
            process=_codes(self.device_pids, pid),
        )

    def _take_functions(self, events: list[Event], source: str) -> None:
        rows = [(e.ts, e.dur, e.name, (e.pid, e.tid)) for e in events]
        ts, dur, name, thread = _transposed(rows, 4)
        self.functions = Rows(
            **_times(ts, dur, events, source),
            name=_codes(self.function_names, name),
            thread=_codes(self.threads, thread),
        )

    def _take_memory(self, events: list[Event], source: str) -> None:
        events = [event for event in events if event.args.device_type and event.args.allocated >= 0]
        ts, dur = [event.ts for event in events], [event.dur for event in events]
        self.memory = Rows(
            ts=_times(ts, dur, events, source)["ts"],
            allocated=np.array([event.args.allocated for event in events], np.int64),
            device=np.array([event.args.device_id for event in events], np.int64),
        )

    def of_processes(self, threads: NDArray[np.bool_], processes: NDArray[np.bool_]) -> Columns:
        """The rows of some threads, and the device work of some processes; names and signatures are shared."""
        calls, functions = threads[self.calls["thread"]], threads[self.functions["thread"]]
        found = self._only(threads[self.ops["thread"]], calls, processes[self.device["process"]], functions)
        found.memory = self.memory.only(np.isin(self.memory["device"], found.device["device"]))
        return found

    def without_repeats(self) -> Columns:
        """The columns without events that the file holds again, as a trace that was appended to itself does."""
        rows = self.device if self.device.count else self.ops
        if len(distinct(rows["ts"])) > MAX_DISTINCT * rows.count:
            return self
        first = [some.first_of_equals() for some in (self.ops, self.calls, self.device, self.functions)]
        found = self._only(*first)
        found.repeated = sum(int((~some).sum()) for some in first)
        # With times of whole microseconds a few may be equal and two all the same.
        return found if found.repeated > (1 - MAX_DISTINCT) * sum(map(len, first)) else self

    def _only(
        self, ops: NDArray[np.bool_], calls: NDArray[np.bool_], device: NDArray[np.bool_], functions: NDArray[np.bool_]
    ) -> Columns:
        found = copy(self)
        found.ops, found.calls = self.ops.only(ops), self.calls.only(calls)
        found.device, found.functions = self.device.only(device), self.functions.only(functions)
        found.op_collectives = _chosen(self.op_collectives, ops)
        found.device_collectives = _chosen(self.device_collectives, device)
        return found

    def append(self, other: Columns) -> None:
        """Append the rows of another."""
        self.events += other.events
        self.device_steps += other.device_steps
        self.processes += other.processes
        self.begun += other.begun
        self.op_collectives |= {self.ops.count + row: one for row, one in other.op_collectives.items()}
        self.device_collectives |= {self.device.count + row: one for row, one in other.device_collectives.items()}
        threads = self.threads.of(other.threads)
        self.ops.extend(
            other.ops,
            name=self.op_names.of(other.op_names)[other.ops["name"]],
            thread=threads[other.ops["thread"]],
            signature=other.ops["signature"] + len(self.signatures),
        )
        self.signatures += other.signatures
        self.calls.extend(
            other.calls,
            name=self.call_names.of(other.call_names)[other.calls["name"]],
            thread=threads[other.calls["thread"]],
        )
        self.device.extend(
            other.device,
            name=self.kernel_names.of(other.kernel_names)[other.device["name"]],
            process=self.device_pids.of(other.device_pids)[other.device["process"]],
        )
        self.functions.extend(
            other.functions,
            name=self.function_names.of(other.function_names)[other.functions["name"]],
            thread=threads[other.functions["thread"]],
        )
        self.memory.extend(other.memory)


class EventLists(dict[str, list[Event]]):
    """By its category, the list that an event with a duration belongs to.

    >>> lists = EventLists()
    >>> lists["gpu_memcpy"] is lists.device, lists["xpu_runtime"] is lists.calls, lists["overhead"]
    (True, True, [])
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Event] = []
        self.device: list[Event] = []
        self.functions: list[Event] = []
        self.marks: list[Event] = []
        self.ops: list[Event] = []
        self.kinds: dict[str, int] = {}
        """Of the categories of device work."""

    def __missing__(self, cat: str) -> list[Event]:
        kind = next((kind for kind, pattern in _DEVICE if pattern.fullmatch(cat)), None)
        if kind is not None:
            self.kinds[cat] = kind
        self[cat] = (
            self.functions if cat == _FUNCTION
            else self.ops if cat in _OPS
            else self.calls if _CALLS.fullmatch(cat)
            else self.device if kind is not None
            else self.marks if cat == _DEVICE_MARK
            else []
        )  # fmt: skip
        return self[cat]


_collective = attrgetter("collective", "sent", "received", "dtype", "group", "ranks", "source_rank", "target_rank")


def _collectives(events: list[Event], named: Sequence[str]) -> dict[int, CollectiveArgs]:
    return {row: CollectiveArgs(*_collective(events[row].args)) for row, name in enumerate(named) if name}


def _chosen(collectives: dict[int, CollectiveArgs], chosen: NDArray[np.bool_]) -> dict[int, CollectiveArgs]:
    place = np.cumsum(chosen) - 1
    return {int(place[row]): one for row, one in collectives.items() if chosen[row]}


def _transposed(rows: list[tuple[Any, ...]], width: int) -> list[Sequence[Any]]:
    """The columns of some rows of that many fields."""
    return list(zip(*rows)) or [()] * width


def _codes(codes: Mapping[Any, int], values: Sequence[Any]) -> NDArray[np.int64]:
    """A column of the values' codes."""
    return np.fromiter(map(codes.__getitem__, values), np.int64, len(values))


def _times(
    starts: Sequence[Any], durations: Sequence[Any], events: list[Event], source: str
) -> dict[str, NDArray[Any]]:
    """Timestamps as they are, integers or floats: only integers hold nanoseconds since the epoch."""
    ts, dur = np.array(starts), np.array(durations)
    valid = (ts >= 0) & (ts < 2.0**63) & (dur >= 0) & (dur < 2.0**63)  # which NaN is not
    if not valid.all():
        bad = events[int(np.argmin(valid))]
        raise ForetraceError(
            f"{source}: event {bad.name[:80]!r} has ts {bad.ts} and dur {bad.dur}, which is no time",
            "Record this rank again, or leave it out.",
        )
    return {"ts": ts, "dur": dur}
