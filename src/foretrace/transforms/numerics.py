"""Numerics of a step: autocast, and the whole step in another floating dtype, with no-op casts removed and batch norms
selected again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph import Graph
from foretrace.graph.op import FLOATING, ITEMSIZE, Constant, Op, Tensor
from foretrace.graph.operators import cudnn_takes_batch_norm
from foretrace.transforms.dataflow import Dataflow, SlotCall, is_sequence
from foretrace.transforms.meta_device import MetaUnsupportedError, meta_results
from foretrace.transforms.retrace import retrace
from foretrace.transforms.step import EditedCall, StepTemplate, assemble, editable_step, flatten
from foretrace.transforms.structure.attention import select_attention
from foretrace.transforms.structure.insert_remove import remove_calls

LOWER_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "bfloat16": "bfloat16", "float16": "float16"}


def autocast(graph: Graph, name: str) -> Graph:
    """The float32 step with its forward under autocast to ``"bf16"`` or ``"fp16"``.

    PyTorch itself decides what runs in the lower dtype, what is cast, and what backward does, since the forward is
    retraced. Weights and gradients stay float32; weights are cast once. Attention is the one that PyTorch selects. The
    gradient scaling that fp16 needs is not added.
    """
    dtype = parse_autocast_dtype(name)
    graph = flatten(graph)
    for row, op in enumerate(graph.ops):
        lower = next((tensor.dtype for tensor in op.tensors if tensor.dtype in LOWER_DTYPES.values()), None)
        if lower:
            raise ForetraceError(
                f"call {row}, {op.name}, takes {lower}: the step is not in float32", "Set dtype=fp32 before it."
            )
    on_gpu = any(tensor.device.startswith("cuda") for op in graph.ops for tensor in op.tensors)

    def context() -> AbstractContextManager[Any]:
        import torch

        opened: AbstractContextManager[Any] = torch.autocast("cuda" if on_gpu else "cpu", getattr(torch, dtype))
        return opened

    made = retrace(graph, "autocast", context)
    made.notes.append(f"the forward runs under autocast to {dtype}")
    if dtype == "float16":
        made.notes.append("the calls of a GradScaler are not added")
    return made


def parse_autocast_dtype(name: str) -> str:
    """The full name of a dtype that autocast casts to."""
    if name not in LOWER_DTYPES:
        raise ForetraceError(f"autocast does not cast to {name!r}", f"It casts to {', '.join(LOWER_DTYPES)}.")
    return LOWER_DTYPES[name]


SHORT_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
FACTORIES = frozenset(
    f"aten::{name}" for name in ("empty", "empty_strided", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")
)
"""Operators that create a tensor of PyTorch's default dtype unless they are given one."""
CAST = "aten::_to_copy"


def dtype(graph: Graph, name: str) -> Graph:
    """The step in another floating dtype, as if its weights and data had been created in it, without casts.

    Attention and batch norms are those that PyTorch selects for the dtype.
    """
    graph = flatten(graph)
    made = select_batch_norms(with_dtype(graph, parse_dtype(name)), graph)
    return select_attention(remove_noop_casts(made))


def parse_dtype(name: str) -> str:
    """The full name of a floating dtype."""
    found = SHORT_NAMES.get(name, name)
    if found not in FLOATING:
        raise ForetraceError(f"a step can't run in {name!r}", f"Dtypes are {', '.join([*SHORT_NAMES, *FLOATING])}.")
    return found


def with_dtype(graph: Graph, dtype: str) -> Graph:
    """The step with its weights and data in one floating dtype, except 0-dim tensors (counters, scales).

    Dtypes of results follow PyTorch's rules: a bfloat16 norm keeps its statistics in float32. Casts stay, even those
    that have no effect any more.
    """
    graph, ops = editable_step(graph)
    step = Dataflow(ops)
    now = {slot: _converted(tensor, dtype) for slot, tensor in step.inputs.items()}
    changed = []
    for call in step.calls:
        args, kwargs = _with_dtype_arguments(call.args, dtype), _with_dtype_arguments(call.kwargs, dtype)
        if call.op.name in FACTORIES and kwargs.get("dtype") is None and any(map(_converts, call.made.values())):
            kwargs["dtype"] = Constant("dtype", dtype)
        now.update(_results(call, args, kwargs, now, dtype))
        if call.row >= 0:
            changed.append(replace(call, args=tuple(args), kwargs=kwargs))
    factors = {  # by which storages grow whose tensors have another dtype now
        tensor.storage: now[slot].itemsize / tensor.itemsize
        for slot, tensor in step.tensors.items()
        if tensor.storage >= 0 and now[slot].dtype != tensor.dtype
    }
    template = StepTemplate(graph, changed, changed)
    made = template.instantiate([_with_resize(call, factors) for call in changed], now)
    made.notes.append(f"all floating tensors are {dtype}")
    return made


def _results(call: SlotCall, args: Any, kwargs: Any, now: dict[int, Tensor], dtype: str) -> dict[int, Tensor]:
    all_converted = {slot: _converted(tensor, dtype) for slot, tensor in call.made.items()}
    if call.row < 0 or call.op.is_side_call or not call.made:
        return all_converted
    try:
        results = meta_results(call, args, kwargs, now)
    except (MetaUnsupportedError, ValueError):
        return all_converted
    known = {slot: made for slot, made in results.items() if call.made[slot].dtype in FLOATING}
    kept = {slot: tensor for slot, tensor in call.made.items() if slot in results}
    return all_converted | kept | {slot: replace(call.made[slot], dtype=made.dtype) for slot, made in known.items()}


def _with_resize(call: SlotCall, factors: dict[int, float]) -> SlotCall:
    """A storage resize with its new size; any other call as it is."""
    if call.op.resized is None:
        return call
    old, new, nbytes = call.op.resized
    return replace(call, args=(old, new, round(nbytes * factors.get(new, factors.get(old, 1.0)))))


def _converts(tensor: Tensor) -> bool:
    return tensor.dtype in FLOATING and bool(tensor.shape)


def _converted(tensor: Tensor, dtype: str) -> Tensor:
    return replace(tensor, dtype=dtype) if _converts(tensor) and dtype in ITEMSIZE else tensor


def _with_dtype_arguments(value: Any, dtype: str) -> Any:
    """Arguments with the new dtype for each floating dtype among them."""
    if isinstance(value, Constant):
        return Constant("dtype", dtype) if value.kind == "dtype" and value.value in FLOATING else value
    if is_sequence(value):
        return [_with_dtype_arguments(item, dtype) for item in value]
    if isinstance(value, dict):
        return {key: _with_dtype_arguments(item, dtype) for key, item in value.items()}
    return value


def remove_noop_casts(graph: Graph) -> Graph:
    """The step without casts to the dtype, device and layout that a tensor already has."""
    graph = flatten(graph)
    removed = set()
    for row, op in enumerate(graph.ops):
        if op.name == CAST and len(op.tensors) == len(op.produced) == 1:
            given, made = op.tensors[0], op.produced[0]
            if (given.dtype, given.device, given.layout) == (made.dtype, made.device, made.layout):
                removed.add(row)
    return remove_calls(graph, removed)


CUDNN, NATIVE = "aten::cudnn_batch_norm", "aten::native_batch_norm"
BACKWARD = "_backward"
NODES = {CUDNN: "CudnnBatchNormBackward0", NATIVE: "NativeBatchNormBackward0"}
RESERVE = "aten::empty"
"""The call before native batch norm that creates an empty tensor in place of cuDNN's reserve space."""
MEAN = 5
"""Position of the saved mean among the tensors of both backwards; a norm with weights and statistics has as many."""


def select_batch_norms(graph: Graph, before: Graph) -> Graph:
    """The flat step with the batch norms, cuDNN's or native, that PyTorch selects for its dtypes.

    Batch norms that were not the selected ones before stay; ``before`` has the same calls in the dtypes that they had.
    """
    swap = _BatchNormSwap()
    for row, (was, op) in enumerate(zip(before.ops, graph.ops)):
        is_norm = op.name in (CUDNN, NATIVE) and len(op.tensors) == MEAN and op.tensors[0].device.startswith("cuda")
        swap.add(row, op, is_norm and op.name == _selected(was) != _selected(op))
    return assemble(graph, swap.calls) if swap.reserves else graph


def _selected(op: Op) -> str:
    data, weight = op.tensors[:2]
    return CUDNN if cudnn_takes_batch_norm(data.dtype, weight.dtype) else NATIVE


class _BatchNormSwap:
    """Calls with some batch norms replaced by the other implementation."""

    def __init__(self) -> None:
        self.calls: list[EditedCall] = []
        self.reserves: dict[int, Tensor] = {}
        """cuDNN's reserve space for backward, by the storage of the saved mean, of each norm that was replaced."""
        self._freed_early: set[int] = set()
        """Storages of reserves that native batch norm did not use after forward."""

    def add(self, row: int, op: Op, swap: bool) -> None:
        """Append a call, or its replacement."""
        op = op.__copy__()
        op.frees = self._frees(op.frees)
        if swap:
            op = self._by_cudnn(op) if op.name == NATIVE else self._by_native(op)
        elif op.name.endswith(BACKWARD) and op.name.removesuffix(BACKWARD) in (CUDNN, NATIVE):
            reserve = self.reserves.get(op.tensors[MEAN].storage)
            op = op if reserve is None else _swapped_backward(op, reserve)
        self.calls.append(EditedCall(op, row))

    def _by_cudnn(self, op: Op) -> Op:
        made = self.calls.pop().op
        reserve, mean = made.produced[0], op.produced[1]
        op.name, op.outputs = CUDNN, (*op.outputs, reserve)
        op.frees, op.entered = (*made.frees, *op.frees), made.entered + op.entered
        self.reserves[mean.storage] = reserve
        self._freed_early.add(reserve.storage)
        return op

    def _by_native(self, op: Op) -> Op:
        *results, reserve = op.produced
        made = op.__copy__()
        made.name, made.overload, made.args, made.outputs = RESERVE, "memory_format", ([0],), (reserve,)
        kinds = ("dtype", reserve.dtype), ("layout", reserve.layout), ("device", reserve.device)
        made.kwargs = {kind: Constant(kind, value) for kind, value in kinds}
        self.calls.append(EditedCall(made))
        op.name, op.outputs, op.frees, op.entered = NATIVE, tuple(results), (), 0
        self.reserves[results[1].storage] = reserve
        return op

    def _frees(self, storages: Sequence[int]) -> tuple[int, ...]:
        """Storages to free; a reserve that cuDNN now keeps for backward is freed with the saved mean."""
        late = [self.reserves[mean].storage for mean in storages if mean in self.reserves]
        others = [number for number in storages if number not in self._freed_early]
        return (*others, *(reserve for reserve in late if reserve in self._freed_early))


def _swapped_backward(op: Op, reserve: Tensor) -> Op:
    if op.name == NATIVE + BACKWARD:
        gradient, data, *others = op.args[: MEAN + 2]
        op.name, op.args = CUDNN + BACKWARD, (data, gradient, *others, op.args[MEAN + 3], reserve)
    else:
        data, gradient, *others = op.args[: MEAN + 2]
        op.name = NATIVE + BACKWARD
        op.args = (gradient, data, *others, True, op.args[MEAN + 2], [True, True, True])
    op.node = NODES[op.name.removesuffix(BACKWARD)]
    return op
