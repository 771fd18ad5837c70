"""A benchmark as data: input tensors, calls in order, and its peak memory. No torch, no text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from foretrace.graph import Content, Tensor, Value
from foretrace.graph.op import COMPILED_PROGRAM, RESIZE, SIDE_CALLS
from foretrace.graph.programs import Program


class Name(str):
    """A variable of the benchmark."""

    __slots__ = ()


Argument: TypeAlias = "Value | Name"
"""An argument of a call: tensors are names."""
Result: TypeAlias = "Name | list[Result] | None"
"""The variable of a result; None for what is not a tensor, or not a new one."""


@dataclass(slots=True)
class Memory:
    """A storage that exists before the step."""

    name: Name
    nbytes: int
    device: str


@dataclass(slots=True)
class Input:
    """A tensor that exists before the step: its storage and its content."""

    name: Name
    tensor: Tensor
    memory: Memory | None
    """Its storage; None for a sparse tensor, which is made of others."""
    content: Content
    parts: tuple[Name, ...] = ()
    """Indices and values of a sparse tensor."""


@dataclass(slots=True)
class PlanCall:
    """A call of a benchmark: one line of its code.

    ``frees`` are variables deleted right before it, ``ends`` are those that a compiled program takes over, and
    frees once it has used them. Host times are without profiling overhead.
    """

    number: int
    """Its number in the recording; -1 for a call that only the benchmark needs."""
    name: str
    overload: str = ""
    row: int = -1
    """Its row in the graph."""
    args: tuple[Argument, ...] = ()
    kwargs: dict[str, Argument] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    """Variables of the results."""
    made: dict[Name, Tensor] = field(default_factory=dict)
    """Shape, dtype and storage of each of these variables."""
    sized_by_data: bool = False
    """Whether the sizes of its results depend on data, which a benchmark makes up."""
    frees: tuple[Name, ...] = ()
    ends: tuple[Name, ...] = ()
    phase: str = "other"
    module: str = ""
    stream: int = 0
    gap_us: float = 0.0
    """Host time since the call before."""
    host_us: float = 0.0
    """Host time in the call itself, without waiting for the device."""
    waits: bool = False
    """Whether the host waits for the device in it, or before it."""
    device_us: float = 0.0
    took_us: float = 0.0
    """Duration of a collective in the original."""
    rows: tuple[int, ...] = ()
    """Rows of the graph that it stands for, where it is a compiled program."""
    scratch: int = 0
    """Bytes that it holds meanwhile besides its arguments and results, where it is a compiled program."""

    @property
    def is_side_call(self) -> bool:
        """Whether it acts on a stream, a storage or a work without passing the dispatcher."""
        return self.name.startswith(SIDE_CALLS) and self.name != COMPILED_PROGRAM

    @property
    def resized(self) -> tuple[Name, int] | None:
        """Variable and new bytes of a call that resizes a storage; None for others."""
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
    """The benchmark of one rank's step."""

    memories: list[Memory]
    inputs: list[Input]
    calls: list[PlanCall]
    source: str = ""
    rank: int = 0
    world: int = 1
    replayed_ranks: tuple[int, ...] = ()
    """The ranks that are replayed; empty for all."""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Members of each process group, by its name."""
    received: dict[int, Content] = field(default_factory=dict)
    """By number of a collective, the content of its result, where its readers need certain values."""
    settings: dict[str, bool | int | str] = field(default_factory=dict)
    programs: dict[int, Program] = field(default_factory=dict)
    """Compiled programs that calls run, by number."""
    tail_us: float = 0.0
    """Host time after the last call."""
    renumbered: set[int] = field(default_factory=set)
    """Numbers of the storages that exist before the step; a resized one gets another number."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of each storage, by its number in the recording."""
    threads: int = 1
    """Threads that called GEMMs."""
    unowned_us: float = 0.0
    """Device time that none of the calls launched, and that can't be replayed."""
    batch: int | None = None
    """Batch size, where it can be found."""
    whole: bool = True
    """Whether it holds the whole step."""
    notes: list[str] = field(default_factory=list)

    @property
    def before(self) -> set[int]:
        """Storages that exist before the step, by every number they have in it."""
        return {entry.tensor.storage for entry in self.inputs if entry.memory is not None} | self.renumbered

    @property
    def recorded(self) -> list[PlanCall]:
        """The calls that the original made."""
        return [call for call in self.calls if call.number >= 0]


def main_kind(devices: Iterable[str]) -> str:
    """The kind of device that a step runs on: the accelerator if it uses one.

    >>> main_kind(["cpu", "cuda:1", ""]), main_kind(["cpu", "meta"])
    ('cuda', 'cpu')
    """
    kinds = {device.partition(":")[0] for device in devices}
    return min(kinds - {"cpu", "meta", ""}, default="cpu")


def main_device(plan: Plan) -> str:
    """The kind of device that a plan runs on."""
    made = (tensor.device for call in plan.calls for tensor in call.made.values())
    return main_kind([*(memory.device for memory in plan.memories), *made])


@dataclass(frozen=True)
class Footprint:
    """Peak bytes on the main device, and the part that does not shrink with the batch."""

    peak: int
    lasting: int


def footprint(plan: Plan) -> Footprint:
    """Peak memory of a plan: its inputs, and what its calls make until it is freed.

    Results of the shape and dtype of an input are taken for gradients, which do not shrink with the batch.

    >>> from foretrace.graph import Tensor
    >>> t0, t1 = Name("t0"), Name("t1")
    >>> made = {t1: Tensor((8,), "float32", "cpu", (1,), storage=1)}
    >>> relu = PlanCall(0, "aten::relu", args=(t0,), results=(t1,), made=made)
    >>> footprint(Plan([Memory(Name("m0"), 32, "cpu")], [], [relu, PlanCall(1, "aten::mul", frees=(t1,))]))
    Footprint(peak=64, lasting=32)
    """
    held = _MemoryTracker(plan)
    peak = Footprint(held.bytes, held.lasting)
    for call in plan.calls:
        held.follow(call)
        if held.bytes + call.scratch > peak.peak:
            peak = Footprint(held.bytes + call.scratch, held.lasting)
    return peak


class _MemoryTracker:
    """Bytes on the main device, call by call."""

    def __init__(self, plan: Plan) -> None:
        self._main = main_device(plan)
        self._sizes = plan.sizes
        self._forms = {(entry.tensor.shape, entry.tensor.dtype) for entry in plan.inputs}
        self._before = plan.before | {-1}
        self._place: dict[Name, Name | int] = {e.name: e.memory.name for e in plan.inputs if e.memory is not None}
        """The memory of an input, and the storage of a tensor that the step has made."""
        self._held: dict[Name | int, int] = {}
        given = [memory for memory in plan.memories if self._counts(memory.device)]
        self._lasting: set[Name | int] = {memory.name for memory in given}
        self._ended: tuple[Name, ...] = ()
        """Variables that the call before took over."""
        self.bytes = self.lasting = 0
        for memory in given:
            self._hold(memory.name, memory.nbytes)

    def follow(self, call: PlanCall) -> None:
        """Follow what a call frees, resizes and makes."""
        for place in {self._place.get(name, -1) for name in (*self._ended, *call.frees)}:
            if isinstance(place, int) and place in self._held:
                self._hold(place, 0)
                del self._held[place]
        self._ended = call.ends
        if call.resized is not None:
            name, nbytes = call.resized
            if (place := self._place.get(name, -1)) in self._held:
                self._hold(place, nbytes)
        for name, tensor in call.made.items():
            number = self._place[name] = tensor.storage
            if number not in self._before and number not in self._held and self._counts(tensor.device):
                if (tensor.shape, tensor.dtype) in self._forms:
                    self._lasting.add(number)
                self._hold(number, self._sizes.get(number, tensor.nbytes))

    def _counts(self, device: str) -> bool:
        return (device or "cpu").startswith(self._main)

    def _hold(self, place: Name | int, nbytes: int) -> None:
        more = nbytes - self._held.get(place, 0)
        self._held[place] = nbytes
        self.bytes += more
        self.lasting += more if place in self._lasting else 0
