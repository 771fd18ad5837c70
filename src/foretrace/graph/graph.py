"""One rank's step, and the job that all ranks' steps make."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from foretrace.graph.tables import CallTable, Floats, KernelTable, OpTable
from foretrace.graph.tensor import Storage

MOST_RANKS = 1 << 20
"""No job has more: a file that says so is damaged, or means harm."""


class Span(NamedTuple):
    """A named stretch of time, in microseconds since the graph's origin."""

    name: str
    start: float
    end: float

    @property
    def ms(self) -> float:
        """Its length.

        >>> Span("ProfilerStep#3", 0.0, 2500.0).ms
        2.5
        """
        return (self.end - self.start) / 1e3


@dataclass(slots=True)
class Collective:
    """One rank's part in a collective: which, in which group, how much, and the kernel and op that did it."""

    kind: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send, recv, barrier."""
    group: str
    nbytes: int
    kernel: int
    """Row in the kernel table; -1 for a backend that runs on the host."""
    op: int
    """Row in the op table; -1 where unknown."""
    ranks: tuple[int, ...] = ()
    """Members of the group; empty where the source does not say."""
    dtype: str = ""
    peer: int = -1
    """Of a send or a recv, the rank at the other end; -1 where the source does not say, or for other kinds."""


@dataclass(slots=True)
class Indices:
    """How an op read rows of a table by integer ids: counts and the reuse histogram, never the ids.

    ``reuse[k]`` is the number of distinct rows that were hit between 2^k and 2^(k+1) - 1 times.
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


@dataclass(slots=True)
class Timings:
    """Wall times of steps with nothing attached, in milliseconds: the truth a forecast is held against."""

    synced_ms: tuple[float, ...] = ()
    """Each with a device sync at its end."""
    back_to_back_ms: tuple[float, ...] = ()
    """Without one: the host runs ahead."""
    peak_memory_bytes: int | None = None
    """The most that the device's allocator had given out during them."""


class Tf32(NamedTuple):
    """Whether float32 may be computed on the matrix units; left alone, PyTorch does so in convolutions only."""

    products: bool = False
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
    """What the device calls itself, for instance NVIDIA H200; empty for a job on the host alone."""
    source: str = ""
    """The file or folder it came from."""
    origin_ns: int = 0
    """Wall-clock time of time zero, in nanoseconds since the epoch: puts ranks on one clock."""
    steps: list[Span] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    storages: dict[int, Storage] = field(default_factory=dict)
    indices: list[Indices] = field(default_factory=list)
    contents: dict[int, Content] = field(default_factory=dict)
    """What tensors held that were there before the step, by tensor id."""
    settings: dict[str, bool | int | str] = field(default_factory=dict)
    """Switches of PyTorch that choose other kernels: threads, TF32, cuDNN's benchmark mode."""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    plain: Timings = field(default_factory=Timings)
    slowdown: float = 1.0
    """How many times longer the step took while it was watched for times."""
    marks: Floats = field(default_factory=lambda: np.zeros(0))
    """When the profiler noted something on the host, in order: each note made the step longer."""
    allocated: tuple[tuple[float, int], ...] = ()
    """Bytes the allocator had given out over time, where the source says."""
    seen: Mapping[Hashable, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    """For an edited graph, whose own kernels nobody measured: the kernels that calls launched when they were
    recorded, each with its microseconds, by the `signature` of the call."""
    notes: list[str] = field(default_factory=list)
    """What the source lacks or what was assumed, for the reader."""

    def __repr__(self) -> str:
        """In short: its tables are long.

        >>> Graph(OpTable.of([]), rank=3, world=8)
        Graph(rank 3 of 8: 0 ops, 0 kernels)
        """
        return f"Graph(rank {self.rank} of {self.world}: {len(self.ops)} ops, {len(self.kernels)} kernels)"

    @property
    def title(self) -> str:
        """What to call it in a message.

        >>> Graph(OpTable.of([]), source="train.py").title, Graph(OpTable.of([])).title
        ('train.py', 'the step')
        """
        return self.source or "the step"

    @property
    def tf32(self) -> Tf32:
        """What the step's settings say of TF32; PyTorch's defaults where its source does not tell.

        >>> Graph(OpTable.of([]), settings={"matmul_precision": "high"}).tf32
        Tf32(products=True, convolutions=True)
        """
        precision, convolutions = self.settings.get("matmul_precision"), self.settings.get("cudnn_tf32")
        usual = Tf32()
        return Tf32(
            usual.products if precision is None else precision != "highest",
            usual.convolutions if convolutions is None else bool(convolutions),
        )

    @property
    def launched_before_us(self) -> float:
        """Device time whose launch came before the trace began, so that nobody can say whose it is."""
        orphan = self.kernels.call < 0
        return float((self.kernels.end - self.kernels.start)[orphan].sum())

    def shifted(self, us: float) -> Graph:
        """The same graph with all its times moved: to put ranks on one clock.

        >>> Graph(OpTable.of([])).shifted(5.0).origin_ns
        -5000
        """
        return replace(
            self,
            ops=self.ops.shifted(us),
            calls=self.calls.shifted(us),
            kernels=self.kernels.shifted(us),
            marks=self.marks + us,
            origin_ns=self.origin_ns - round(us * 1000),
            steps=[Span(s.name, s.start + us, s.end + us) for s in self.steps],
            allocated=tuple((t + us, n) for t, n in self.allocated),
        )

    def between(self, start: float, end: float) -> Graph:
        """What was called from ``start`` up to ``end``, and the kernels that these calls launched.

        >>> len(Graph(OpTable.of([])).between(0.0, 1.0).ops)
        0
        """
        ops = (self.ops.start >= start) & (self.ops.start < end)
        calls = (self.calls.start >= start) & (self.calls.start < end)
        kernels = (self.kernels.call >= 0) & calls[self.kernels.call] if len(calls) else self.kernels.call >= 0
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
                c,
                kernel=int(new_kernel[c.kernel]) if c.kernel >= 0 else -1,
                op=int(new_op[c.op]) if c.op >= 0 else -1,
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
            steps=[s for s in self.steps if start <= s.start < end],
            allocated=tuple((t, n) for t, n in self.allocated if start <= t < end),
        )


@dataclass
class Job:
    """The graphs of all ranks, on one clock, in rank order.

    Ranks that do the same need not have a graph each: ``alike`` names, for a rank without one, the rank whose graph
    it shares. Such a rank is as early and as late as that one.

    >>> half = Job([Graph(OpTable.of([]), rank=0, world=4)], alike={1: 0, 2: 0})
    >>> half.world, half.missing
    (4, [3])
    """

    graphs: list[Graph]
    source: str = ""
    notes: list[str] = field(default_factory=list)
    alike: dict[int, int] = field(default_factory=dict)
    """For a rank without a graph of its own, the rank whose graph it shares."""

    @property
    def world(self) -> int:
        """Number of ranks the job ran on, those without a graph included.

        >>> Job([Graph(OpTable.of([]), rank=0, world=8)]).world
        8
        """
        return max(len(self.graphs) + len(self.alike), *(g.world for g in self.graphs), 1)

    @property
    def missing(self) -> list[int]:
        """Ranks of the job that nobody brought a trace of, and that share no other's."""
        return sorted(set(range(self.world)) - {g.rank for g in self.graphs} - self.alike.keys())


# --- was graph.content: What a tensor held before the step, in a few figures: enough to make another like it, never its values.

Fact: TypeAlias = "bool | int | float | list[int] | list[float]"


@dataclass(frozen=True, slots=True)
class Content:
    """A kind of content and its figures.

    ====================  =======================================================================================
    kind                  figures
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
