"""Backwards of products, as a step makes them that nothing watches.

The gradient of ``cumprod`` and ``prod`` divides by the inputs, after a look whether one of them is 0. PyTorch asks
first whether a dispatch mode or a tensor subclass is there, and then takes a way that needs no look: of other calls, up
to ten times as long. Here the mode is taken off while PyTorch computes such a gradient, and the plain calls are made
under it after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _pop_mode, _push_mode

if TYPE_CHECKING:
    from foretrace.record.watch.watch import Watch

READ = "aten::_local_scalar_dense"


@contextmanager
def plain_products(watch: Watch) -> Iterator[None]:
    """Let the products of a watched step have gradients as in a plain one."""
    with ExitStack() as patched:
        for owner, name in ((torch, "cumprod"), (torch.Tensor, "cumprod"), (torch, "prod"), (torch.Tensor, "prod")):
            patched.enter_context(patch.object(owner, name, _followed(getattr(owner, name), watch)))
        yield


def _followed(original: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    @wraps(original)
    def product(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        node = getattr(result, "grad_fn", None)
        if node is not None and node.name() in GRADIENTS and not result.is_complex():
            gradient = _PlainGradient(watch, GRADIENTS[node.name()])
            node.register_prehook(partial(gradient.begin, node))
            node.register_hook(gradient.end)
        return result

    return product


class _PlainGradient:
    """Hooks of one node of autograd, from before its gradient is computed to after it."""

    def __init__(self, watch: Watch, calls: Callable[..., torch.Tensor]) -> None:
        self._watch, self._calls = watch, calls
        self._taken_off: Any = None
        self._saved: tuple[Any, ...] = ()

    def begin(self, node: Any, gradients: tuple[Any, ...]) -> None:
        """Take the mode off, unless the plain way depends on zeros that are there."""
        mode = _pop_mode()
        if mode is not self._watch or gradients[0] is None:
            _push_mode(mode)
            return
        given, result = node._saved_self, node._saved_result
        dim = getattr(node, "_saved_dim", 0)
        places = dim - 2**64 if dim >= 2**63 else dim, getattr(node, "_saved_keepdim", True)  # a negative one unsigned
        if given.numel() <= 1 or (not isinstance(given, FakeTensor) and bool((given == 0).any())):
            _push_mode(mode)
            return
        self._taken_off, self._saved = mode, (gradients[0], given, result, *places)

    def end(self, computed: tuple[Any, ...], gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Put the mode back, and make the plain calls under it; their result is the gradient."""
        if self._taken_off is None:
            return None
        _push_mode(self._taken_off)
        saved, self._taken_off, self._saved = self._saved, None, ()
        with self._watch.unharmed():
            return (self._calls(self._watch, *saved),)
        return None


def _cumulative(watch: Watch, grad: torch.Tensor, given: torch.Tensor, result: torch.Tensor, dim: int, _: bool) -> Any:
    weighted = result * grad
    _read(watch, (given == 0).any(), False)
    return weighted.flip([dim]).cumsum(dim).flip([dim]).div(given)


def _of_all(watch: Watch, grad: torch.Tensor, given: torch.Tensor, result: torch.Tensor, *_: Any) -> Any:
    places = watch.note("aten::nonzero", "default", (given == 0,), {})
    mode = _pop_mode()
    none = given.new_empty((0, given.dim()), dtype=torch.int64)
    _push_mode(mode)
    places.outputs = (watch.describe(none),)
    return grad * (result / given)


def _along(watch: Watch, grad: torch.Tensor, given: torch.Tensor, result: torch.Tensor, dim: int, keepdim: bool) -> Any:
    if not keepdim:
        grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
    _read(watch, (given == 0).sum(dim, True).sum(), 0)
    return grad * (result / given)


def _read(watch: Watch, value: torch.Tensor, found: bool | int) -> None:
    """Record that a value is read; a fake one has none."""
    watch.note(READ, "default", (value,), {}).outputs = (found,)


GRADIENTS: dict[str, Callable[..., Any]] = {
    "CumprodBackward0": _cumulative, "ProdBackward0": _of_all, "ProdBackward1": _along,
}  # fmt: skip
"""By the name of autograd's node: the calls of its gradient where no input is 0."""
