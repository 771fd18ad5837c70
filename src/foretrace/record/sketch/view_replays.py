"""Views that are changed in place: fake tensors make autograd call their view functions again.

Where a view of a tensor that needs a gradient is written to, autograd gives the view a new history. That of a real
tensor is one ``as_strided`` of its base, made without a call; for tensors that pass through Python autograd repeats the
calls which made the view, in forward and again in backward. `ViewReplays` finds those calls in a sketch, and
`changed_view` gives a view the history that a real one has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

aten: Any = torch.ops.aten
COPY_SLICES = "CopySlices"
"""The autograd node of a tensor of which a view was changed in place."""


@cache
def _is_view_call(func: Any) -> bool:
    """Whether an operator makes a view of its first argument."""
    schema = getattr(func, "_schema", None)
    return bool(schema and schema.arguments and (alias := schema.arguments[0].alias_info) and not alias.is_write)


@cache
def _is_in_place(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return bool(schema and schema.arguments and (alias := schema.arguments[0].alias_info) and alias.is_write)


class ViewReplays:
    """Follows the calls of a sketch, and tells those by which autograd makes a view again."""

    def __init__(self) -> None:
        self._next: Any = None
        """The tensor that the next call of a replay is given; None outside of one."""
        self._written: Any = None
        """Geometry of the view that was written to: where a replay in forward ends."""
        self._start: Any = None
        """The copied gradient of which a replay in backward makes a view."""
        self._copied: Any = None
        """A tensor just made in backward, to be filled with a gradient."""

    def is_replay(self, func: Any, args: Any) -> bool:
        """Whether a call repeats one that made a view, and is none of a real step."""
        if _hidden:
            return True
        if self._next is None:
            return False
        if _is_view_call(func) and _is_same(args[0], self._next):
            return True
        if self._start is None:
            self._next = self._written = None
        return False

    def replayed(self, made: Any) -> None:
        """Go on with the result of a replayed call."""
        if _hidden:
            return
        self._next = made
        if self._written is not None and _geometry(made) == self._written:
            self._next = self._written = None

    def ended(self, note: Callable[[Any, Any], None]) -> None:
        """End a replay in backward, before another call: in a real step it is one call."""
        if self._start is not None and self._next is not self._start:
            note(self._start, self._next)
        self._start = self._next = None

    def called(self, func: Any, args: Any, result: Any, node: str) -> None:
        """Note a call that was none, which may begin a replay."""
        if node:
            if COPY_SLICES in node and func is aten.copy_.default and _is_same(args[0], self._copied):
                self._start = self._next = args[0]
            self._copied = result if COPY_SLICES in node and func is aten.new_empty_strided.default else None
        elif _is_in_place(func) and torch.is_grad_enabled():
            view = args[0]
            if isinstance(view, FakeTensor) and view._is_view() and _needs_gradient(args):
                self._next, self._written = view._base, _geometry(view)


def _needs_gradient(args: Any) -> bool:
    return any(isinstance(a, torch.Tensor) and a.requires_grad for a in (*args, getattr(args[0], "_base", None)))


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tensor.shape, tensor.stride()


def _is_same(one: Any, other: Any) -> bool:
    """Whether two tensors are the same part of a storage; autograd wraps some anew."""
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.untyped_storage()._cdata == other.untyped_storage()._cdata
        and _geometry(one) == _geometry(other)
    )


_hidden: list[bool] = []


def changed_view(function: Any, args: Any) -> Callable[[Any], Any] | None:
    """For a function that may change a view in place: what to do with its result; None for others."""
    name = getattr(function, "__name__", "")
    if not (name.endswith("_") and args and isinstance(args[0], FakeTensor) and torch.is_grad_enabled()):
        return None
    view: Any = args[0]
    if not view._is_view() or view.is_inference():
        return None
    version = view._version
    return lambda made: _strided(made) if made is view and view._version != version and view.requires_grad else made


def _strided(view: Any) -> Any:
    """A view as a view of its base in one step: what autograd takes a real one for that was changed in place."""
    _hidden.append(True)
    try:
        return torch.as_strided(view._base, view.shape, view.stride(), view.storage_offset())
    finally:
        _hidden.clear()
