"""Ops and types that PyTorch chooses on a GPU (Hopper or newer), for sketches in a build of torch without CUDA.

Attention, batch norm and dropout dispatch to other ops on CUDA than on the CPU (`choosing_like_cuda`), and autocast has
other lists of ops there (`casting_like_cuda`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from foretrace.graph.operators import cudnn_takes_batch_norm

aten = torch.ops.aten
HEAD_SIZES_OF_CUDNN, HEAD_SIZES_OF_FLASH = 128, 256
LOWER = (
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "prelu", "addmm", "addmv", "addr", "matmul", "__matmul__", "__rmatmul__", "einsum", "mm", "mv", "linear", "addbmm",
    "baddbmm", "bmm", "chain_matmul", "scaled_dot_product_attention",
)  # fmt: skip
"""Ops that run in the lower precision: PyTorch's list for CUDA."""

FULL = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "softplus", "layer_norm", "group_norm", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "cdist", "renorm", "logsumexp", "norm",
)  # fmt: skip
"""Ops that run in float32."""

FULL_RESULT = ("prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum")
"""Ops that read the lower precision and compute in float32."""

WIDEST = ("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
          "scatter_add")  # fmt: skip
"""Ops that run in the widest type among their arguments."""

Cast = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]


@contextmanager
def choosing_like_cuda() -> Iterator[None]:
    """Run attention, batch norm and dropout as CUDA does."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(F, "scaled_dot_product_attention", attention))
        stack.enter_context(patch.object(torch, "batch_norm", _batch_norm(torch.batch_norm)))
        for home in (torch, torch._VF):
            stack.enter_context(patch.object(home, "dropout", dropout, create=True))
        yield


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
    """The attention that PyTorch chooses on a GPU: cuDNN's where it may, else flash, else the memory-efficient one.

    A mask with a gradient is computed in separate steps.

    >>> q = torch.empty(1, 2, 8, 64, dtype=torch.bfloat16, device="meta")
    >>> attention(q, q, q, is_causal=True).shape
    torch.Size([1, 2, 8, 64])
    """
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    half, size = query.dtype in (torch.float16, torch.bfloat16), query.size(-1)
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), -torch.inf)
    if attn_mask is not None and attn_mask.requires_grad and training:
        return _step_by_step(query, key, value, attn_mask, dropout_p, scale if scale is not None else size**-0.5)
    if half and size <= HEAD_SIZES_OF_CUDNN and size % 8 == 0:
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, attn_mask, training, dropout_p, is_causal, False, scale=scale
        )[0]
    if attn_mask is None and half and size <= HEAD_SIZES_OF_FLASH:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(query.size(0), query.size(1), query.size(-2), key.size(-2))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, training, dropout_p, is_causal, scale=scale
    )[0]


def _step_by_step(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, dropout_p: float, scale: float
) -> torch.Tensor:
    """GEMMs and a softmax in float32, regardless of autocast."""
    given = query.dtype
    query, key, value = (t.to(torch.float32) for t in (query, key, value))
    scores = aten.matmul(query * scale**0.5, key.transpose(-2, -1) * scale**0.5)
    weights = dropout(aten._safe_softmax(scores + mask, -1), dropout_p, train=True)
    weights.to(given)  # its second result, always computed
    result: torch.Tensor = aten.matmul(weights, value)
    return result.to(given)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Flash attention wants head sizes that are multiples of 8: pad, as PyTorch does."""
    size = query.size(-1)
    pad = -size % 8
    if pad:
        scale = scale if scale is not None else size**-0.5
        query, key, value = (F.pad(t, (0, pad)) for t in (query, key, value))
    result: torch.Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return result[..., :size] if pad else result


def _batch_norm(original: Any) -> Any:
    def batch_norm(
        input: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float,
        cudnn: bool,
    ) -> torch.Tensor:  # fmt: skip
        """CuDNN's where it would be taken: in training, with weights and statistics, in types that it takes."""
        complete = weight is not None and bias is not None and mean is not None
        if not (cudnn and training and complete and cudnn_takes_batch_norm(*_types(input, weight))):
            return original(input, weight, bias, mean, var, training, momentum, eps, cudnn)
        return aten.cudnn_batch_norm(
            input.contiguous(memory_format=_memory_format(input)), weight, bias, mean, var, training, momentum, eps
        )[0]

    return batch_norm


def _types(*tensors: torch.Tensor) -> Iterator[str]:
    return (str(tensor.dtype).removeprefix("torch.") for tensor in tensors)


def _memory_format(tensor: torch.Tensor) -> torch.memory_format:
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout as one kernel that samples and scales."""
    if not train or p == 0:
        return input
    return torch.native_dropout(input, p, train)[0]


def embedding_bag(arguments: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of ``aten::_embedding_bag`` on a GPU: also the bag of each id, and maxima only for mode max."""
    indices, offsets, mode = arguments[1], arguments[2], arguments[4] if len(arguments) > 4 else 0
    maxima = result[3] if mode == 2 else offsets.new_empty(0)
    return result[0], indices.new_empty(indices.shape), result[2], maxima


def norm(arguments: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of norms on a GPU: the statistics of half-precision data are in float32."""
    if arguments[0].dtype not in (torch.float16, torch.bfloat16):
        return result
    return result[0], *(saved.new_empty(saved.shape, dtype=torch.float32) for saved in result[1:])


OTHER_RESULTS = {
    aten._embedding_bag.default: embedding_bag,
    **dict.fromkeys(
        (aten.native_layer_norm.default, aten.native_batch_norm.default, aten.native_group_norm.default), norm
    ),
}
"""Ops with other results on a GPU, and the function from their arguments and CPU results to those."""


@contextmanager
def casting_like_cuda(on_device: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Apply CUDA's autocast rules to tensors that pass ``on_device``, where ``torch.autocast("cuda")`` is on.

    >>> with casting_like_cuda(lambda tensor: True), torch.autocast("cpu", enabled=False):
    ...     torch.set_autocast_enabled("cuda", True); torch.set_autocast_dtype("cuda", torch.bfloat16)
    ...     made = torch.ones(2, 2) @ torch.ones(2, 2)
    ...     torch.set_autocast_enabled("cuda", False)
    >>> made.dtype
    torch.bfloat16
    """
    rules = _Rules(on_device)
    casts: dict[str, Cast] = {
        **dict.fromkeys(LOWER, rules.lower),
        **dict.fromkeys(FULL, rules.full),
        **dict.fromkeys(FULL_RESULT, rules.full_result),
        **dict.fromkeys(WIDEST, rules.widest),
    }
    with ExitStack() as stack:
        for home in (torch, torch.Tensor, F, torch._C._nn, torch._VF):
            for name, cast in casts.items():
                # Python functions of F call one of the built-in ones further down; attention's stands for one.
                if callable(original := getattr(home, name, None)) and (
                    not hasattr(original, "__code__") or original is attention
                ):
                    stack.enter_context(patch.object(home, name, _cast_first(original, cast), create=True))
        entropy = torch._C._nn.cross_entropy_loss
        stack.enter_context(patch.object(torch._C._nn, "cross_entropy_loss", _cross_entropy(entropy)))
        yield


def _cross_entropy(original: Any) -> Any:
    """Cross entropy takes the softmax in the type it is given, and only the loss in float32."""

    def cross_entropy(
        given: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignore: int, smoothing: float
    ) -> Any:
        if not torch.is_autocast_enabled("cuda") or smoothing or target.is_floating_point():
            return original(given, target, weight, reduction, ignore, smoothing)
        softened = torch.log_softmax(given, 0 if given.dim() == 1 else 1, dtype=given.dtype)
        return torch._C._nn.nll_loss_nd(softened, target, weight, reduction, ignore)

    return cross_entropy


def _cast_first(function: Any, cast: Cast) -> Any:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cuda"):
            args, kwargs = cast(args, kwargs)
        return function(*args, **kwargs)

    return call


class _Rules:
    def __init__(self, on_device: Callable[[torch.Tensor], bool]) -> None:
        self._on_device = on_device
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._nesting = 0

    def lower(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        wanted = torch.get_autocast_dtype("cuda")
        return self._all(args, kwargs, lambda t: wanted if self._casts(t) else t.dtype)

    def full(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self._all(args, kwargs, lambda t: torch.float32 if self._casts(t) else t.dtype)

    def full_result(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        narrow = self._casts(args[0]) and args[0].dtype in (torch.bfloat16, torch.float16)
        return args, {"dtype": torch.float32, **kwargs} if narrow and not kwargs.get("dtype") else kwargs

    def widest(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        wide = any(isinstance(a, torch.Tensor) and a.dtype == torch.float32 for a in args)
        return self.full(args, kwargs) if wide else (args, kwargs)

    def _casts(self, tensor: Any) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and tensor.is_floating_point()
            and tensor.dtype != torch.float64
            and self._on_device(tensor)
        )

    def _all(self, args: Any, kwargs: Any, dtype_of: Callable[[torch.Tensor], torch.dtype]) -> tuple[Any, Any]:
        def cast(value: Any) -> Any:
            return self._cast(value, dtype_of(value)) if isinstance(value, torch.Tensor) else value

        # Autocast itself casts the last argument first.
        keywords = {key: tree_map(cast, value) for key, value in reversed(kwargs.items())}
        return tuple(tree_map(cast, value) for value in reversed(args))[::-1], keywords

    def _cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if tensor.dtype == dtype:
            return tensor
        if not (tensor.is_leaf and tensor.requires_grad and torch.is_autocast_cache_enabled()):
            return tensor.to(dtype)
        # Weights are cast once in an autocast region, as autocast itself does.
        self._forget_other_regions()
        known = self._cache.get(id(tensor))
        if known is None or known[1].dtype != dtype:
            known = self._cache[id(tensor)] = (tensor, tensor.to(dtype))
        return known[1]

    def _forget_other_regions(self) -> None:
        if self._nesting != _region:
            self._cache.clear()
            self._nesting = _region


_region = 0


@contextmanager
def counting_regions() -> Iterator[None]:
    """Count entered autocast regions: weights are cast again in each."""
    enter = torch.autocast.__enter__

    def entering(self: Any) -> Any:
        global _region
        _region += 1
        return enter(self)

    with patch.object(torch.autocast, "__enter__", entering):
        yield
