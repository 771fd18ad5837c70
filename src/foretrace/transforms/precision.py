"""The same calls in another floating type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Constant
from foretrace.graph.tensor import ITEMSIZE, Tensor
from foretrace.transforms.attention import suited_attention
from foretrace.transforms.batch_norms import suited_batch_norms
from foretrace.transforms.casts import without_idle_casts
from foretrace.transforms.linked import Call, Linked, filled, is_sequence, slots_in
from foretrace.transforms.on_meta import META, Made, UnknownOnMetaError
from foretrace.transforms.script import Retyped, Script
from foretrace.transforms.step import flattened, opened

SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
FLOATING = tuple(SHORT.values())
"""Types that stand for one another. Eight-bit ones do not: their operators take scales."""
MAKERS = frozenset(
    f"aten::{name}" for name in ("empty", "empty_strided", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")
)
"""Operators that are given no tensor, and make one of PyTorch's usual type unless they are told another."""


def floating(name: str) -> str:
    """The type of that name.

    >>> floating("bf16"), floating("float32")
    ('bfloat16', 'float32')
    """
    found = SHORT.get(name, name)
    if found not in FLOATING:
        raise ForetraceError(f"a step can't run in {name!r}", f"Types are {', '.join([*SHORT, *FLOATING])}.")
    return found


def in_precision(graph: Graph, dtype: str) -> Graph:
    """The step with its weights and data in one floating type; tensors without dimensions, counts and scales, stay.

    What the calls make of them follows PyTorch's rules: a norm of bfloat16 keeps its statistics in float32. Casts stay,
    also where they cast nothing any more.
    """
    graph, ops = opened(graph)
    step = Linked(ops)
    now = {slot: _in(tensor, dtype) for slot, tensor in step.inputs.items()}
    calls = []
    for call in step.calls:
        args, kwargs = _cast(call.args, dtype), _cast(call.kwargs, dtype)
        if call.op.name in MAKERS and kwargs.get("dtype") is None and any(map(_changes, call.made.values())):
            kwargs["dtype"] = Constant("dtype", dtype)
        now.update(_made(call, args, kwargs, now, dtype))
        if call.row >= 0:
            calls.append(Retyped(call, tuple(args), kwargs))
    whole = [call.call for call in calls]
    shares = _shares(step, now)
    made = Script(graph, whole, whole).over([_roomy(call, shares) for call in calls], now)
    made.notes.append(f"floating tensors are {dtype}, whatever they were")
    return made


def _made(call: Call, args: Any, kwargs: Any, now: dict[int, Tensor], dtype: str) -> dict[int, Tensor]:
    blanket = {slot: _in(tensor, dtype) for slot, tensor in call.made.items()}
    if call.row < 0 or call.op.is_side_call or not call.made:
        return blanket
    try:
        given = (filled(args, now.__getitem__), filled(kwargs, now.__getitem__))
        result = META.called(call.op.name, call.op.overload, *given)
    except (UnknownOnMetaError, ValueError):
        return blanket
    slots = [slot for slot in slots_in(call.results) if slot in call.made]
    told = list(_told(result))
    if len(slots) != len(told):
        return blanket
    return {
        slot: replace(call.made[slot], dtype=made.dtype) if call.made[slot].dtype in FLOATING else call.made[slot]
        for slot, made in zip(slots, told)
    }


def _shares(step: Linked, now: dict[int, Tensor]) -> dict[int, float]:
    """How many times as large each storage is in which tensors have another type now."""
    was = step.inputs | {slot: tensor for call in step.calls for slot, tensor in call.made.items()}
    return {
        tensor.storage: now[slot].itemsize / tensor.itemsize
        for slot, tensor in was.items()
        if tensor.storage >= 0 and now[slot].dtype != tensor.dtype
    }


def _roomy(retyped: Retyped, shares: dict[int, float]) -> Retyped:
    """A call that gives a storage another size, with the size that it must have now; any other as it is."""
    if retyped.call.op.resized is None:
        return retyped
    old, new, nbytes = retyped.call.op.resized
    return retyped._replace(args=(old, new, round(nbytes * shares.get(new, shares.get(old, 1.0)))))


def _told(value: Any) -> Iterable[Made]:
    if isinstance(value, Made):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _told(item)


def _changes(tensor: Tensor) -> bool:
    return tensor.dtype in FLOATING and bool(tensor.shape)


def _in(tensor: Tensor, dtype: str) -> Tensor:
    return replace(tensor, dtype=dtype) if _changes(tensor) and dtype in ITEMSIZE else tensor


def _cast(value: Any, dtype: str) -> Any:
    """An argument that names a floating type, with the new one."""
    if isinstance(value, Constant):
        return Constant("dtype", dtype) if value.kind == "dtype" and value.value in FLOATING else value
    if is_sequence(value):
        return [_cast(item, dtype) for item in value]
    return {key: _cast(item, dtype) for key, item in value.items()} if isinstance(value, dict) else value


def dtype(graph: Graph, name: str) -> Graph:
    """The step in another floating type, as if its weights and data had been made in it: nothing is cast any more."""
    graph = flattened(graph)
    made = suited_batch_norms(in_precision(graph, floating(name)), graph)
    return suited_attention(without_idle_casts(made))
