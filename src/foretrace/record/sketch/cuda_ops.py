"""Functions that run other ops on a GPU (Hopper or newer) than on the CPU, for sketches in a build without CUDA.

`ON_CUDA` has a replacement for each function of torch whose C++ code asks for the device, or that has a kernel on one
device only: attention, norms, dropout, recurrent networks. `OWN_RESULTS` and `OTHER_RESULTS` are ops whose results on a
GPU PyTorch's fake kernels do not tell.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._prims_common import compute_elementwise_output_strides
from torch.fx.experimental.proxy_tensor import set_original_aten_op
from torch.nn.modules._functions import SyncBatchNorm

from foretrace.graph import Tensor
from foretrace.graph.operators import attention_backends, cudnn_takes_batch_norm
from foretrace.record.sketch.cuda_losses import HALF, LOSS_RESULTS, LOSSES_ON_CUDA
from foretrace.record.sketch.cuda_rnn import RECURRENT_ON_CUDA, RECURRENT_RESULTS, rnn_forward

aten: Any = torch.ops.aten
C: Any = torch._C
ATTENTION_CODES = {"math": 0, "flash": 1, "efficient": 2, "cudnn": 3}
"""Members of ``torch.nn.attention.SDPBackend``."""
ORDER_ON_HOPPER = [3, 1, 2, 0]
MASK_ALIGNMENT = 8
"""In elements, of the rows of a mask that the memory-efficient attention is given."""
MAX_CUDNN_BATCH = {True: 880801, False: 65535}
"""Largest batch that cuDNN's batch norm takes, in training and in evaluation."""
MAX_FRAMES = 40
"""Between a call and the Python function of PyTorch that makes it."""


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The attention that PyTorch chooses on a GPU among those that are enabled: cuDNN's, flash, efficient, in steps.

    >>> q = torch.empty(1, 2, 8, 64, dtype=torch.bfloat16, device="meta")
    >>> attention(q, q, q, is_causal=True).shape
    torch.Size([1, 2, 8, 64])
    """
    if any(t.layout == torch.jagged for t in (query, key, value)):  # nested tensors choose by themselves
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    chosen = _backend(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, training)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = torch.scalar_tensor(-torch.inf, dtype=query.dtype)
        attn_mask = torch.where(attn_mask, 0.0, hidden)
    if chosen == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, attn_mask, training, dropout_p, is_causal, False, scale=scale
        )[0]
    if chosen == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if chosen == "math":
        return _step_by_step(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is not None:
        attn_mask = _aligned(attn_mask).expand(query.size(0), query.size(1), query.size(-2), key.size(-2))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, training, dropout_p, is_causal, scale=scale
    )[0]


def _backend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout_p: float,
    is_causal: bool, enable_gqa: bool, training: bool,
) -> str:  # fmt: skip
    """The first implementation in PyTorch's order that is enabled and takes the call."""
    q, k, v = (_described(t) for t in (query, key, value))
    possible = attention_backends(q, k, v, _described(mask) if mask is not None else None, is_causal, dropout_p)
    if not enable_gqa and not query.size(1) == key.size(1) == value.size(1):
        possible = ["math"]
    if any(t.stride(-1) != 1 and t.size(-1) != 1 for t in (query, key, value)):
        possible = ["math"]
    if mask is not None and mask.stride(-1) != 1:
        possible = ["math"]
    elif (
        mask is not None and mask.requires_grad and training
    ):  # as a recording on the H200 shows: a bias that is learned
        possible = [each for each in possible if each in ("efficient", "math")]
    deterministic = torch.are_deterministic_algorithms_enabled()
    enabled = {
        "cudnn": C._get_cudnn_sdp_enabled()
        and not (deterministic and not torch.is_deterministic_algorithms_warn_only_enabled()),
        "flash": C._get_flash_sdp_enabled(),
        "efficient": C._get_mem_efficient_sdp_enabled(),
        "math": C._get_math_sdp_enabled(),
    }
    order = C._get_sdp_priority_order() if hasattr(C, "_get_sdp_priority_order") else ORDER_ON_HOPPER
    usable = [name for name in possible if enabled[name]]
    if not usable:
        raise RuntimeError("No available kernel. Aborting execution.")
    return min(usable, key=lambda name: order.index(ATTENTION_CODES[name]))


def _described(tensor: torch.Tensor) -> Tensor:
    # torch.compile may trace a size as a symbol: its example decides, and the size stays a symbol.
    sizes = tuple(size if isinstance(size, int) else int(size.node.hint) for size in tensor.shape)
    return Tensor(sizes, str(tensor.dtype).removeprefix("torch."))


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """A mask with aligned rows: a view of a padded one, if it has none."""
    if all(stride % MASK_ALIGNMENT == 0 for stride in mask.stride()[:-1]):
        return mask
    size = mask.size(-1)
    return F.pad(mask, (0, MASK_ALIGNMENT - size % MASK_ALIGNMENT))[..., :size]


def _step_by_step(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout_p: float,
    is_causal: bool, scale: float | None, enable_gqa: bool,
) -> torch.Tensor:  # fmt: skip
    """GEMMs and a softmax in float32, regardless of autocast: PyTorch's own steps but for dropout's kernel."""
    if not dropout_p:
        return aten._scaled_dot_product_attention_math(
            query, key, value, mask, 0.0, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    given, root = query.dtype, (scale if scale is not None else query.size(-1) ** -0.5) ** 0.5
    if given in HALF and not C._get_math_sdp_allow_fp16_bf16_reduction():
        query, key, value = (t.to(torch.float32) for t in (query, key, value))
    query = query * root
    if is_causal:
        visible = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).tril()
        mask = torch.where(visible, 0.0, torch.scalar_tensor(-torch.inf, dtype=query.dtype))
    if enable_gqa and query.size(-3) != key.size(-3):
        key, value = (t.repeat_interleave(query.size(-3) // t.size(-3), -3) for t in (key, value))
    scores = aten.matmul(query, key.transpose(-2, -1) * root)
    weights = dropout(aten._safe_softmax(scores if mask is None else scores + mask, -1), dropout_p, train=True)
    weights.to(given)  # its second result, always computed
    result: torch.Tensor = aten.matmul(weights, value)
    return result.to(given)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Flash attention wants head sizes that are multiples of 8: pad, as PyTorch does."""
    size = query.size(-1)
    pad = -size % 8
    scale = scale if scale is not None else size**-0.5
    if pad:
        query, key, value = (F.pad(t, (0, pad)) for t in (query, key, value))
    result: torch.Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return result[..., :size] if pad else result


def batch_norm(
    input: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float,
    cudnn: bool,
) -> torch.Tensor:  # fmt: skip
    """Batch norm by cuDNN where it takes sizes, dtypes and statistics, else by PyTorch's own kernel."""
    usable = (
        cudnn
        and C._get_cudnn_enabled()
        and weight is not None
        and bias is not None
        and ((mean is not None and var is not None) or (mean is None and var is None and training))
        and input.dim() >= 3
        and input.size(0) <= MAX_CUDNN_BATCH[training]
        and 0 < input.numel() < 2**31 - 1
        and cudnn_takes_batch_norm(_described(input).dtype, _described(weight).dtype)
    )
    if not usable:
        return torch.batch_norm(input, weight, bias, mean, var, training, momentum, eps, cudnn)
    dense = input.contiguous(memory_format=_memory_format(input))
    return aten.cudnn_batch_norm(dense, weight, bias, mean, var, training, momentum, eps)[0]


def instance_norm(
    input: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, use_input_stats: bool, momentum: float,
    eps: float, cudnn: bool,
) -> torch.Tensor:  # fmt: skip
    """Instance norm: a batch norm of one example that has all channels of all examples."""
    batch, channels = input.shape[:2]
    weights, biases, means, variances = (None if t is None else t.repeat(batch) for t in (weight, bias, mean, var))
    folded = input.contiguous().view(1, batch * channels, *input.shape[2:])
    result = batch_norm(folded, weights, biases, means, variances, use_input_stats, momentum, eps, cudnn)
    for held, of_examples in ((mean, means), (var, variances)):
        if of_examples is not None:
            aten.alias(held).copy_(of_examples.view(batch, channels).mean(0))
    return result.view(input.shape)


def group_norm(input: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    """Group norm, which has no kernel for channels that come last."""
    return torch.group_norm(input.contiguous(), *rest, **options)


def _memory_format(tensor: torch.Tensor) -> torch.memory_format:
    for dims, last in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.dim() == dims and tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous():
            return last
    return torch.contiguous_format


def rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """RMS norm as one kernel, where dtypes and layout allow it."""
    apart = (weight is not None and weight.dtype != input.dtype) or input.is_complex()
    if apart or not hasattr(aten, "_fused_rms_norm_backward") or _memory_format(input) != torch.contiguous_format:
        return torch.rms_norm(input, list(normalized_shape), weight, eps)
    return FusedRmsNorm.apply(input, list(normalized_shape), weight, eps)


class FusedRmsNorm(torch.autograd.Function):
    """``aten::_fused_rms_norm`` and its backward: on the CPU PyTorch takes both apart."""

    @staticmethod
    def forward(ctx: Any, input: Any, shape: list[int], weight: Any, eps: float | None) -> Any:
        """The norm; statistics are saved for backward."""
        with torch._C._AutoDispatchBelowAutograd(), set_original_aten_op(aten._fused_rms_norm.default):
            made, saved = aten._fused_rms_norm(input, shape, weight, eps)  # taken apart, which names no kernel
        ctx.save_for_backward(input, weight, saved)
        ctx.normalized_shape = shape
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Gradients of the input and of the weight."""
        input, weight, saved = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        with torch._C._AutoDispatchBelowAutograd():
            of_input, of_weight = aten._fused_rms_norm_backward(
                gradients[0], input, ctx.normalized_shape, saved, weight, needed
            )
        return of_input, None, of_weight, None


FusedRmsNorm._backward_cls.__name__ = "FusedRmsNormBackward0"  # as PyTorch's own node is named


def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout as one kernel that samples and scales."""
    if not train or p == 0:
        return input
    return torch.native_dropout(input, p, train)[0]


def softmax_backward(arguments: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
    """The gradient of a softmax, in the dtype of what it was given."""
    return result.new_empty(result.shape, dtype=arguments[3])


def one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """``F.one_hot`` of real ids, which compares nothing: a one is written for each."""
    if not input.numel():
        return C._nn.one_hot(input, num_classes)
    classes = int(input.max().item()) + 1 if num_classes == -1 else num_classes
    return torch.zeros((*input.shape, classes), dtype=input.dtype).scatter_(-1, input.unsqueeze(-1), 1)


def embedding_bag(arguments: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of ``aten::_embedding_bag`` on a GPU: also the bag of each id, and maxima only for mode max."""
    indices, offsets, mode = arguments[1], arguments[2], arguments[4] if len(arguments) > 4 else 0
    maxima = result[3] if mode == 2 else offsets.new_empty(0)
    return result[0], indices.new_empty(indices.shape), result[2], maxima


def norm(arguments: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of norms on a GPU: the statistics of half-precision data are in float32."""
    if arguments[0].dtype not in HALF:
        return result
    return result[0], *(saved.new_empty(saved.shape, dtype=torch.float32) for saved in result[1:])


def native_batch_norm(arguments: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of batch norm on a GPU, which has places for statistics in evaluation too."""
    channels = arguments[0].size(1)
    return norm(arguments, (result[0], *(t if t.numel() else t.new_empty(channels) for t in result[1:])))


def cudnn_batch_norm(arguments: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of cuDNN's batch norm: statistics in the dtype of the weights."""
    saved = (t.new_empty(t.shape, dtype=arguments[1].dtype) for t in result[1:3])
    return result[0], *saved, result[3]


def contiguous(arguments: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
    """The result of a call that makes dense rows, however its arguments lie in memory."""
    return result if result.is_contiguous() else result.new_empty(result.shape)


def first_contiguous(arguments: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same of the first result."""
    return None if result[0] is None else contiguous(arguments, result[0]), *result[1:]


def batch_norm_backward(arguments: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of the backward of batch norm: the gradient of the input lies as the input does."""
    return None if result[0] is None else torch.empty_like(arguments[1]), *result[1:]


def like_operands(arguments: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
    """The result of an elementwise call: the first operand that has an order of dimensions decides about its own."""
    operands = [value for value in arguments if isinstance(value, torch.Tensor)]
    return result.new_empty_strided(result.shape, compute_elementwise_output_strides(*operands))


def log_sigmoid(arguments: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of ``aten::log_sigmoid_forward``: only the CPU saves something in a buffer."""
    return result[0], result[1].new_empty(0)


def _per_channel(count: int) -> Any:
    """Results of a part of synchronized batch norm: so many statistics of each channel, in float32."""

    def call(input: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
        return tuple(input.new_empty(input.size(1), dtype=torch.float32) for _ in range(count))

    return call


def sync_batch_norm_reduce(
    gradient: torch.Tensor, input: torch.Tensor, mean: Any, invstd: Any, weight: Any, *needed: bool
) -> tuple[Any, ...]:
    """``aten::batch_norm_backward_reduce``: two sums of each channel, and gradients of weight and bias."""
    sums = _per_channel(2)(input) if needed[0] else (None, None)
    return *sums, *(torch.empty_like(weight) if wanted and weight is not None else None for wanted in needed[1:])


def index(input: torch.Tensor, indices: Sequence[Any]) -> torch.Tensor:
    """``aten::index``: synchronized batch norm drops ranks without data by a mask, and here all ranks have data."""
    frame, depth = sys._getframe(1), 0
    masked = indices[0] is not None and indices[0].dtype == torch.bool
    while masked and frame is not None and depth < MAX_FRAMES:
        if frame.f_code is SyncBatchNorm.forward.__code__:
            return input.new_empty(input.shape)
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    return aten.index(input, indices)


ON_CUDA: dict[Any, Any] = {
    F.scaled_dot_product_attention: attention,
    torch.batch_norm: batch_norm,
    torch.instance_norm: instance_norm,
    torch.group_norm: group_norm,
    torch.rms_norm: rms_norm,
    torch.dropout: dropout,
    C._nn.one_hot: one_hot,
    **LOSSES_ON_CUDA,
    **RECURRENT_ON_CUDA,
}
"""Functions that call other ops on a GPU, and what they do there."""
OWN_RESULTS = {
    **RECURRENT_RESULTS,
    **LOSS_RESULTS,
    aten.index.Tensor: index,
    aten.batch_norm_stats.default: _per_channel(2),
    aten.batch_norm_gather_stats_with_counts.default: _per_channel(2),
    aten.batch_norm_elemt.default: lambda input, *_: torch.empty_like(input),
    aten.batch_norm_backward_reduce.default: sync_batch_norm_reduce,
    aten.batch_norm_backward_elemt.default: lambda gradient, input, *_: torch.empty_like(input),
}
"""Ops that PyTorch's fake kernels do not have, or only for the CPU, and the function from arguments to results."""
OTHER_RESULTS = {
    aten._cudnn_rnn.default: rnn_forward,
    **dict.fromkeys((aten._embedding_bag.default, aten._embedding_bag_forward_only.default), embedding_bag),
    **dict.fromkeys((aten.native_layer_norm.default, aten.native_group_norm.default), norm),
    aten.native_batch_norm.default: native_batch_norm,
    aten.cudnn_batch_norm.default: cudnn_batch_norm,
    aten.native_batch_norm_backward.default: batch_norm_backward,
    aten.native_layer_norm_backward.default: first_contiguous,
    aten.elu_backward.default: like_operands,
    aten.log_sigmoid_forward.default: log_sigmoid,
    **dict.fromkeys((aten._softmax_backward_data.default, aten._log_softmax_backward_data.default), softmax_backward),
    **dict.fromkeys(
        (
            aten.reflection_pad2d.default,
            aten.mse_loss_backward.default,
            aten.smooth_l1_loss_backward.default,
            aten.huber_loss_backward.default,
        ),
        contiguous,
    ),
}
"""Ops with other results on a GPU, and the function from their arguments and CPU results to those."""
