"""The same step in another floating type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from foretrace.graph import Constant, ForetraceError, Tensor
from foretrace.graph.tensor import ITEMSIZE
from foretrace.replay.plan import Argument, Plan

SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
FLOATING = tuple(SHORT.values())
"""Types that stand for one another. Eight-bit ones do not: their operators take scales."""


def floating(name: str) -> str:
    """The type of that name.

    >>> floating("bf16"), floating("float32")
    ('bfloat16', 'float32')
    """
    found = SHORT.get(name, name)
    if found not in FLOATING:
        raise ForetraceError(f"a step can't run in {name!r}", f"Types are {', '.join([*SHORT, *FLOATING])}.")
    return found


def in_precision(plan: Plan, dtype: str) -> Plan:
    """The plan with every floating tensor in one type; counts and scales, which have no dimension, stay as they are.

    >>> from foretrace.graph import Content
    >>> from foretrace.replay.literals import Name
    >>> from foretrace.replay.plan import Call, Input, Memory
    >>> memory = Memory(Name("m0"), 32, "cpu")
    >>> given = Input(Name("t0"), Tensor((8,), "float32", "cpu", (1,), storage=0), memory, Content("constant"))
    >>> cast = Call(0, "aten::_to_copy", args=(Name("t0"),), kwargs={"dtype": Constant("dtype", "float32")})
    >>> plan = in_precision(Plan([memory], [given], [cast], sizes={0: 32}), "bfloat16")
    >>> plan.inputs[0].tensor.dtype, plan.memories[0].nbytes, plan.calls[0].kwargs["dtype"].value
    ('bfloat16', 16, 'bfloat16')
    """
    made = [tensor for call in plan.calls for tensor in call.made.values()]
    ratio = _ratios([*(entry.tensor for entry in plan.inputs), *made], dtype)
    for entry in plan.inputs:
        if entry.memory is not None and entry.tensor.storage in ratio:
            entry.memory.nbytes = int(
                plan.sizes.get(entry.tensor.storage, entry.memory.nbytes) * ratio[entry.tensor.storage]
            )
        entry.tensor = _tensor(entry.tensor, dtype)
    for call in plan.calls:
        call.args = tuple(_argument(value, dtype) for value in call.args)
        call.kwargs = {key: _argument(value, dtype) for key, value in call.kwargs.items()}
        call.made = {name: _tensor(tensor, dtype) for name, tensor in call.made.items()}
    plan.sizes = {number: int(size * ratio.get(number, 1.0)) for number, size in plan.sizes.items()}
    plan.notes.append(f"floating tensors are {dtype}, whatever they were")
    return plan


def _ratios(tensors: Iterable[Tensor], dtype: str) -> dict[int, float]:
    """By how much storages grow that hold nothing but floating tensors."""
    largest: dict[int, float] = {}
    for tensor in tensors:
        changed = ITEMSIZE[dtype] / tensor.itemsize if _changes(tensor) else 1.0
        largest[tensor.storage] = max(largest.get(tensor.storage, 0.0), changed)
    return largest


def _changes(tensor: Tensor) -> bool:
    return tensor.dtype in FLOATING and bool(tensor.shape)


def _tensor(tensor: Tensor, dtype: str) -> Tensor:
    return replace(tensor, dtype=dtype) if _changes(tensor) else tensor


def _argument(value: Argument, dtype: str) -> Argument:
    if isinstance(value, Constant):
        return Constant("dtype", dtype) if value.kind == "dtype" and value.value in FLOATING else value
    if isinstance(value, list):
        return [_argument(item, dtype) for item in value]
    return value
