"""Tables of a step's ops, runtime calls and kernels, as numpy columns.

A trace of a few hundred megabytes has millions of events. They are stored as columns, and an ``Op`` is created only for
a row that is read. Names are codes into a list of distinct names. Records of arrays are not compared (``eq=False``,
here and elsewhere): arrays have no single truth, and each comparison that a dataclass generates slows the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import starmap
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from foretrace.graph.op import PHASES, Op, Storage

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Small = NDArray[np.int8]
Floats = NDArray[np.float64]

CALL, NODE, ANNOTATION, MODULE, FUNCTION = range(5)
"""Kinds of host events: a dispatcher call, an autograd node around calls, a user's annotation, a module, a Python
function; op tables have none of the last."""

LAUNCH, SYNC, WAIT_EVENT, RECORD_EVENT, OTHER_CALL = range(5)
"""Kinds of runtime calls."""

COMPUTE, COPY, SET, COLLECTIVE = range(4)
"""Kinds of device work."""

STREAM_BITS = 16
"""Bits of a lane's number that are the stream's, where a trace has several devices; those above are the device's."""

SIGMAS_TO_P90 = 1.2816
"""Standard deviations from the median to the 10th and the 90th percentile of a normal distribution."""


class Names:
    """Distinct strings, each with a code.

    >>> names = Names(); names.code("aten::mm"), names.code("aten::add"), names.code("aten::mm")
    (0, 1, 0)
    """

    def __init__(self, items: Sequence[str] = ()) -> None:
        self.items: list[str] = list(items)
        self._codes = {name: i for i, name in enumerate(self.items)}

    def code(self, name: str) -> int:
        """The code of a name, a new one for a new name."""
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.items)
            self.items.append(name)
        return code

    def column(self, names: Sequence[str]) -> Ints:
        """The codes of many names.

        >>> Names(["aten::mm"]).column(["aten::add", "aten::mm", "aten::add"]).tolist()
        [1, 0, 1]
        """
        for name in dict.fromkeys(names):
            self.code(name)
        return np.fromiter(map(self._codes.__getitem__, names), np.int32, len(names))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, code: int) -> str:
        return self.items[code]

    def matching(self, test: Callable[[str], bool]) -> NDArray[np.bool_]:
        """A mask over codes, true where the name passes the test; index it with a column of codes."""
        return np.fromiter((test(name) for name in self.items), np.bool_, len(self.items))


@dataclass(eq=False)
class Table:
    """Columns of equal length: name codes, start and end times, and what subclasses add."""

    name: Ints
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.name)

    def rows(self, selected: NDArray[Any]) -> Self:
        """The rows that a mask or an index array selects, with the same names.

        >>> calls = CallTable.empty()
        >>> len(calls.rows(np.zeros(0, bool)))
        0
        """
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, column in columns.items():
            if isinstance(column, np.ndarray):
                columns[name] = column[selected]
        return type(self)(**columns)

    def shifted(self, us: float) -> Self:
        """The rows with all times shifted."""
        shifted = self.rows(np.ones(len(self), bool))
        shifted.start, shifted.end = self.start + us, self.end + us
        return shifted

    @classmethod
    def empty(cls) -> Self:
        """A table with no rows."""
        dtypes = {"Ints": np.int32, "Longs": np.int64, "Small": np.int8, "Floats": np.float64}
        empty: dict[str, Callable[[], Any]] = {name: partial(np.zeros, 0, dtype) for name, dtype in dtypes.items()}
        empty["Names"] = Names
        return cls(**{f.name: empty.get(str(f.type), lambda: None)() for f in fields(cls)})


@dataclass(eq=False)
class OpTable(Table):
    """The ops of a step in the order they started. ``ops[i]`` is an `Op`.

    >>> ops = OpTable.of([Op("aten::mm", phase="forward"), Op("aten::mm", phase="backward")])
    >>> len(ops), ops[1].name, ops[1].phase
    (2, 'aten::mm', 'backward')
    """

    thread: Ints
    parent: Ints
    phase: Small
    kind: Small
    module: Ints
    names: Names
    modules: Names
    source: Ints
    """Row of each op in the source that `detail` reads: stays valid when rows are selected."""
    detail: Callable[[int], Op] | None = None
    """Creates the op of a source row, with its arguments; None where the source has no arguments."""
    record: Longs | None = None
    """The profiler's record id of each call, equal in all traces taken at once; -1 or None where unknown."""
    stream: Ints | None = None
    """The stream that was current at each op; None where the source does not say, as traces."""

    def __getitem__(self, row: int) -> Op:
        return self._op(*[column.item(row) for column in self._columns()])

    def __iter__(self) -> Iterator[Op]:
        # From lists: reading array elements one by one would cost as much as everything else.
        return starmap(self._op, zip(*(column.tolist() for column in self._columns())))

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.name, self.source, self.start, self.end, self.thread, self.parent, self.phase, self.module

    def call(self, row: int) -> Op:
        """The op of a row with name and arguments only: times, thread, phase and module are not filled in."""
        return self.detail(self.source.item(row)) if self.detail else Op(self.names.items[self.name.item(row)])

    def _op(
        self, name: int, source: int, start: float, end: float, thread: int, parent: int, phase: int, module: int
    ) -> Op:
        op = self.detail(source) if self.detail else Op(self.names.items[name])
        op.start_us, op.end_us, op.thread, op.parent = start, end, thread, parent
        op.phase, op.module = PHASES[phase], self.modules.items[module]
        return op

    @classmethod
    def of(cls, ops: Sequence[Op]) -> OpTable:
        """A table of existing ops."""
        names, modules = Names(), Names([""])
        count = len(ops)

        def column(values: Iterator[Any], kind: type) -> NDArray[Any]:
            return np.fromiter(values, kind, count)

        return cls(
            name=column((names.code(op.name) for op in ops), np.int32),
            start=column((op.start_us for op in ops), np.float64),
            end=column((op.end_us for op in ops), np.float64),
            thread=column((op.thread for op in ops), np.int32),
            parent=column((op.parent for op in ops), np.int32),
            phase=column((PHASES.index(op.phase) for op in ops), np.int8),
            kind=np.full(count, CALL, np.int8),
            module=column((modules.code(op.module) for op in ops), np.int32),
            names=names,
            modules=modules,
            source=np.arange(count, dtype=np.int32),
            stream=column((op.stream for op in ops), np.int32),
            detail=partial(_copied, ops),  # which can be sent to another process
        )

    def untimed(self) -> OpTable:
        """The ops without times, as of a step that was not measured.

        >>> bool(np.isnan(OpTable.of([Op("aten::mm", start_us=1.0, end_us=2.0)]).untimed().start).all())
        True
        """
        return replace(self, start=np.full(len(self), np.nan), end=np.full(len(self), np.nan))


def _copied(ops: Sequence[Op], row: int) -> Op:
    return ops[row].__copy__()


@dataclass(eq=False)
class CallTable(Table):
    """Calls into the device runtime: launches, synchronizations, event waits."""

    thread: Ints
    kind: Small
    op: Ints
    """The innermost op, annotation or module around the call; -1 for none."""
    correlation: Longs
    names: Names


@dataclass(eq=False)
class ActivityTable(Table):
    """Annotations and long Python functions in the order they started: what a host does besides calling ops."""

    thread: Ints
    kind: Small
    """`ANNOTATION`, or `FUNCTION` of Python."""
    names: Names


@dataclass(eq=False)
class KernelTable(Table):
    """Device work (kernels, copies, sets, collectives) in the order it started. A lane is a device stream."""

    stream: Ints
    kind: Small
    call: Ints
    """The runtime call that launched it; -1 if that came before the trace began."""
    op: Ints
    """The op that launched it; -1 where unknown."""
    nbytes: Longs
    """Bytes of a copy, a set or a collective; 0 elsewhere."""
    grid: Longs
    """Blocks launched; 0 where unknown."""
    block: Longs
    """Threads in a block; 0 where unknown."""
    names: Names


SEVERAL = 0.05
"""Share of launches without kernels, and of kernels before their launches, that is no chance."""


def launches_without_kernels(calls: CallTable, kernels: KernelTable) -> tuple[int, int]:
    """How many launches of kernels have none that they launched, and how many launches there are.

    Of launches of graphs, copies and memsets only those count that have their device work.
    """
    launches = calls.names.matching(lambda name: "Launch" in name and "Graph" not in name)[calls.name]
    launched = kernels.call[kernels.call >= 0]
    launches[launched] = True
    lost = launches.copy()
    lost[launched] = False
    return int(lost.sum()), int(launches.sum())


def launched_before(every: KernelTable, kernels: KernelTable, certain: bool = False) -> NDArray[np.bool_]:
    """Which kernels were launched before all calls of a trace or a step: without a launch, and ahead of the first that
    has one on their stream, since a stream runs its work in the order of launches.

    It is unknown when others without one were launched, and when any was where no kernel has one.

    Parameters
    ----------
    every
        All kernels of the trace or the step.
    kernels
        The kernels in question.
    certain
        Leave out kernels of streams on which none has a launch: these may be of a CUDA graph.
    """
    unknown, known = kernels.call < 0, every.call >= 0
    first = np.full(len(kernels), np.inf if known.any() else -np.inf)
    for stream in distinct(kernels.stream[unknown]).tolist() if known.any() else ():
        here = every.start[known & (every.stream == stream)]
        first[kernels.stream == stream] = here.min() if len(here) else -np.inf if certain else np.inf
    return np.asarray(unknown & (kernels.op < 0) & (kernels.start < first))


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct values in order: `numpy.unique` without importing masked arrays, as slow as reading a small trace.

    >>> distinct(np.array([3, 1, 3])).tolist(), distinct(np.array([], np.int32)).tolist()
    ([1, 3], [])
    """
    # Times come nearly in order, which a merge sort is many times faster on.
    ordered = np.sort(values, axis=None, kind="stable" if values.dtype.kind == "f" else None)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def below(mark: NDArray[np.bool_], parent: Ints) -> NDArray[np.bool_]:
    """Rows that are marked or lie below a marked row.

    >>> below(np.array([False, True, False]), np.array([-1, 0, 1])).tolist()
    [False, True, True]
    """
    inside = mark.copy()
    above = parent.copy()
    pending = np.flatnonzero(~inside & (above >= 0))
    while len(pending):
        inside[pending] = mark[above[pending]]
        above[pending] = parent[above[pending]]
        pending = pending[~inside[pending] & (above[pending] >= 0)]
    return inside


def nested_in(mark: NDArray[np.bool_], parent: Ints) -> NDArray[np.bool_]:
    """Rows that lie below a marked row.

    >>> nested_in(np.array([False, True, False]), np.array([-1, 0, 1])).tolist()
    [False, False, True]
    """
    return np.append(below(mark, parent), False)[parent]


def percentiles(values: NDArray[Any], which: Sequence[float]) -> list[float]:
    """Linearly interpolated percentiles, like `numpy.percentile` without its slow first import.

    >>> percentiles(np.array([30.0, 10.0, 20.0]), [0, 75, 100])
    [10.0, 25.0, 30.0]
    """
    places = np.array(which) / 100 * (len(values) - 1)
    return np.interp(places, np.arange(len(values)), np.sort(values)).tolist()  # type: ignore[no-any-return]


def median(values: NDArray[Any]) -> Any:
    """The median along the first axis, like `numpy.median` without importing masked arrays.

    >>> float(median(np.array([30.0, 10.0, 20.0, 40.0]))), median(np.array([[1.0, 5.0], [3.0, 9.0]])).tolist()
    (25.0, [2.0, 7.0])
    """
    ordered = np.sort(values, axis=0)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


@dataclass(eq=False)
class StorageTable(Mapping[int, Storage]):
    """Storages by their ids, which are created when one of them is read.

    >>> table = StorageTable.of({0: Storage(0, 64, "cuda:0", birth=0, death=2), 7: Storage(7, 8, "cpu")})
    >>> len(table), table[7].device, table.nbytes.tolist()
    (2, 'cpu', [64, 8])
    """

    id: Longs
    nbytes: Longs
    device: Ints
    birth: Longs
    death: Longs
    held: NDArray[np.bool_]
    pinned: NDArray[np.bool_]
    devices: Names

    @classmethod
    def of(cls, storages: Mapping[int, Storage]) -> StorageTable:
        """The table of these storages, which may be one already."""
        if isinstance(storages, StorageTable):
            return storages
        devices = Names()
        rows = [(s.id, s.nbytes, devices.code(s.device), s.birth, s.death, s.held, s.pinned) for s in storages.values()]
        number, nbytes, device, birth, death, held, pinned = np.array(rows, np.int64).reshape(-1, 7).T
        return cls(
            number, nbytes, device.astype(np.int32), birth, death, held.astype(bool), pinned.astype(bool), devices
        )

    def renumbered(self, new_row: Longs) -> StorageTable:
        """The storages with births and deaths in other rows; the last entry of ``new_row`` is for -1, unknown."""
        return replace(self, birth=new_row[self.birth], death=new_row[self.death])

    def within(self, rows: NDArray[np.bool_]) -> StorageTable:
        """The storages that are alive in some rows of ops, by the numbers that these rows have among themselves.

        >>> made = {0: Storage(0, 64, "cuda", birth=0, death=2), 1: Storage(1, 8, "cuda", birth=2, death=3)}
        >>> [(s.birth, s.death) for s in StorageTable.of(made).within(np.array([False, True, True])).values()]
        [(-1, 1), (1, -1)]
        """
        if not rows.any():
            return self
        first, last = np.flatnonzero(rows)[[0, -1]]
        new = np.append(np.cumsum(rows) - rows, rows.sum())
        alive = (self.birth <= last) & ((self.death < 0) | (self.death > first))
        kept = self.rows(alive)
        birth = np.where(kept.birth >= first, new[np.maximum(kept.birth, 0)], -1)
        death = np.where((kept.death >= 0) & (kept.death <= last), new[np.clip(kept.death, 0, last)], -1)
        return replace(kept, birth=birth, death=death)

    def rows(self, selected: NDArray[np.bool_]) -> StorageTable:
        """Some of the storages."""
        columns = {f.name: getattr(self, f.name)[selected] for f in fields(self) if f.name != "devices"}
        return StorageTable(**columns, devices=self.devices)

    @cached_property
    def _storages(self) -> dict[int, Storage]:
        devices = [self.devices[code] for code in self.device.tolist()]
        columns = (self.id, self.nbytes, self.birth, self.death, self.held, self.pinned)
        number, nbytes, birth, death, held, pinned = (column.tolist() for column in columns)
        return dict(zip(number, map(Storage, number, nbytes, devices, birth, death, held, pinned)))

    def __getitem__(self, number: int) -> Storage:
        return self._storages[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._storages)

    def __len__(self) -> int:
        return len(self.id)
