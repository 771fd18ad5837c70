"""Letting autograd take sparse gradients as it does in a plain step.

Autograd takes a sparse gradient over where nobody else holds its indices and values, and clones it otherwise. What
passes a dispatch mode is held for a moment too long, so a watched step would clone each one: two kernels a table
that the plain step does not have. So the watch looks away while such a gradient is taken, and notes what happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _pop_mode, _push_mode

from foretrace.graph import Value

if TYPE_CHECKING:
    from foretrace.record.watch import Watch


class SparseGradients:
    """Hooks on the weights that get sparse gradients in a watched step."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._handles: dict[int, list[Any]] = {}
        self._away: dict[int, tuple[Any, Value]] = {}
        self._ids: dict[int, int] = {}
        """How many ids were looked up in each weight: as many rows has its gradient."""

    def expect(self, func: Any, args: Any) -> None:
        """A lookup is called: where it asks for sparse gradients, be ready for them."""
        schema = getattr(func, "_schema", None)
        if schema is None or "embedding" not in schema.name:
            return
        named = {argument.name: value for argument, value in zip(schema.arguments, args)}
        weight = named.get("weight")
        if named.get("sparse") and isinstance(weight, torch.Tensor) and weight.is_leaf and weight.requires_grad:
            self._ids[id(weight)] = self._ids.get(id(weight), 0) + named["indices"].numel()
            if id(weight) not in self._handles:
                self._handles[id(weight)] = [
                    weight.register_hook(lambda gradient: self._look_away(weight, gradient)),
                    weight.register_post_accumulate_grad_hook(self._look_again),
                ]

    def _look_away(self, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        if gradient.layout == torch.sparse_coo and weight.grad is None and _is_kept():
            self._away[id(weight)] = (_pop_mode(), self._watch.describe(gradient))

    def _look_again(self, weight: torch.Tensor) -> None:
        mode, gradient = self._away.pop(id(weight), (None, None))
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


def _is_kept() -> bool:
    """Whether the gradient at hand will be accumulated: ``torch.autograd.grad`` gives it away instead."""
    try:
        return bool(torch._C._will_engine_execute_node(torch._C._current_autograd_node()))
    except RuntimeError:  # so it is told under torch.autograd.grad
        return False
