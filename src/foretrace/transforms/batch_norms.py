"""Batch norms as PyTorch computes them on a GPU for the types at hand: by cuDNN, or by its own kernels."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.graph.graph import Graph
from foretrace.graph.op import Constant, Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.step import Row, assembled

CUDNN, NATIVE = "aten::cudnn_batch_norm", "aten::native_batch_norm"
BACK = "_backward"
NODES = {CUDNN: "CudnnBatchNormBackward0", NATIVE: "NativeBatchNormBackward0"}
ROOM = "aten::empty"
"""PyTorch calls it before its own kernels, to make a tensor of no bytes where cuDNN would keep something."""
MEAN = 5
"""The place of the mean among the tensors of both backwards; a norm with weights and statistics takes as many."""


def suits_cudnn(data: str, weight: str) -> bool:
    """Whether cuDNN's batch norm takes data and weights of these types.

    >>> suits_cudnn("float32", "float32"), suits_cudnn("float16", "float16"), suits_cudnn("float16", "float32")
    (True, False, True)
    """
    return "bfloat16" not in (data, weight) and (data != "float16" or weight == "float32")


def suited_batch_norms(graph: Graph, before: Graph) -> Graph:
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
    return assembled(graph, swap.rows) if swap.rooms else graph


def _is_norm(op: Op) -> bool:
    return op.name in (CUDNN, NATIVE) and len(op.tensors) == MEAN and op.tensors[0].device.startswith("cuda")


def _suited(op: Op) -> str:
    data, weight = op.tensors[:2]
    return CUDNN if suits_cudnn(data.dtype, weight.dtype) else NATIVE


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
        self.rows: list[Row] = []
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
        self.rows.append(Row(op, row))

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
        self.rows.append(Row(made, -1))
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
