"""Memory that a training process takes of its device: what PyTorch's allocator reserves from the first step on.

The step is run through the simulated allocator as a process would run it: weights and inputs first, then a first step
that makes gradients and the optimizer's state, then steps that find these. What is reserved beyond what is allocated is
what rounding, splitting and caching lose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from foretrace.analysis.memory import TEMPORARY, on_device, storage_kinds
from foretrace.graph import Graph
from foretrace.graph.tables import Longs, StorageTable
from foretrace.graph.temporaries import EARLY, OPTIONAL, inside_ops
from foretrace.simulation.caching_allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemoryError

STEPS = 3
"""Steps that are simulated: the first makes the optimizer's state, the second runs with it, the third as the second."""
MADE_IN_FIRST_STEP = ("optimizer state", "gradients")
WORKSPACES, FRAGMENTATION = "workspaces", "fragmentation"


class Workspace(NamedTuple):
    """Memory that a library allocates when it is first used on a stream, and keeps."""

    row: int
    """The op that uses it first."""
    nbytes: int
    stream: int = 0


class AllocatorEvent(NamedTuple):
    """An allocation, or the end of one."""

    is_allocation: bool
    address: int
    nbytes: int
    stream: int
    kind: str
    row: int
    """Op of the step; -1 before its first."""


@dataclass
class ReservedMemory:
    """Memory that the caching allocator reserves and has allocated at the peak, in bytes."""

    reserved: int
    allocated: int
    """At the most, which may be at another moment."""
    by_kind: dict[str, int]
    """What is allocated at the most, by what it is for, and what is lost beside it; the sum is ``reserved``."""
    failed_at: int | None = None
    """Row of the op whose allocation did not fit into the limit; None where all fit."""
    asked: int = 0
    """Bytes that it asked for."""
    events: list[AllocatorEvent] = field(default_factory=list, repr=False)
    """Of all simulated steps, where they were wanted."""
    segments: dict[int, int] = field(default_factory=dict, repr=False)
    """Bytes of each segment at the end, by address."""


def simulate_memory(
    graphs: Sequence[Graph],
    workspaces: Iterable[Workspace] = (),
    settings: AllocatorSettings | None = None,
    limit: int | None = None,
    with_events: bool = False,
) -> ReservedMemory | None:
    """What PyTorch's allocator reserves over the first steps of a process; None where nothing is known of memory.

    Parameters
    ----------
    graphs
        Steps in order, each the whole step of the same rank. One alone is run several times.
    workspaces
        What libraries allocate in the first of them.
    settings
        The allocator's settings; PyTorch's own where there are none.
    limit
        Bytes that the process may reserve; None for any number.
    with_events
        Whether to keep each allocation.

    >>> from foretrace.graph import Op, OpTable, Storage
    >>> weight, made = Storage(0, 3 << 20, "cuda:0", held=True), Storage(1, 600, "cuda:0", birth=0, death=1)
    >>> step = Graph(OpTable.of([Op("aten::mm"), Op("aten::mm")]), storages={0: weight, 1: made})
    >>> found = simulate_memory([step])
    >>> found.reserved >> 20, found.allocated
    (22, 3146752)
    """
    run = _Run(CachingAllocator(settings, limit), with_events)
    steps = [_Step.of(graph) for graph in graphs]
    if not any(len(step.held) for step in steps):
        return None
    failed_at, asked = None, 0
    try:
        run.build(steps[0])
        repeats = STEPS if len(graphs) == 1 and len(graphs[0].steps) < 2 else 1
        for number, step in enumerate(steps * repeats):
            run.step(step, list(workspaces) if number == 0 else [], first=number == 0)
    except OutOfMemoryError as error:
        failed_at, asked = run.row, int(error.args[0])
    allocator = run.allocator
    return ReservedMemory(
        reserved=allocator.peak_reserved,
        allocated=allocator.peak_allocated,
        by_kind={
            **{kind: nbytes for kind, nbytes in run.fullest.items() if nbytes},
            FRAGMENTATION: allocator.peak_reserved - allocator.peak_allocated,
        },
        failed_at=failed_at,
        asked=asked,
        events=run.events,
        segments=allocator.segments,
    )


class _Step(NamedTuple):
    """Allocations and frees of a step, by row of its ops."""

    held: StorageTable
    kinds: list[str]
    streams: list[int]
    first_use: Longs
    """Row at which each storage from before the step is first seen."""
    births: dict[int, list[int]]
    deaths: dict[int, list[int]]
    inside: dict[int, int]
    optional: set[int]
    """Rows that do without what they would allocate inside, where there is no memory for it."""
    early: set[int]
    """Rows that allocate it before their results."""

    @classmethod
    def of(cls, graph: Graph) -> _Step:
        held = on_device(graph)
        order = np.argsort(held.id, kind="stable")
        columns = {name: getattr(held, name)[order] for name in ("id", "nbytes", "device", "birth", "death", "held")}
        by_id = replace(held, **columns)
        named = storage_kinds(graph)
        births: dict[int, list[int]] = {}
        deaths: dict[int, list[int]] = {}
        for index, (birth, death) in enumerate(zip(by_id.birth.tolist(), by_id.death.tolist())):
            if birth >= 0:
                births.setdefault(birth, []).append(index)
            if death >= 0:
                deaths.setdefault(death, []).append(index)
        stream = np.zeros(len(graph.ops), np.int32) if graph.ops.stream is None else graph.ops.stream
        inside = inside_ops(graph)
        rows = np.flatnonzero(inside).tolist()
        name = {row: graph.ops.names[graph.ops.name[row]] for row in rows}  # without creating the ops
        return cls(
            held=by_id,
            kinds=[named[number] for number in by_id.id.tolist()],
            streams=[int(stream[birth]) if 0 <= birth < len(stream) else 0 for birth in by_id.birth.tolist()],
            # Numbers are given in the order of first use.
            first_use=np.maximum(np.maximum.accumulate(by_id.birth), 0) if len(by_id) else by_id.birth,
            births=births,
            deaths=deaths,
            inside={row: int(inside[row]) for row in rows},
            optional={row for row in rows if name[row] in OPTIONAL},
            early={row for row in rows if name[row] in EARLY},
        )

    def number(self, index: int) -> int:
        """Number of a storage in its graph."""
        return int(self.held.id[index])

    def rows(self, extra: Iterable[int]) -> Iterator[int]:
        """Rows at which something is allocated or freed, in order."""
        yield from sorted({*self.births, *self.deaths, *self.inside, *extra})


class _Run:
    """A process that runs steps, one after the other."""

    def __init__(self, allocator: CachingAllocator, with_events: bool) -> None:
        self.allocator, self.with_events = allocator, with_events
        self.row = -1
        self.events: list[AllocatorEvent] = []
        self.fullest: dict[str, int] = {}
        self._now: dict[str, int] = {}
        self._persistent: dict[int, Block] = {}
        """Blocks of storages from before the step, by their numbers."""
        self._left: list[tuple[Block, str]] = []
        """Blocks that the step before left, which this one does not know."""

    def build(self, step: _Step) -> None:
        """Allocate what is there before the first step."""
        for index in np.flatnonzero(step.held.birth < 0).tolist():
            if step.kinds[index] not in MADE_IN_FIRST_STEP:
                self._persistent[step.number(index)] = self._of_storage(step, index)

    def step(self, step: _Step, workspaces: list[Workspace], first: bool) -> None:
        """Run a step; in the first one, what is made once is made."""
        self.row = -1
        for block, kind in self._left:
            self._free(block, kind)
        living, late = self._from_before(step, first)
        for self.row in step.rows([*late, *(workspace.row for workspace in workspaces)]):
            for index in step.deaths.get(self.row, ()):
                if index in living:
                    self._free(living.pop(index), step.kinds[index])
                    self._persistent.pop(step.number(index), None)
            for index in late.get(self.row, ()):
                living[index] = self._of_storage(step, index)
                if step.held.death[index] < 0:
                    self._persistent[step.number(index)] = living[index]
            for workspace in workspaces:
                if workspace.row == self.row:
                    self._allocate(workspace.nbytes, workspace.stream, WORKSPACES)
            early = self._allocate(step.inside[self.row], 0, TEMPORARY) if self.row in step.early else None
            for index in step.births.get(self.row, ()):
                living[index] = self._of_storage(step, index)
            if early:
                self._free(early, TEMPORARY)
            elif self.row in step.inside:
                self._while_running(step.inside[self.row], self.row in step.optional)
        self._left = [(block, step.kinds[index]) for index, block in living.items() if step.held.birth[index] >= 0]

    def _while_running(self, nbytes: int, optional: bool) -> None:
        """Allocate what a call holds only while it runs."""
        try:
            self._free(self._allocate(nbytes, 0, TEMPORARY), TEMPORARY)
        except OutOfMemoryError:
            if not optional:
                raise

    def _from_before(self, step: _Step, first: bool) -> tuple[dict[int, Block], dict[int, list[int]]]:
        """Blocks that the step finds, and by row the storages from before it that are still to be made."""
        living: dict[int, Block] = {}
        late: dict[int, list[int]] = {}
        for index in np.flatnonzero(step.held.birth < 0).tolist():
            block = self._persistent.get(step.number(index))
            if block is not None:
                living[index] = block
            elif step.held.death[index] < 0 or not first:  # gradients of the step before: the first step has none
                late.setdefault(int(step.first_use[index]), []).append(index)
        return living, late

    def _of_storage(self, step: _Step, index: int) -> Block:
        return self._allocate(int(step.held.nbytes[index]), step.streams[index], step.kinds[index])

    def _allocate(self, nbytes: int, stream: int, kind: str) -> Block:
        fullest = self.allocator.peak_allocated
        block = self.allocator.allocate(nbytes, stream)
        self._now[kind] = self._now.get(kind, 0) + block.nbytes
        if self.allocator.peak_allocated > fullest:
            self.fullest = dict(self._now)
        if self.with_events:
            self.events.append(AllocatorEvent(True, block.address, block.nbytes, stream, kind, self.row))
        return block

    def _free(self, block: Block, kind: str) -> None:
        self._now[kind] -= block.nbytes
        if self.with_events:
            self.events.append(AllocatorEvent(False, block.address, block.nbytes, 0, kind, self.row))
        self.allocator.free(block)
