"""Graph (the step of one rank), Job (the graphs of all ranks), records besides the tables, and cutting to one step."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import ForetraceError
from foretrace.graph.op import Storage
from foretrace.graph.tables import (
    COLLECTIVE,
    ActivityTable,
    CallTable,
    Floats,
    KernelTable,
    Longs,
    OpTable,
    StorageTable,
)

if TYPE_CHECKING:
    from foretrace.graph.programs import Program

Fact: TypeAlias = "bool | int | float | list[int] | list[float]"

MAX_RANKS = 1 << 20
"""The most ranks that a job may have: a file with more is damaged or malicious."""
MISSING_KERNELS = "kernels are missing: "
MISSING_COLLECTIVES = "communication is missing: "
LATE_CLOCK = "the clock of the device is late: "
MISSING_DEVICES = "not all devices are recorded: "
SEVERAL_DEVICES = "several devices are shown as one: "
NO_STEP_MARKS = "no step marks (ProfilerStep#N): the whole trace is taken as one step"
ANOTHER_TIME = "the recorded step took another time: "
"""How the note begins on a prediction whose range does not hold what was measured."""
UNEXPLAINED_TIME = "much of the measured host time is unexplained: "
LEFT_OUT_TIME = "most device time is left out: "
UNKNOWN_GROUPS = "who communicates with whom is unknown: "
CAUTIONS = (
    "assumed while the model was built: ",
    "assumed in the step, and decisive: ",
    "the step has no backward: ",
    "work of threads is left out: ",
    "weights without an update: ",
    "weights on different devices: ",
    "torch.compile was left out: ",
    "torch.jit was left out, ",
    "FlexAttention is predicted as ",
    "control flow is predicted as ",
    "the step puts nothing on the GPU: ",
    "much rests on guesses: ",
    "recorded on a CPU: ",
    ANOTHER_TIME,
    UNEXPLAINED_TIME,
    "the batch may be another: ",
    "tensor parallel splits only ",
    "several processes are taken for one rank: ",
    LEFT_OUT_TIME,
    UNKNOWN_GROUPS,
    MISSING_KERNELS,
    MISSING_COLLECTIVES,
    LATE_CLOCK,
    MISSING_DEVICES,
    SEVERAL_DEVICES,
)
"""How notes begin that headlines show: another step may have been sketched than the one that would run, or its time is
mostly guessed."""


def cautions(notes: Iterable[str]) -> list[str]:
    """The notes that belong in a headline.

    >>> cautions(["ranks are alike", "the step has no backward: train.py:3"])
    ['the step has no backward: train.py:3']
    """
    return [note for note in notes if note.startswith(CAUTIONS)]


class Span(NamedTuple):
    """A named time interval, in microseconds since the graph's origin; of a graph without times, rows of its ops."""

    name: str
    start: float
    end: float

    @property
    def ms(self) -> float:
        """Its length in milliseconds.

        >>> Span("ProfilerStep#3", 0.0, 2500.0).ms
        2.5
        """
        return (self.end - self.start) / 1e3


@dataclass(slots=True)
class Collective:
    """One rank's participation in a collective: kind, process group, bytes, and the kernel and op that perform it."""

    kind: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send, recv, barrier; and
    permute: each rank sends to another, as around a ring."""
    group: str
    nbytes: int
    kernel: int
    """Row in the kernel table; -1 for a backend that runs on the host."""
    op: int
    """Row in the op table; -1 where unknown."""
    ranks: tuple[int, ...] = ()
    """Members of the group; empty where unknown."""
    dtype: str = ""
    peer: int = -1
    """The other rank of a send or a recv; -1 where unknown and for other kinds."""
    us: float = 0.0
    """Microseconds that it took on this rank, waiting included, where its kind or size is unknown; 0 elsewhere."""
    match: int = -1
    """Number that it has on all ranks, where its place among the rank's collectives does not tell; -1 elsewhere."""

    @property
    def is_sized(self) -> bool:
        """Whether kind and size are known, by which it can be priced.

        >>> Collective("all_reduce", "0", 0, kernel=-1, op=0).is_sized
        False
        """
        return bool(self.kind and (self.nbytes or self.kind == "barrier"))

    @property
    def takes_as_measured(self) -> bool:
        """Whether it takes as long as it was measured, as its kind or size is unknown."""
        return self.us > 0 and not self.is_sized


class HostGap(NamedTuple):
    """Measured host time that a model of calls may not have, as data loading or a long pause."""

    first: int
    """Row of the op before which it lies, or inside of which it begins; one beyond the last where there is none."""
    beyond: int
    """Row of the first op after it: those from the first on are inside."""
    cause: str
    name: str
    us: float
    meant: bool
    """Whether its name says what it is for."""


class HostTimes(TypedDict):
    """What a graph to be transformed holds of measured host time, by the rows of its ops."""

    host_gaps: tuple[HostGap, ...]
    call_times: Mapping[int, float]


def moved_host_times(graph: Graph, position: Sequence[int], count: int) -> HostTimes:
    """The host times of an edited step: ``position`` has the new row of each, -1 where that was removed, of ``count``
    rows. A gap before a call that was removed is before the next one; time in it is gone.

    >>> gap = HostGap(1, 2, "data loading", "", 50.0, True)
    >>> moved = moved_host_times(Graph(OpTable.of([]), host_gaps=(gap,), call_times={1: 9.0}), [0, -1, 1, -1], 2)
    >>> moved["host_gaps"][0].first, moved["call_times"]
    (1, {})
    """
    times = {position[row]: us for row, us in graph.call_times.items() if position[row] >= 0}
    later = [count] * (len(position) + 1)
    for row in range(len(position) - 1, -1, -1) if graph.host_gaps else ():
        later[row] = position[row] if position[row] >= 0 else later[row + 1]
    moved = [(gap, later[gap.first], later[gap.beyond]) for gap in graph.host_gaps]
    gaps = (gap._replace(first=first, beyond=max(beyond, first)) for gap, first, beyond in moved)
    return HostTimes(host_gaps=tuple(gaps), call_times=times)


@dataclass(slots=True)
class Indices:
    """Statistics of the ids of an embedding lookup: counts and a reuse histogram, never the ids.

    ``reuse[k]`` is the number of distinct rows that were read between 2^k and 2^(k+1) - 1 times.
    """

    op: int
    rows: int
    count: int
    unique: int
    bags: int
    reuse: tuple[int, ...]

    @property
    def pooling(self) -> float:
        """Ids per bag.

        >>> Indices(op=0, rows=10, count=8, unique=2, bags=4, reuse=(0, 0, 2)).pooling
        2.0
        """
        return self.count / self.bags if self.bags else 0.0

    @classmethod
    def summed(cls, found: Sequence[Indices]) -> Indices:
        """Statistics of several tables taken as one.

        >>> Indices.summed([Indices(0, rows=4, count=2, unique=2, bags=2, reuse=(2,))] * 2).count
        4
        """
        longest = max(len(each.reuse) for each in found)
        reuse = tuple(sum(each.reuse[k] for each in found if k < len(each.reuse)) for k in range(longest))
        rows, count, unique, bags = (
            sum(getattr(each, name) for each in found) for name in ("rows", "count", "unique", "bags")
        )
        return cls(found[0].op, rows, count, unique, bags, reuse)


@dataclass(frozen=True, slots=True)
class Content:
    """What a tensor held before the step, as a kind of distribution and its parameters; never its values.

    Enough to fill another tensor alike.

    ====================  =======================================================================================
    kind                  parameters
    ====================  =======================================================================================
    ``values``            ``values``: a handful of numbers, exactly (a step count, a loss scale)
    ``constant``          ``value``
    ``normal``            ``mean``, ``std``, ``low``, ``high``, ``zeros`` (share of exact zeros)
    ``uniform``           ``low``, ``high``, ``zeros``
    ``either``            ``one``, ``other``, ``share`` of the other: targets, masks
    ``triangle``          ``below``, ``above``: a causal mask
    ``arange``            ``start``, ``step``, ``period``
    ``tril``              ``side``, ``offset``, ``row``: pairs below a square's diagonal; coordinate 0, 1 or (2) both
    ``offsets``           ``first``, ``last``, ``steps`` (histogram of the differences in powers of two)
    ``ids``               ``low``, ``high``, ``unique``, ``reuse`` (as in `Indices`), ``sorted``; so many ``nones``
    ====================  =======================================================================================

    >>> Content("constant", {"value": 1.0}).kind
    'constant'
    """

    kind: str
    facts: dict[str, Fact] = field(default_factory=dict)


@dataclass(slots=True)
class Timings:
    """Wall times of unprofiled steps, in milliseconds: the ground truth for predictions."""

    synced_ms: tuple[float, ...] = ()
    """Each with a device synchronization at its end."""
    back_to_back_ms: tuple[float, ...] = ()
    """Without one, so that the host runs ahead."""
    peak_memory_bytes: int | None = None
    """The most bytes that the caching allocator had allocated during them."""


class Tf32(NamedTuple):
    """Whether float32 may run on Tensor Cores (TF32); by default PyTorch does so in convolutions only."""

    gemms: bool = False
    convolutions: bool = True


@dataclass(repr=False)
class Graph:
    """The ops of one rank's step, with kernels and times where known."""

    ops: OpTable
    calls: CallTable = field(default_factory=CallTable.empty)
    kernels: KernelTable = field(default_factory=KernelTable.empty)
    rank: int = 0
    world: int = 1
    device: str = ""
    """The device's own name, for instance NVIDIA H200; empty for a job on the host alone."""
    source: str = ""
    """The file or folder it came from."""
    origin_ns: int = 0
    """Wall-clock time of time zero, in nanoseconds since the epoch: aligns the clocks of ranks."""
    steps: list[Span] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    storages: Mapping[int, Storage] = field(default_factory=dict)
    indices: list[Indices] = field(default_factory=list)
    contents: dict[int, Content] = field(default_factory=dict)
    """Contents of the tensors that existed before the step, by tensor id."""
    programs: tuple[Program, ...] = ()
    """Programs that torch.compile generated, by the number that calls of them name."""
    settings: dict[str, bool | int | str] = field(default_factory=dict)
    """PyTorch settings that select kernels: threads, TF32, cuDNN's benchmark mode."""
    cuda_runtime: int = 0
    """Version of the CUDA runtime that a trace was made with, 12040 for 12.4; 0 where unknown."""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unprofiled: Timings = field(default_factory=Timings)
    profiling_overhead: float = 1.0
    """How many times longer the step took while it was profiled."""
    activities: ActivityTable = field(default_factory=ActivityTable.empty)
    """Annotations and long Python functions, of all steps of the source."""
    profiler_events: Floats = field(default_factory=lambda: np.zeros(0))
    """Times of the profiler's host events, in order: each made the step longer."""
    allocated: tuple[tuple[float, int], ...] = ()
    """Allocated bytes over time, as (time, bytes), where the source has them."""
    recorded_kernels: Mapping[Hashable, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    """For a transformed graph: kernels that calls of the recorded step launched, each with its microseconds, by the
    `signature` of the call."""
    host_gaps: tuple[HostGap, ...] = ()
    """For a graph to be transformed: measured host time that its calls do not have."""
    call_times: Mapping[int, float] = field(default_factory=dict)
    """For the same: measured host microseconds of each op that has a price, and of the pause before it."""
    measured_us: float = 0.0
    """For the same: how long the step took that it was made of."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the reader: what the source lacks, what was assumed or changed."""

    def __repr__(self) -> str:
        """A summary, since the tables are long.

        >>> Graph(OpTable.of([]), rank=3, world=8)
        Graph(rank 3 of 8: 0 ops, 0 kernels)
        """
        return f"Graph(rank {self.rank} of {self.world}: {len(self.ops)} ops, {len(self.kernels)} kernels)"

    @property
    def peak_allocated(self) -> int | None:
        """Most bytes that the caching allocator recorded at once; None where it recorded none."""
        return max((nbytes for _, nbytes in self.allocated), default=None)

    @property
    def title(self) -> str:
        """Its name in messages.

        >>> Graph(OpTable.of([]), source="train.py").title, Graph(OpTable.of([])).title
        ('train.py', 'the step')
        """
        return self.source or "the step"

    @property
    def tf32(self) -> Tf32:
        """The step's TF32 settings; PyTorch's defaults where unknown.

        >>> Graph(OpTable.of([]), settings={"matmul_precision": "high"}).tf32
        Tf32(gemms=True, convolutions=True)
        """
        precision, convolutions = self.settings.get("matmul_precision"), self.settings.get("cudnn_tf32")
        default = Tf32()
        return Tf32(
            default.gemms if precision is None else precision != "highest",
            default.convolutions if convolutions is None else bool(convolutions),
        )

    @property
    def launched_before_us(self) -> float:
        """Device time of kernels launched before the trace began, which belong to no op."""
        orphan = self.kernels.call < 0
        return float((self.kernels.end - self.kernels.start)[orphan].sum())

    @property
    def lies_on_host(self) -> bool:
        """Whether the step has tensors, and none of them on a device.

        >>> from foretrace.graph import Op, Tensor
        >>> x = Tensor((4, 4), "float32", "cpu")
        >>> Graph(OpTable.of([Op("aten::relu", (x,), outputs=(x,))])).lies_on_host, Graph(OpTable.of([])).lies_on_host
        (True, False)
        """
        devices = {tensor.device for op in self.ops for tensor in (*op.tensors, *op.produced)}
        return devices == {"cpu"}

    @property
    def has_times(self) -> bool:
        """Whether anything in it was timed: an execution trace has no times."""
        return any(bool(np.isfinite(table.start).any()) for table in (self.kernels, self.calls, self.ops))

    def shifted(self, us: float) -> Graph:
        """The graph with all times shifted, to align the clocks of ranks.

        >>> Graph(OpTable.of([])).shifted(5.0).origin_ns
        -5000
        """
        return replace(
            self,
            ops=self.ops.shifted(us),
            calls=self.calls.shifted(us),
            kernels=self.kernels.shifted(us),
            activities=self.activities.shifted(us),
            profiler_events=self.profiler_events + us,
            origin_ns=self.origin_ns - round(us * 1000),
            steps=[Span(s.name, s.start + us, s.end + us) for s in self.steps],
            allocated=tuple((t + us, n) for t, n in self.allocated),
        )

    def _launched_between(self, start: float, end: float) -> NDArray[np.bool_]:
        """The kernels that calls of an interval launched; those that ran then, where no launch was recorded.

        Communication whose launch is not in the trace belongs to the launches around it on the device.
        """
        kernels = self.kernels
        known = kernels.call >= 0
        if not known.any():
            return np.asarray((kernels.start >= start) & (kernels.start < end))
        launched = np.append(self.calls.start, np.nan)[kernels.call]
        own = (launched >= start) & (launched < end)
        lost = ~known & (kernels.kind == COLLECTIVE)
        if lost.any() and own.any():
            until = kernels.start[launched >= end].min(initial=np.inf)
            own |= lost & (kernels.start >= kernels.start[own].min()) & (kernels.start < until)
        return np.asarray(own)

    def between(self, start: float, end: float) -> Graph:
        """What was called from ``start`` up to ``end``, and the kernels that these calls launched.

        >>> len(Graph(OpTable.of([])).between(0.0, 1.0).ops)
        0
        """
        called = self.ops.start if self.has_times else np.arange(len(self.ops))
        ops = (called >= start) & (called < end)
        calls = (self.calls.start >= start) & (self.calls.start < end)
        kernels = self._launched_between(start, end)
        new_op, new_call, new_kernel = (np.where(k, np.cumsum(k) - 1, -1) for k in (ops, calls, kernels))

        def moved(rows: np.ndarray, new: np.ndarray) -> np.ndarray:
            return np.where(rows >= 0, new[rows], -1).astype(np.int32) if len(new) else rows

        op_table = self.ops.rows(ops)
        op_table.parent = moved(op_table.parent, new_op)
        call_table = self.calls.rows(calls)
        call_table.op = moved(call_table.op, new_op)
        kernel_table = self.kernels.rows(kernels)
        kernel_table.op, kernel_table.call = moved(kernel_table.op, new_op), moved(kernel_table.call, new_call)
        collectives = [
            replace(
                c, kernel=int(new_kernel[c.kernel]) if c.kernel >= 0 else -1, op=int(new_op[c.op]) if c.op >= 0 else -1
            )
            for c in self.collectives
            if (kernels[c.kernel] if c.kernel >= 0 else c.op >= 0 and ops[c.op])
        ]
        return replace(
            self,
            ops=op_table,
            calls=call_table,
            kernels=kernel_table,
            collectives=collectives,
            indices=[replace(seen, op=int(new_op[seen.op])) for seen in self.indices if ops[seen.op]],
            storages=StorageTable.of(self.storages).within(ops) if self.storages else {},
            steps=[s for s in self.steps if start <= s.start < end],
            allocated=tuple((t, n) for t, n in self.allocated if start <= t < end),
        )


@dataclass
class Job:
    """The graphs of all ranks, on one clock, in rank order.

    Ranks that run the same step share a graph: ``alike`` maps a rank without a graph to the rank whose graph and timing
    it shares.

    >>> half = Job([Graph(OpTable.of([]), rank=0, world=4)], alike={1: 0, 2: 0})
    >>> half.world, half.missing
    (4, [3])
    """

    graphs: list[Graph]
    source: str = ""
    notes: list[str] = field(default_factory=list)
    alike: dict[int, int] = field(default_factory=dict)
    """The rank whose graph is shared, for each rank without one."""

    @property
    def world(self) -> int:
        """Number of ranks of the job, those without a graph included.

        >>> Job([Graph(OpTable.of([]), rank=0, world=8)]).world
        8
        """
        return max(len(self.graphs) + len(self.alike), *(g.world for g in self.graphs), 1)

    @property
    def missing(self) -> list[int]:
        """Ranks without a graph that share no other's."""
        return sorted(set(range(self.world)) - {g.rank for g in self.graphs} - self.alike.keys())


def chosen_step(job: Job, step: str | None) -> str | None:
    """The step asked for, else the one closest to the median length; None where the ranks have none in common.

    The first of several is not chosen by itself: in it profilers still start, and work launched before it runs on.
    """
    lengths = [{span.name: span.ms for span in graph.steps} for graph in job.graphs]
    common = [name for name in (lengths[0] if lengths else {}) if all(name in rank for rank in lengths)]
    if step is None:
        ms = {name: sum(rank[name] for rank in lengths) for name in common}
        middle = sorted(ms.values())[(len(ms) - 1) // 2] if ms else 0.0
        return min(common[1:] or common, key=lambda name: abs(ms[name] - middle), default=None)
    if step not in common:
        has = f"It has {', '.join(common)}." if common else "It marks no steps: leave the step out to see all of it."
        raise ForetraceError(f"{job.source} has no step {step}", has)
    return step


def cut_to_step(graph: Graph, step: str | None) -> tuple[Graph, Graph]:
    """What was called in a step with the kernels it launched, and the same with what ran before those on the device.

    In a trace of one step, kernels launched before the trace began are counted as the step's: they ran in its time.
    In a trace of several they belong to the step before, and matter only for what the step's own had to wait for: also
    those that start after the step, where its host ran ahead.
    """
    span = next((span for span in graph.steps if span.name == step), None)
    if span is None:
        return graph, graph
    cut = graph.between(span.start, span.end)
    launched = np.append(graph.calls.start, -np.inf)[graph.kernels.call]
    if not (graph.kernels.call >= 0).any():  # a trace without launches
        launched = graph.kernels.start
    several = len(graph.steps) > 1
    last = max(span.end, float(cut.kernels.start.max(initial=-np.inf))) if several else span.end
    ran = (graph.kernels.start < last) & (graph.kernels.end > span.start)  # of those without a launch, too
    earlier = np.flatnonzero((launched < span.start) & ran & ~graph._launched_between(span.start, span.end))
    kernels = _with_rows(cut.kernels, graph.kernels, earlier)
    kernels.start = np.maximum(kernels.start, span.start)
    kernels.end = np.maximum(kernels.end, kernels.start)  # clocks of host and device may disagree
    whole = replace(cut, kernels=kernels)
    return (cut if several else whole), whole


def _with_rows(cut: KernelTable, whole: KernelTable, rows: Longs) -> KernelTable:
    """Kernels of a step and after them, so that their rows stay, more of the whole trace's, without a launch."""
    more = whole.rows(rows)
    more.call[:], more.op[:] = -1, -1
    columns = {
        f.name: np.concatenate([getattr(cut, f.name), getattr(more, f.name)]) for f in fields(cut) if f.name != "names"
    }
    return KernelTable(**columns, names=cut.names)
