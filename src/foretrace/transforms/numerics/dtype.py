"""The same calls in another floating type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Constant, Op
from foretrace.graph.operators import cudnn_takes_batch_norm
from foretrace.graph.tensor import FLOATING, ITEMSIZE, Tensor
from foretrace.transforms.dataflow import Call, Dataflow, is_sequence, slots_in, substitute
from foretrace.transforms.meta_device import META, MetaTensor, MetaUnsupportedError
from foretrace.transforms.step import ChangedCall, EditedCall, StepTemplate, assemble, editable_step, flatten
from foretrace.transforms.structure.attention import select_attention
from foretrace.transforms.structure.insert_remove import remove_calls

SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
MAKERS = frozenset(
    f"aten::{name}" for name in ("empty", "empty_strided", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")
)
"""Operators that are given no tensor, and make one of PyTorch's usual type unless they are told another."""


def parse_dtype(name: str) -> str:
    """The type of that name.

    >>> parse_dtype("bf16"), parse_dtype("float32")
    ('bfloat16', 'float32')
    """
    found = SHORT.get(name, name)
    if found not in FLOATING:
        raise ForetraceError(f"a step can't run in {name!r}", f"Types are {', '.join([*SHORT, *FLOATING])}.")
    return found


def with_dtype(graph: Graph, dtype: str) -> Graph:
    """The step with its weights and data in one floating type; tensors without dimensions, counts and scales, stay.

    What the calls make of them follows PyTorch's rules: a norm of bfloat16 keeps its statistics in float32. Casts stay,
    also where they cast nothing any more.
    """
    graph, ops = editable_step(graph)
    step = Dataflow(ops)
    now = {slot: _in(tensor, dtype) for slot, tensor in step.inputs.items()}
    calls = []
    for call in step.calls:
        args, kwargs = _cast(call.args, dtype), _cast(call.kwargs, dtype)
        if call.op.name in MAKERS and kwargs.get("dtype") is None and any(map(_changes, call.made.values())):
            kwargs["dtype"] = Constant("dtype", dtype)
        now.update(_made(call, args, kwargs, now, dtype))
        if call.row >= 0:
            calls.append(ChangedCall(call, tuple(args), kwargs))
    whole = [call.call for call in calls]
    shares = _shares(step, now)
    made = StepTemplate(graph, whole, whole).instantiate([_roomy(call, shares) for call in calls], now)
    made.notes.append(f"floating tensors are {dtype}, whatever they were")
    return made


def _made(call: Call, args: Any, kwargs: Any, now: dict[int, Tensor], dtype: str) -> dict[int, Tensor]:
    blanket = {slot: _in(tensor, dtype) for slot, tensor in call.made.items()}
    if call.row < 0 or call.op.is_side_call or not call.made:
        return blanket
    try:
        given = (substitute(args, now.__getitem__), substitute(kwargs, now.__getitem__))
        result = META.called(call.op.name, call.op.overload, *given)
    except (MetaUnsupportedError, ValueError):
        return blanket
    slots = [slot for slot in slots_in(call.results) if slot in call.made]
    told = list(_told(result))
    if len(slots) != len(told):
        return blanket
    return {
        slot: replace(call.made[slot], dtype=made.dtype) if call.made[slot].dtype in FLOATING else call.made[slot]
        for slot, made in zip(slots, told)
    }


def _shares(step: Dataflow, now: dict[int, Tensor]) -> dict[int, float]:
    """How many times as large each storage is in which tensors have another type now."""
    was = step.inputs | {slot: tensor for call in step.calls for slot, tensor in call.made.items()}
    return {
        tensor.storage: now[slot].itemsize / tensor.itemsize
        for slot, tensor in was.items()
        if tensor.storage >= 0 and now[slot].dtype != tensor.dtype
    }


def _roomy(retyped: ChangedCall, shares: dict[int, float]) -> ChangedCall:
    """A call that gives a storage another size, with the size that it must have now; any other as it is."""
    if retyped.call.op.resized is None:
        return retyped
    old, new, nbytes = retyped.call.op.resized
    return retyped._replace(args=(old, new, round(nbytes * shares.get(new, shares.get(old, 1.0)))))


def _told(value: Any) -> Iterable[MetaTensor]:
    if isinstance(value, MetaTensor):
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
    graph = flatten(graph)
    made = select_batch_norms(with_dtype(graph, parse_dtype(name)), graph)
    return select_attention(remove_noop_casts(made))


# --- was transforms.casts: Casts that cast nothing any more.

CAST = "aten::_to_copy"


def remove_noop_casts(graph: Graph) -> Graph:
    """The step without casts to the type, the device and the layout that a tensor already has.

    >>> from foretrace.graph import OpTable, Tensor
    >>> x, y, z = (Tensor((4,), "float32", "cpu", (1,), id=number, storage=number) for number in range(3))
    >>> step = Graph(OpTable.of([Op(CAST, (x,), outputs=(y,)), Op("aten::relu", (y,), outputs=(z,))]))
    >>> [(op.name, op.tensors[0].id) for op in remove_noop_casts(step).ops]
    [('aten::relu', 0)]
    """
    graph = flatten(graph)
    return remove_calls(graph, {row for row, op in enumerate(graph.ops) if _is_idle(op)})


def _is_idle(op: Op) -> bool:
    if op.name != CAST or len(op.tensors) != 1 or len(op.produced) != 1:
        return False
    given, made = op.tensors[0], op.produced[0]
    return (given.dtype, given.device, given.layout) == (made.dtype, made.device, made.layout)


# --- was transforms.batch_norms: Batch norms as PyTorch computes them on a GPU for the types at hand: by cuDNN, or by its own kernels.

CUDNN, NATIVE = "aten::cudnn_batch_norm", "aten::native_batch_norm"
BACK = "_backward"
NODES = {CUDNN: "CudnnBatchNormBackward0", NATIVE: "NativeBatchNormBackward0"}
ROOM = "aten::empty"
"""PyTorch calls it before its own kernels, to make a tensor of no bytes where cuDNN would keep something."""
MEAN = 5
"""The place of the mean among the tensors of both backwards; a norm with weights and statistics takes as many."""


def select_batch_norms(graph: Graph, before: Graph) -> Graph:
    """The step with batch norms that suit its types, where those that it has suited the types that it had.

    Parameters
    ----------
    graph
        The step, flat.
    before
        The same calls in the types that they had.
    """
    swap = _Swap()
    for row, (was, op) in enumerate(zip(before.ops, graph.ops)):
        swap.add(row, op, _is_norm(op) and op.name == _suited(was) != _suited(op))
    return assemble(graph, swap.rows) if swap.rooms else graph


def _is_norm(op: Op) -> bool:
    return op.name in (CUDNN, NATIVE) and len(op.tensors) == MEAN and op.tensors[0].device.startswith("cuda")


def _suited(op: Op) -> str:
    data, weight = op.tensors[:2]
    return CUDNN if cudnn_takes_batch_norm(data.dtype, weight.dtype) else NATIVE


class _Swap:
    """Calls, some of whose batch norms are of the other kind now.

    Attributes
    ----------
    rows
        The calls so far.
    rooms
        What cuDNN keeps for backward, by the storage of the mean, for each norm that was swapped.
    """

    def __init__(self) -> None:
        self.rows: list[EditedCall] = []
        self.rooms: dict[int, Tensor] = {}
        self._rooms_before: set[int] = set()
        """Storages of rooms that nobody read after the norm."""

    def add(self, row: int, op: Op, swap: bool) -> None:
        """Put a call behind the others, or what takes its place."""
        op = op.__copy__()
        op.frees = self._freed(op.frees)
        if swap:
            op = self._by_cudnn(op) if op.name == NATIVE else self._by_pytorch(op)
        elif op.name.endswith(BACK) and op.name.removesuffix(BACK) in (CUDNN, NATIVE):
            room = self.rooms.get(op.tensors[MEAN].storage)
            op = op if room is None else _backward(op, room)
        self.rows.append(EditedCall(op, row))

    def _by_cudnn(self, op: Op) -> Op:
        made = self.rows.pop().op
        room, mean = made.produced[0], op.produced[1]
        op.name, op.outputs = CUDNN, (*op.outputs, room)
        op.frees, op.entered = (*made.frees, *op.frees), made.entered + op.entered
        self.rooms[mean.storage] = room
        self._rooms_before.add(room.storage)
        return op

    def _by_pytorch(self, op: Op) -> Op:
        *results, room = op.produced
        made = op.__copy__()
        made.name, made.overload, made.args, made.outputs = ROOM, "memory_format", ([0],), (room,)
        kinds = ("dtype", room.dtype), ("layout", room.layout), ("device", room.device)
        made.kwargs = {kind: Constant(kind, value) for kind, value in kinds}
        self.rows.append(EditedCall(made, -1))
        op.name, op.outputs, op.frees, op.entered = NATIVE, tuple(results), (), 0
        self.rooms[results[1].storage] = room
        return op

    def _freed(self, storages: Sequence[int]) -> tuple[int, ...]:
        """Rooms that cuDNN keeps are free when its means are."""
        late = [self.rooms[mean].storage for mean in storages if mean in self.rooms]
        kept = [number for number in storages if number not in self._rooms_before]
        return (*kept, *(room for room in late if room in self._rooms_before))


def _backward(op: Op, room: Tensor) -> Op:
    if op.name == NATIVE + BACK:
        gradient, data, *others = op.args[: MEAN + 2]
        op.name, op.args = CUDNN + BACK, (data, gradient, *others, op.args[MEAN + 3], room)
    else:
        data, gradient, *others = op.args[: MEAN + 2]
        op.name = NATIVE + BACK
        op.args = (gradient, data, *others, True, op.args[MEAN + 2], [True, True, True])
    op.node = NODES[op.name.removesuffix(BACK)]
    return op
