"""The most memory that a plan holds at once on its device."""

from __future__ import annotations

from foretrace.replay.plan import Plan


def main_device(plan: Plan) -> str:
    """The kind of device that the step uses: an accelerator where it uses one at all."""
    used = {memory.device.partition(":")[0] for memory in plan.memories}
    used |= {tensor.device.partition(":")[0] for call in plan.calls for tensor in call.made.values()}
    return next(iter(sorted(used - {"cpu", "meta", ""})), "cpu")


def peak_memory(plan: Plan) -> int:
    """Bytes of what is there before the step, and of what its calls make until it is freed.

    >>> from foretrace.graph import Tensor
    >>> from foretrace.replay.literals import Name
    >>> from foretrace.replay.plan import Call, Memory
    >>> t0, t1 = Name("t0"), Name("t1")
    >>> made = {t1: Tensor((8,), "float32", "cpu", (1,), storage=1)}
    >>> relu = Call(0, "aten::relu", args=(t0,), results=(t1,), made=made)
    >>> peak_memory(Plan([Memory(Name("m0"), 32, "cpu")], [], [relu, Call(1, "aten::mul", frees=(t1,))]))
    64
    """
    main = main_device(plan)
    held = peak = sum(memory.nbytes for memory in plan.memories if (memory.device or "cpu").startswith(main))
    there = {entry.tensor.storage for entry in plan.inputs} | {-1}
    living: dict[int, int] = {}
    storage: dict[str, int] = {}
    for call in plan.calls:
        for name in call.frees:
            held -= living.pop(storage.get(name, -1), 0)
        for name, tensor in call.made.items():
            number = storage[name] = tensor.storage
            if number not in there and number not in living and (tensor.device or "cpu").startswith(main):
                living[number] = plan.sizes.get(number, tensor.nbytes)
                held += living[number]
        peak = max(peak, held)
    return peak
