"""CUDA's autocast rules, for sketches in a build of torch without CUDA: which functions run in which dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

LOWER = (
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "prelu", "addmm", "addmv", "addr", "matmul", "__matmul__", "__rmatmul__", "einsum", "mm", "mv", "linear", "addbmm",
    "baddbmm", "bmm", "chain_matmul", "linalg_vecdot", "linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell",
    "rnn_relu_cell", "scaled_dot_product_attention",
)  # fmt: skip
"""Ops that run in the lower precision: PyTorch's list for CUDA."""

FULL = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "square", "softplus", "layer_norm", "rms_norm", "group_norm", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "cdist", "pdist", "renorm", "logsumexp", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
)  # fmt: skip
"""Ops that run in float32."""

FULL_RESULT = ("prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum", "linalg_vector_norm")
"""Ops that read the lower precision and compute in float32."""

WIDEST = ("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
          "scatter_add")  # fmt: skip
"""Ops that run in the widest type among their arguments."""

RESAMPLING = tuple(getattr(torch._C._nn, name) for name in FULL if "upsample" in name)
"""What torch.compile decomposes before autocast sees it, so that it stays in the lower precision there."""

Cast = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]
HOMES: tuple[Any, ...] = (torch._C._VariableFunctions, torch.Tensor, F, torch._C._nn, torch._C._linalg)
"""Where the functions are found; those written in Python call one of the others."""


class CudaAutocast:
    """CUDA's autocast rules, for tensors that pass ``on_device``.

    >>> rules = CudaAutocast(lambda tensor: True)
    >>> torch.set_autocast_enabled("cuda", True); torch.set_autocast_dtype("cuda", torch.bfloat16)
    >>> args, _ = rules.cast(torch.mm, (torch.ones(2, 2), torch.ones(2, 2)), {})
    >>> torch.set_autocast_enabled("cuda", False)
    >>> args[0].dtype
    torch.bfloat16
    """

    def __init__(self, on_device: Callable[[torch.Tensor], bool]) -> None:
        self._on_device = on_device
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._nesting = 0
        kinds = {self._lower: LOWER, self._full: FULL, self._full_result: FULL_RESULT, self._widest: WIDEST}
        self._casts_of: dict[Any, Cast] = {
            getattr(home, name): cast for cast, names in kinds.items() for name in names for home in HOMES
            if callable(getattr(home, name, None)) and not hasattr(getattr(home, name), "__code__")
        }  # fmt: skip

    def cast(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments of a function as autocast would cast them."""
        if function not in self._casts_of or not torch.is_autocast_enabled("cuda"):
            return args, kwargs
        if function in RESAMPLING and torch._guards.TracingContext.try_get() is not None:
            return args, kwargs
        return self._casts_of[function](args, kwargs)

    def _lower(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        wanted = torch.get_autocast_dtype("cuda")
        return self._all(args, kwargs, lambda t: wanted if self._casts(t) else t.dtype)

    def _full(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self._all(args, kwargs, lambda t: torch.float32 if self._casts(t) else t.dtype)

    def _full_result(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        narrow = self._casts(args[0]) and args[0].dtype in (torch.bfloat16, torch.float16)
        asked = kwargs.get("dtype") or any(isinstance(value, torch.dtype) for value in args)
        return args, {**kwargs, "dtype": torch.float32} if narrow and not asked else kwargs

    def _widest(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        wide = any(isinstance(a, torch.Tensor) and a.dtype == torch.float32 for a in args)
        return self._full(args, kwargs) if wide else (args, kwargs)

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
