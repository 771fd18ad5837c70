"""A benchmark as data: what is there before the step, and its calls in order. No torch, no text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from foretrace.graph import Content, Tensor, Value
from foretrace.graph.op import RESIZE, SIDE_CALLS
from foretrace.replay.literals import Name

Argument: TypeAlias = "Value | Name"
"""An argument of a call: tensors are names."""
Result: TypeAlias = "Name | list[Result] | None"
"""Where a result goes; None for what is no tensor, or no new one."""


@dataclass(slots=True)
class Memory:
    """A piece of memory that is there before the step."""

    name: Name
    nbytes: int
    device: str


@dataclass(slots=True)
class Input:
    """A tensor that is there before the step: where it lies, and what is in it."""

    name: Name
    tensor: Tensor
    memory: Memory | None
    """Where it lies; None for a sparse tensor, which is made of others."""
    content: Content
    parts: tuple[Name, ...] = ()
    """Indices and values of a sparse tensor."""


@dataclass(slots=True)
class Call:
    """One line of the benchmark.

    ``frees`` are variables that end right before it. Times are those of the original's host, had nobody watched it.
    """

    number: int
    """Which call of the recording it is; -1 for one that only the benchmark needs."""
    name: str
    overload: str = ""
    row: int = -1
    """Its row in the graph."""
    args: tuple[Argument, ...] = ()
    kwargs: dict[str, Argument] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    """Variables that the results go to."""
    made: dict[Name, Tensor] = field(default_factory=dict)
    """What each of these variables is like."""
    sized_by_data: bool = False
    """Whether its results are as large as the data has it, which is made up."""
    frees: tuple[Name, ...] = ()
    phase: str = "other"
    module: str = ""
    stream: int = 0
    gap_us: float = 0.0
    """Host time since the call before."""
    host_us: float = 0.0
    """Host time in the call itself, less what it waits for the device."""
    waits: bool = False
    """Whether the host waits for the device in it, or before it."""
    device_us: float = 0.0
    took_us: float = 0.0
    """How long a collective was under way, in the original."""

    @property
    def is_side_call(self) -> bool:
        """Whether it steers a stream, a storage or a work without passing the dispatcher."""
        return self.name.startswith(SIDE_CALLS)

    @property
    def resized(self) -> tuple[Name, int] | None:
        """Of a call that gives a storage another size: a variable on it, and its bytes. None for others."""
        match self.args:
            case (Name() as name, int(nbytes)) if self.name == RESIZE:
                return name, nbytes
        return None

    @property
    def variables(self) -> Iterator[Name]:
        """Every variable that it reads."""
        yield from _names_in(self.args)
        yield from _names_in(tuple(self.kwargs.values()))

    @property
    def new(self) -> Iterator[Name]:
        """Every variable that it makes."""
        yield from _names_in(self.results)


def _names_in(values: object) -> Iterator[Name]:
    if isinstance(values, Name):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _names_in(value)


@dataclass(slots=True)
class Plan:
    """What a benchmark of one rank's step consists of."""

    memories: list[Memory]
    inputs: list[Input]
    calls: list[Call]
    source: str = ""
    rank: int = 0
    world: int = 1
    kept: tuple[int, ...] = ()
    """The ranks that are replayed together; none for all."""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Members of each process group, by its name."""
    received: dict[int, Content] = field(default_factory=dict)
    """What collectives must bring, by the number of the call, where its readers ask for something of their own."""
    settings: dict[str, bool | int | str] = field(default_factory=dict)
    tail_us: float = 0.0
    """Host time after the last call."""
    renumbered: set[int] = field(default_factory=set)
    """Numbers of storages from before the step: each time one gets another size, it gets another number."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of each storage, by its number in the recording."""
    threads: int = 1
    """Threads that called matrix products."""
    unowned_us: float = 0.0
    """Device time of the step that none of its calls launched, and that nobody can replay."""
    batch: int | None = None
    """Samples in the step's batch, where that shows."""
    whole: bool = True
    """Whether all of the step is in it."""
    notes: list[str] = field(default_factory=list)

    @property
    def before(self) -> set[int]:
        """Storages that were there before the step, by every number they have in it."""
        return {entry.tensor.storage for entry in self.inputs if entry.memory is not None} | self.renumbered

    @property
    def recorded(self) -> list[Call]:
        """The calls that the original made."""
        return [call for call in self.calls if call.number >= 0]
