"""Undoing what a dispatch mode changes in autograd, so that a watched step records the calls of an unwatched one.

* Saved tensors: where a tensor passes through Python, autograd detaches it when it saves it for backward, and again
  when it unpacks it. The first detach follows right after the op whose result it saves, and only backward uses it; the
  second is called by a generated node such as ``ReluBackward0``. `without_saves` removes both from the recorded ops.
* In-place derivatives: some derivatives scatter into new zeros in place. Under a dispatch mode they do so out of place,
  with one more copy, since PyTorch can't know that the mode supports the other form. `plain_form` restores it.
* CTC losses: under a dispatch mode their lengths stay tensors, and on a GPU they fail. `plain_ctc_loss` reads them.
* Sparse gradients: autograd takes one over where nothing else references its indices and values, and clones it
  otherwise. A dispatch mode holds references, so a watched step would clone each one: two more kernels per table.
  `SparseGradients` takes the mode off while such a gradient is accumulated, and notes what happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _pop_mode, _push_mode

from foretrace.graph import Op, Storage, Value

if TYPE_CHECKING:
    from foretrace.record.watch.watch import Watch

GENERATED_NODE = re.compile(r"Backward\d+$")
aten = torch.ops.aten

IN_PLACE: dict[Any, Any] = {
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.put.default: aten.put_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}


def without_saves(ops: list[Op], storages: dict[int, Storage]) -> list[Op]:
    """The ops without autograd's own detaches.

    Births and deaths of storages, frees, and modules that were entered go to the ops that stay.

    >>> from foretrace.graph import Tensor
    >>> y, saved = Tensor((4,), "float32", id=1, storage=1), Tensor((4,), "float32", id=2, storage=1)
    >>> relu = Op("aten::relu", outputs=(y,), phase="forward")
    >>> detach = Op("aten::detach", (y,), outputs=(saved,), phase="forward")
    >>> use = Op("aten::threshold_backward", (saved,), phase="backward")
    >>> [op.name for op in without_saves([relu, detach, use], {})]
    ['aten::relu', 'aten::threshold_backward']
    """
    saves = _saves(ops)
    if not saves:
        return ops
    remaining: list[Op] = []
    new_row: list[int] = []
    pending: tuple[int, ...] = ()
    entered = 0
    for row, op in enumerate(ops):
        new_row.append(len(remaining))
        if row in saves:
            pending += op.frees
            entered += op.entered
            continue
        op.frees, pending = pending + op.frees, ()
        op.entered, entered = entered + op.entered, 0
        remaining.append(op)
    new_row.append(len(remaining))
    for storage in storages.values():
        storage.birth = new_row[storage.birth] if storage.birth >= 0 else -1
        storage.death = new_row[storage.death] if storage.death >= 0 else -1
    return remaining


def _saves(ops: list[Op]) -> set[int]:
    """Rows of the detaches that autograd made to save something or to take it out again."""
    used_in_forward = {t.id for op in ops if op.phase == "forward" and op.name != "aten::detach" for t in op.tensors}
    saves: set[int] = set()
    fresh: set[int] = set()
    for row, op in enumerate(ops):
        given, made = {t.id for t in op.tensors}, {t.id for t in op.produced}
        unpacked = bool(GENERATED_NODE.search(op.node))
        if op.name == "aten::detach" and (unpacked or (given <= fresh and not made & used_in_forward)):
            saves.add(row)
            fresh |= made
        else:
            fresh = made
    return saves


def plain_form(func: Any, args: Any, node: str, fresh: bool) -> tuple[Any, Any]:
    """The function and arguments that an unwatched step would call.

    Parameters
    ----------
    node
        The autograd node that calls; empty outside backward.
    fresh
        Whether the first argument was made by the call just before, so that nothing else can see it change.

    >>> func, args = plain_form(aten.scatter_add.default, (), "GatherBackward0", fresh=True)
    >>> func.name()
    'aten::scatter_add_'
    """
    if not (fresh and node):
        return func, args
    if func is aten.index_put.default and node.startswith("IndexBackward"):
        accumulate = bool(args[3]) if len(args) > 3 else False
        return aten._index_put_impl_.default, (*args[:3], accumulate, True)
    return IN_PLACE.get(func, func), args


@contextmanager
def plain_ctc_loss() -> Iterator[None]:
    """Give a CTC loss its lengths as numbers, as PyTorch does: under a dispatch mode it would keep them in tensors."""
    original = torch.ctc_loss

    @wraps(original)
    def ctc_loss(log_probs: Any, targets: Any, *lengths: Any, **options: Any) -> Any:
        read = (each.tolist() if type(each) is torch.Tensor and each.dim() == 1 else each for each in lengths)
        return original(log_probs, targets, *read, **options)

    with patch.object(torch, "ctc_loss", ctc_loss):
        yield


class SparseGradients:
    """Hooks on weights with sparse gradients, which suspend the watch while autograd accumulates them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._handles: dict[int, list[Any]] = {}
        self._suspended: dict[int, tuple[Any, Value]] = {}
        self._ids: dict[int, int] = {}
        """How many ids were looked up in each weight: the number of rows of its gradient."""

    def expect(self, func: Any, args: Any) -> None:
        """Register hooks on the weight of a lookup that asks for sparse gradients."""
        schema = getattr(func, "_schema", None)
        if schema is None or "embedding" not in schema.name:
            return
        named = {argument.name: value for argument, value in zip(schema.arguments, args)}
        weight = named.get("weight")
        if named.get("sparse") and isinstance(weight, torch.Tensor) and weight.is_leaf and weight.requires_grad:
            self._ids[id(weight)] = self._ids.get(id(weight), 0) + named["indices"].numel()
            if id(weight) not in self._handles:
                self._handles[id(weight)] = [
                    weight.register_hook(lambda gradient: self._suspend(weight, gradient)),
                    weight.register_post_accumulate_grad_hook(self._resume),
                ]

    def _suspend(self, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        if gradient.layout == torch.sparse_coo and weight.grad is None and _is_accumulated():
            self._suspended[id(weight)] = (_pop_mode(), self._watch.describe(gradient))

    def _resume(self, weight: torch.Tensor) -> None:
        mode, gradient = self._suspended.pop(id(weight), (None, None))
        if mode is None:
            return
        taken: Any = weight.grad
        indices, values = self._rows(weight, taken)
        _push_mode(mode)
        for name, part in (("aten::_indices", indices), ("aten::_values", values)):
            self._watch.note(name, "default", (), {}).args = (gradient,)
            self._watch.ops[-1].outputs = (self._watch.describe(part),)
        self._watch.note("aten::_sparse_coo_tensor_unsafe", "default", (indices, values, list(taken.shape)), {})
        self._watch.ops[-1].outputs = (self._watch.describe(taken),)

    def _rows(self, weight: torch.Tensor, taken: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices and values of a sparse gradient. A fake one has none: then as many as ids were looked up."""
        if not isinstance(taken, FakeTensor):
            return taken._indices(), taken._values()
        count = self._ids[id(weight)]
        indices = weight.new_empty(1, count, dtype=torch.int64)
        values = weight.new_empty(count, weight.shape[1])
        taken.rows = (indices, values)  # they live as long as the gradient does
        return indices, values

    def close(self) -> None:
        """Take the hooks off."""
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()


def _is_accumulated() -> bool:
    """Whether the gradient at hand will be accumulated: ``torch.autograd.grad`` gives it away instead."""
    try:
        return bool(torch._C._will_engine_execute_node(torch._C._current_autograd_node()))
    except RuntimeError:  # raised under torch.autograd.grad
        return False
