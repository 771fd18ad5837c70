"""The events of a profiler trace as columns: ops, runtime calls, device work and allocations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable
from copy import copy
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.kineto.decode import Args, Event
from foretrace.graph import ForetraceError
from foretrace.graph.tables import ANNOTATION, CALL, COMPUTE, COPY, MODULE, SET, distinct

NO_ARGUMENTS = b"[],[],[],[]"
"""The signature of an event without arguments."""
MODULE_PREFIX = "nn.Module: "
"""How the profiler marks modules among Python functions."""
_OPS = {"cpu_op": CALL, "Operator": CALL, "user_annotation": ANNOTATION, "python_function": MODULE}
_FUNCTION = "python_function"
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
    r"(?i)/device:(?!cpu)|\b(gpu|cuda|hip|xpu|npu|hpu|tpu|mtia|mlu|musa|gaudi|ascend)\b(?!.*overhead)", re.ASCII
)


def is_device(process: str) -> bool:
    """Whether a trace's process, by its name, is an accelerator.

    >>> [is_device(name) for name in ("/device:GPU:0", "Ascend Hardware", "CUDA functions", "python", "/host:CPU")]
    [True, True, True, False, False]
    """
    return bool(_DEVICE_PROCESS.search(process))


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
        spans = [event for event in events if event.ph == "X"]
        categories = set(map(_cat, spans))
        calls = set(filter(_CALLS.fullmatch, categories))
        device = {cat: kind for cat in categories for kind, pattern in _DEVICE if pattern.fullmatch(cat)}
        functions = [event for event in spans if event.cat == _FUNCTION] if _FUNCTION in categories else []
        if functions:  # most of a trace with stacks: only modules are ops
            spans = [event for event in spans if event.cat != _FUNCTION or event.name.startswith(MODULE_PREFIX)]
        columns._take_ops([event for event in spans if event.cat in _OPS], source)
        columns._take_calls([event for event in spans if event.cat in calls], source)
        columns._take_device([event for event in spans if event.cat in device], device, source)
        long = [e for e in functions if e.dur >= LONG_FUNCTION_US and not e.name.startswith(MODULE_PREFIX)]
        columns._take_functions(long, source)
        if len(spans) < len(events):
            others = [event for event in events if event.ph in _OTHERS]
            columns._take_memory([event for event in others if event.name == _MEMORY and event.ph == "i"], source)
            columns.processes = [str(event.args.label) for event in others if event.name == _PROCESS]
            columns.begun = sum(event.ph in BEGINS for event in others)
        return columns

    def _take_ops(self, events: list[Event], source: str) -> None:
        args, signatures = [event.args for event in events], Codes()
        undecoded = map(b",".join, map(_arguments, args))
        self.op_collectives = _collectives(args)
        self.ops = Rows(
            **_times(events, source),
            name=_ints(events, _name, self.op_names),
            kind=_ints(events, _cat, _OPS),
            thread=_ints(events, _pid_tid, self.threads),
            external=_ints(args, attrgetter("external")),
            record=_ints(args, attrgetter("record")),
            signature=np.fromiter(map(signatures.__getitem__, undecoded), np.int64, len(args)),
        )
        self.signatures = list(signatures)  # type: ignore[arg-type]

    def _take_calls(self, events: list[Event], source: str) -> None:
        args = [event.args for event in events]
        self.calls = Rows(
            **_times(events, source),
            name=_ints(events, _name, self.call_names),
            thread=_ints(events, _pid_tid, self.threads),
            external=_ints(args, attrgetter("external")),
            correlation=_ints(args, attrgetter("correlation")),
        )

    def _take_device(self, events: list[Event], kinds: dict[str, int], source: str) -> None:
        kind: Callable[[Event], str] = _cat
        if any(cat.startswith("mtia") for cat in kinds):
            events = [event for event in events if event.name not in NO_WORK]
            kinds = {**kinds, _COPIES: COPY}
            kind = lambda event: event.name if event.name == _COPIES else event.cat  # noqa: E731
        args, products = [event.args for event in events], Products()
        self.device_collectives = _collectives(args)
        self.device = Rows(
            **_times(events, source),
            name=_ints(events, _name, self.kernel_names),
            kind=_ints(events, kind, kinds),
            grid=_ints(args, attrgetter("grid"), products),
            block=_ints(args, attrgetter("block"), products),
            nbytes=_ints(args, lambda one: one.nbytes if isinstance(one.nbytes, int) else 0),
            external=_ints(args, attrgetter("external")),
            correlation=_ints(args, attrgetter("correlation")),
            device=_ints(args, attrgetter("device")),
            stream=_ints(args, attrgetter("stream")),
            process=_ints(events, attrgetter("pid"), self.device_pids),
        )

    def _take_functions(self, events: list[Event], source: str) -> None:
        self.functions = Rows(
            **_times(events, source),
            name=_ints(events, _name, self.function_names),
            thread=_ints(events, _pid_tid, self.threads),
        )

    def _take_memory(self, events: list[Event], source: str) -> None:
        events = [event for event in events if event.args.device_type and event.args.allocated >= 0]
        args = [event.args for event in events]
        self.memory = Rows(
            ts=_times(events, source)["ts"],
            allocated=_ints(args, attrgetter("allocated")),
            device=_ints(args, attrgetter("device_id")),
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


_name, _cat, _pid_tid = attrgetter("name"), attrgetter("cat"), attrgetter("pid", "tid")
_arguments = attrgetter("dims", "types", "strides", "concrete")
_collective = attrgetter("collective", "sent", "received", "dtype", "group", "ranks", "source_rank", "target_rank")


def _collectives(args: list[Args]) -> dict[int, CollectiveArgs]:
    return {row: CollectiveArgs(*_collective(one)) for row, one in enumerate(args) if one.collective}


def _chosen(collectives: dict[int, CollectiveArgs], chosen: NDArray[np.bool_]) -> dict[int, CollectiveArgs]:
    place = np.cumsum(chosen) - 1
    return {int(place[row]): one for row, one in collectives.items() if chosen[row]}


def _ints(rows: list[Any], get: Callable[[Any], Any], codes: dict[Any, int] | None = None) -> NDArray[np.int64]:
    """A column of numbers, or of codes for other values."""
    values = map(get, rows)
    return np.fromiter(map(codes.__getitem__, values) if codes is not None else values, np.int64, len(rows))


def _times(events: list[Event], source: str) -> dict[str, NDArray[Any]]:
    """Timestamps as they are, integers or floats: only integers hold nanoseconds since the epoch."""
    ts, dur = np.array([event.ts for event in events]), np.array([event.dur for event in events])
    valid = (ts >= 0) & (ts < 2.0**63) & (dur >= 0) & (dur < 2.0**63)  # which NaN is not
    if not valid.all():
        bad = events[int(np.argmin(valid))]
        raise ForetraceError(
            f"{source}: event {bad.name[:80]!r} has ts {bad.ts} and dur {bad.dur}, which is no time",
            "Record this rank again, or leave it out.",
        )
    return {"ts": ts, "dur": dur}
