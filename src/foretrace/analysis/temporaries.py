"""Memory that a call takes only while it runs, as far as its arguments show it: copies and workspaces.

The dispatcher sees what a call returns, not what it allocates inside. Rules for the calls whose temporaries show in the
peak; all others are taken to have none.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from foretrace.graph import Graph, Op, Tensor
from foretrace.graph.tables import Longs

MAKES_SPARSE = ("aten::_sparse_coo_tensor_unsafe", "aten::_sparse_coo_tensor_with_dims_and_tensors")
ADDS_SPARSE = "aten::add_"
LT_WORKSPACE = 1 << 20
"""Workspace that PyTorch gives cuBLASLt for each call."""
SORTED_ABOVE = 3072
"""Embeddings with more indices than this add their gradients after sorting the indices."""
INDEX_BYTES = 8


def inside_ops(graph: Graph) -> Longs:
    """Bytes that each op holds only while it runs.

    >>> from foretrace.graph import OpTable
    >>> turned = Tensor((64, 1024), "float32", "cuda:0", stride=(1, 64))
    >>> inside_ops(Graph(OpTable.of([Op("aten::native_layer_norm", (turned,)), Op("aten::relu", (turned,))])))
    array([262144,      0])
    """
    ops = graph.ops
    inside = np.zeros(len(ops), np.int64)
    matters = ops.names.matching(lambda name: name in RULES)
    rows = np.flatnonzero(matters[ops.name]).tolist()  # ops of traces are costly to create: only these are
    for row in rows:
        op = ops[row]
        if any(tensor.device.startswith("cuda") for tensor in op.tensors):
            inside[row] = RULES[op.name](op)
    if any(name in MAKES_SPARSE for name in ops.names.items):
        _add_sparse(graph, inside)
    return inside


def _add_sparse(graph: Graph, inside: Longs) -> None:
    """A sparse gradient is scaled in a copy of its values, then added."""
    ops = graph.ops
    values: dict[int, int] = {}
    matters = ops.names.matching(lambda name: name in MAKES_SPARSE or name == ADDS_SPARSE)
    for row in np.flatnonzero(matters[ops.name]).tolist():
        op = ops[row]
        if op.name == ADDS_SPARSE:
            inside[row] = sum(values.get(t.id, 0) for t in op.tensors[1:] if t.layout == "sparse_coo")
        else:
            values |= {made.id: t.nbytes for made in op.produced for t in op.tensors[1:2]}


def _dense_bytes(tensor: Tensor) -> int:
    """Bytes of a contiguous copy."""
    return prod(tensor.shape) * tensor.itemsize


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= size
    return tuple(reversed(found))


def is_contiguous(tensor: Tensor) -> bool:
    """Whether elements lie in row-major order.

    >>> is_contiguous(Tensor((2, 1, 3), "float32", "cuda:0", stride=(3, 99, 1)))
    True
    """
    if tensor.stride is None:
        return True
    pairs = zip(tensor.shape, tensor.stride, _strides(tensor.shape))
    return all(size == 1 or step == wanted for size, step, wanted in pairs)


def _is_channels_last(tensor: Tensor) -> bool:
    shape = tensor.shape
    if len(shape) < 4 or tensor.stride is None:
        return False
    order = (0, *range(2, len(shape)), 1)
    moved = Tensor(tuple(shape[d] for d in order), tensor.dtype, tensor.device, tuple(tensor.stride[d] for d in order))
    return is_contiguous(moved)


def _copies(op: Op) -> int:
    """The kernel reads contiguous tensors only: others are copied first."""
    return sum(_dense_bytes(tensor) for tensor in op.tensors if not is_contiguous(tensor))


def _convolution(op: Op) -> int:
    """Tensor Cores want channels last: cuDNN turns tensors of another layout over in its workspace."""
    given, weight = (op.tensors[1], op.tensors[2]) if op.name.endswith("_backward") else op.tensors[:2]
    pointwise, depthwise = prod(weight.shape[2:]) == 1, weight.shape[1] == 1
    if _is_channels_last(given) or _is_channels_last(weight) or pointwise or depthwise:
        return 0
    if op.name.endswith("_backward"):  # the gradients of input and weight, one after the other
        return _dense_bytes(op.tensors[0]) + _dense_bytes(given) + _dense_bytes(weight)
    return _dense_bytes(given) + _dense_bytes(weight)


def _embedding_backward(op: Op) -> int:
    """Indices are sorted, with where they came from, and counted."""
    indices = op.tensors[1] if len(op.tensors) > 1 else op.tensors[0]
    count = prod(indices.shape)
    return 6 * INDEX_BYTES * count if count > SORTED_ABOVE else 0


RULES: dict[str, Callable[[Op], int]] = {
    **dict.fromkeys(
        (
            "aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::native_group_norm",
            "aten::native_group_norm_backward", "aten::_softmax", "aten::_log_softmax", "aten::_softmax_backward_data",
            "aten::_log_softmax_backward_data",
        ),
        _copies,
    ),
    **dict.fromkeys(("aten::convolution", "aten::convolution_backward"), _convolution),
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::addmm": lambda op: LT_WORKSPACE,
}  # fmt: skip
