"""Memory that a call takes only while it runs, as far as its arguments show it: copies and workspaces.

The dispatcher sees what a call returns, not what it allocates inside. Rules for the calls whose temporaries show in the
peak; all others are taken to have none.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from foretrace.graph.graph import Graph
from foretrace.graph.op import Op, Tensor, is_contiguous
from foretrace.graph.operators import SPARSE_CONSTRUCTORS
from foretrace.graph.tables import Longs

ADDS_SPARSE = "aten::add_"
LT_WORKSPACE = 1 << 20
"""Workspace that PyTorch gives cuBLASLt for each call."""
SORTED_ABOVE = 3072
"""Embeddings with more indices than this add their gradients after sorting the indices."""
INDEX_BYTES = 8

OPTIONAL = ("aten::convolution", "aten::convolution_backward")
"""Calls that take another algorithm where there is no memory for their workspace."""
EARLY = ("aten::_cudnn_rnn",)
"""Calls that allocate their workspace before what they return."""


def inside_ops(graph: Graph) -> Longs:
    """Bytes that each op holds only while it runs.

    >>> from foretrace.graph.tables import OpTable
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
    if any(name in SPARSE_CONSTRUCTORS for name in ops.names.items):
        _add_sparse(graph, inside)
    return inside


def _add_sparse(graph: Graph, inside: Longs) -> None:
    """A sparse gradient is scaled in a copy of its values, then added."""
    ops = graph.ops
    values: dict[int, int] = {}
    matters = ops.names.matching(lambda name: name in SPARSE_CONSTRUCTORS or name == ADDS_SPARSE)
    for row in np.flatnonzero(matters[ops.name]).tolist():
        op = ops[row]
        if op.name == ADDS_SPARSE:
            inside[row] = sum(values.get(t.id, 0) for t in op.tensors[1:] if t.layout == "sparse_coo")
        else:
            values |= {made.id: t.nbytes for made in op.produced for t in op.tensors[1:2]}


def _dense_bytes(tensor: Tensor) -> int:
    """Bytes of a contiguous copy."""
    return prod(tensor.shape) * tensor.itemsize


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
    """Indices are sorted, with where they came from, and counted; a gradient that is not contiguous is copied."""
    indices = op.tensors[1] if len(op.tensors) > 1 else op.tensors[0]
    count = prod(indices.shape)
    return _copies(op) + (6 * INDEX_BYTES * count if count > SORTED_ABOVE else 0)


def _column_sums(op: Op) -> int:
    """Partial sums of thread blocks that share columns, as in the gradient of a bias.

    PyTorch splits long columns between thread blocks (``setReduceConfig`` in ATen's ``Reduce.cuh``), which keep their
    sums in global memory: in a buffer that has a place for every thread of a block, and not only for every column.

    >>> rows = Tensor((25600, 256), "float32", "cuda:0", stride=(256, 1))
    >>> _column_sums(Op("aten::sum", (rows, [0], True))) / 2**20
    50.0
    """
    given, *rest = op.args
    dims = rest[0] if rest and isinstance(rest[0], (list, tuple)) else ()
    if not isinstance(given, Tensor) or not given.shape or not is_contiguous(given):
        return 0
    reduced = sorted(dim % len(given.shape) for dim in dims if isinstance(dim, int))
    if not reduced or reduced != list(range(len(reduced))) or len(reduced) == len(given.shape):
        return 0  # rows are summed up by the threads of a block
    values, columns = prod(given.shape[: len(reduced)]), prod(given.shape[len(reduced) :])
    vector = next(n for n in (4, 2, 1) if given.shape[-1] % n == 0)
    threads, wide = REDUCE_THREADS // vector, max(columns // vector, 1)
    width = min(_power_of_two(wide), 32)
    height = min(_power_of_two(values), threads // width)
    width = min(_power_of_two(min(wide, threads)), threads // height)
    if values < min(height * LEAST_VALUES, MOST_VALUES):
        return 0
    each, grid = -(-values // height), -(-wide // width)
    target = REDUCE_SMS * (THREADS_A_SM // (width * height))
    if each < MOST_VALUES or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-each // LEAST_VALUES)), -(-each // MOST_VALUES))
    return max(given.itemsize, 4) * columns * blocks * width * vector if blocks > 1 else 0


REDUCE_THREADS, LEAST_VALUES, MOST_VALUES, THREADS_A_SM = 512, 16, 256, 2048
"""Constants of ``setReduceConfig``: threads of a block, and values that each sums up at least and at most."""
REDUCE_SMS = 132
"""Of an H100 or H200: others split long columns a little more, or less."""


def _power_of_two(number: int) -> int:
    """The largest that is not above a number."""
    return int(1 << max(number, 1).bit_length() - 1)


def _recurrent(op: Op) -> int:
    """The gates of all steps and layers, which cuDNN works out before it goes through the steps."""
    given, *weights = op.tensors
    gates = {weight.shape[0] for weight in weights if len(weight.shape) == 2 and given.shape}
    matrices = [weight for weight in weights if len(weight.shape) == 2 and weight.shape[0] == max(gates, default=0)]
    layers = len(matrices) // 2  # one for the input, one for the state
    return layers * max(gates, default=0) * prod(given.shape[:-1]) * given.itemsize


def _encoder_layer(op: Op) -> int:
    """The wider layer of the feed-forward network, or queries, keys and values; both at the fused layer's fast path."""
    given = op.tensors[0]
    widest = max((tensor.shape[0] for tensor in op.tensors[1:] if len(tensor.shape) == 2), default=0)
    return prod(given.shape[:-1]) * widest * given.itemsize


RULES: dict[str, Callable[[Op], int]] = {
    **dict.fromkeys(
        (
            "aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::native_group_norm",
            "aten::native_group_norm_backward", "aten::_softmax", "aten::_log_softmax", "aten::_softmax_backward_data",
            "aten::_log_softmax_backward_data", "aten::upsample_bilinear2d_backward",
            "aten::upsample_nearest2d_backward", "aten::upsample_bicubic2d_backward",
        ),
        _copies,
    ),
    **dict.fromkeys(("aten::convolution", "aten::convolution_backward"), _convolution),
    **dict.fromkeys(("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"), _recurrent),
    **dict.fromkeys(("aten::sum", "aten::mean"), _column_sums),
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
    "aten::addmm": lambda op: LT_WORKSPACE,
}  # fmt: skip
"""Readers that decode arguments on demand have those of these calls at hand: every report of a step looks at them."""
