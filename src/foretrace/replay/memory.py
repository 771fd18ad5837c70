"""The most memory that a plan holds at once on its device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foretrace.replay.plan import Plan


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
    main = main_device(plan)
    before = sum(memory.nbytes for memory in plan.memories if (memory.device or "cpu").startswith(main))
    there = {entry.tensor.storage for entry in plan.inputs} | {-1}
    forms = {(entry.tensor.shape, entry.tensor.dtype) for entry in plan.inputs}
    most, held, gradients = Footprint(before, before), before, 0
    living: dict[int, tuple[int, int]] = {}
    storage: dict[str, int] = {}
    for call in plan.calls:
        for name in call.frees:
            nbytes, of_gradient = living.pop(storage.get(name, -1), (0, 0))
            held, gradients = held - nbytes, gradients - of_gradient
        for name, tensor in call.made.items():
            number = storage[name] = tensor.storage
            if number not in there and number not in living and (tensor.device or "cpu").startswith(main):
                nbytes = plan.sizes.get(number, tensor.nbytes)
                living[number] = nbytes, nbytes if (tensor.shape, tensor.dtype) in forms else 0
                held, gradients = held + nbytes, gradients + living[number][1]
        if held > most.peak:
            most = Footprint(held, before + gradients)
    return most
