"""The most memory that a plan holds at once on its device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foretrace.replay.literals import Name
from foretrace.replay.plan import Call, Plan


def main_kind(devices: Iterable[str]) -> str:
    """The kind of device that a step uses: an accelerator where it uses one at all.

    >>> main_kind(["cpu", "cuda:1", ""]), main_kind(["cpu", "meta"])
    ('cuda', 'cpu')
    """
    kinds = {device.partition(":")[0] for device in devices}
    return min(kinds - {"cpu", "meta", ""}, default="cpu")


def main_device(plan: Plan) -> str:
    """The kind of device that a plan uses."""
    made = (tensor.device for call in plan.calls for tensor in call.made.values())
    return main_kind([*(memory.device for memory in plan.memories), *made])


@dataclass(frozen=True)
class Footprint:
    """Bytes on the step's own device: at its peak, and what of that stays the same in a smaller batch."""

    peak: int
    lasting: int


def footprint(plan: Plan) -> Footprint:
    """What is there before the step, and what its calls make until it is freed.

    What calls make in the form of something that was there before is taken for gradients: no batch makes them smaller.

    >>> from foretrace.graph import Tensor
    >>> from foretrace.replay.literals import Name
    >>> from foretrace.replay.plan import Call, Memory
    >>> t0, t1 = Name("t0"), Name("t1")
    >>> made = {t1: Tensor((8,), "float32", "cpu", (1,), storage=1)}
    >>> relu = Call(0, "aten::relu", args=(t0,), results=(t1,), made=made)
    >>> footprint(Plan([Memory(Name("m0"), 32, "cpu")], [], [relu, Call(1, "aten::mul", frees=(t1,))]))
    Footprint(peak=64, lasting=32)
    """
    held = _Held(plan)
    most = Footprint(held.bytes, held.lasting)
    for call in plan.calls:
        held.follow(call)
        if held.bytes > most.peak:
            most = Footprint(held.bytes, held.lasting)
    return most


class _Held:
    """What is held on the step's own device, from call to call."""

    def __init__(self, plan: Plan) -> None:
        self._main = main_device(plan)
        self._sizes = plan.sizes
        self._forms = {(entry.tensor.shape, entry.tensor.dtype) for entry in plan.inputs}
        self._before = plan.before | {-1}
        self._given = {memory.name: memory.nbytes for memory in plan.memories if self._counts(memory.device)}
        self._made: dict[int, int] = {}
        self._gradients: set[int] = set()
        self._memory = {entry.name: entry.memory.name for entry in plan.inputs if entry.memory is not None}
        self._storage: dict[Name, int] = {}
        self.bytes = sum(self._given.values())
        self.lasting = self.bytes

    def follow(self, call: Call) -> None:
        """Let a call end what it ends, and make what it makes."""
        for number in {self._storage.get(name, -1) for name in call.frees} & set(self._made):
            self._hold(number, 0)
            del self._made[number]
        if call.resized is not None:
            self._resize(*call.resized)
        for name, tensor in call.made.items():
            number = self._storage[name] = tensor.storage
            if number not in self._before and number not in self._made and self._counts(tensor.device):
                if (tensor.shape, tensor.dtype) in self._forms:
                    self._gradients.add(number)
                self._hold(number, self._sizes.get(number, tensor.nbytes))

    def _counts(self, device: str) -> bool:
        return (device or "cpu").startswith(self._main)

    def _resize(self, name: Name, nbytes: int) -> None:
        memory = self._memory.get(name)
        if memory is None:
            if self._storage.get(name, -1) in self._made:
                self._hold(self._storage[name], nbytes)
        elif memory in self._given:
            more = nbytes - self._given[memory]
            self._given[memory] = nbytes
            self.bytes, self.lasting = self.bytes + more, self.lasting + more

    def _hold(self, storage: int, nbytes: int) -> None:
        """Hold so many bytes of a storage that the step has made."""
        more = nbytes - self._made.get(storage, 0)
        self._made[storage] = nbytes
        self.bytes += more
        self.lasting += more if storage in self._gradients else 0
