"""CUDA's autocast rules, for sketches in a build of torch without CUDA.

Autocast acts on tensors of its own device, and there the tensors are the CPU's, whose rules are others. So while a
sketch pretends to be on a GPU, the functions that CUDA's autocast knows cast their arguments here, in Python.
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

from foretrace.record.cuda_choices import attention

LOWER = (
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "prelu", "addmm", "addmv", "addr", "matmul", "__matmul__", "__rmatmul__", "einsum", "mm", "mv", "linear", "addbmm",
    "baddbmm", "bmm", "chain_matmul", "scaled_dot_product_attention",
)  # fmt: skip
"""What runs in the lower precision: PyTorch's list for CUDA."""

FULL = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "softplus", "layer_norm", "group_norm", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "cdist", "renorm", "logsumexp", "norm",
)  # fmt: skip
"""What runs in float32."""

FULL_RESULT = ("prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum")
"""What reads the lower precision and computes in float32."""

WIDEST = ("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
          "scatter_add")  # fmt: skip
"""What runs in the widest type among its arguments."""

Cast = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]


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
    """Number the autocast regions that are entered while open: weights cast in one are not those of the next."""
    enter = torch.autocast.__enter__

    def entering(self: Any) -> Any:
        global _region
        _region += 1
        return enter(self)

    with patch.object(torch.autocast, "__enter__", entering):
        yield
