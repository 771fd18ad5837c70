"""Shapes of everything in a step for one size: from PyTorch's meta device, else by rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from foretrace.graph.op import Tensor, with_shape, with_view
from foretrace.graph.operators import COLLECTIVE_CALLS, SPARSE_ACCESSORS, SPARSE_CONSTRUCTORS
from foretrace.transforms.dataflow import Dataflow, SlotCall, is_sequence
from foretrace.transforms.meta_device import MetaTensor, MetaUnsupportedError, meta_results
from foretrace.transforms.resize.arguments import (
    UNCHANGED,
    Interpretation,
    SizeChange,
    integers_in,
    with_interpretation,
)

Dims: TypeAlias = frozenset[int]
"""Dimensions of an input that change."""
ID_DTYPES = ("int64", "int32")
CONCATENATING = ("aten::cat", "aten::_cat", "aten::constant_pad_nd")
"""Calls whose result holds the size and something else along one dimension."""


class StepShapes:
    """Shapes of everything in a step, for one size.

    ``certain`` says that interpretations are known to be right, so that any result of the meta device is accepted.
    """

    def __init__(self, step: Dataflow, change: SizeChange, certain: bool = False) -> None:
        self.step, self.change, self._certain = step, change, certain
        self.now: dict[int, Tensor] = {}
        self.was: dict[int, Tensor] = dict(step.inputs)
        self.maker: dict[int, int] = {}
        """The call that fills each slot."""
        self._sparse_parts: dict[int, list[int]] = {}
        """Slots of the indices and values of each sparse tensor."""
        for number, call in enumerate(step.calls):
            self.was.update(call.made)
            self.maker.update(dict.fromkeys(call.made, number))
            if call.op.name in SPARSE_CONSTRUCTORS:
                self._sparse_parts.update(dict.fromkeys(call.made, call.reads[-2:]))
            elif call.made and all(tensor.layout != "strided" for tensor in call.made.values()):
                parts = next((self._sparse_parts[slot] for slot in call.reads if slot in self._sparse_parts), [])
                self._sparse_parts.update(dict.fromkeys(call.made, parts))

    def set_inputs(self, chosen: dict[int, Dims]) -> None:
        """Start from inputs with these dimensions changed."""
        for slot, tensor in self.step.inputs.items():
            dims = chosen.get(slot)
            if not dims:
                self.now[slot] = tensor
                continue
            shape = tuple(self.change.of(n) if dim in dims else n for dim, n in enumerate(tensor.shape))
            self.now[slot] = with_shape(tensor, shape)

    def untouched(self, call: SlotCall) -> bool:
        """Whether a call's arguments have not changed; never for sparse ones, whose shape does not show their rows."""
        pairs = ((self.was[slot], self.now[slot]) for slot in call.reads)
        return all(was.layout == "strided" and was.shape == now.shape for was, now in pairs)

    def results(self, call: SlotCall, interpretation: Interpretation) -> dict[int, Tensor] | str:
        """The results of a call with its integers interpreted so; or why that does not fit."""
        if call.op.is_side_call or not call.made:
            return self._checked(call, interpretation)
        if call.row < 0:
            return self._inferred_view(call)
        if call.op.name in SPARSE_CONSTRUCTORS and not self._keeps_sparse_shape(call, interpretation):
            return "it constructs a sparse tensor of another shape than its parts come from"
        if call.op.name.startswith(COLLECTIVE_CALLS):
            return self._collective(call, interpretation)
        strided = all(self.now[slot].layout == "strided" for slot in call.reads)
        if not strided or any(tensor.layout != "strided" for tensor in call.made.values()):
            return self._by_rule(call, interpretation)
        try:
            results = self._on_meta(call, interpretation, self.now, self.change)
        except MetaUnsupportedError:
            return self._by_rule(call)
        except ValueError as problem:
            return str(problem)
        made: dict[int, Tensor] = {}
        for slot, result in results.items():
            was = call.made[slot]
            if self._fits(call, result.shape, was.shape):
                made[slot] = with_view(was, result.shape, result.stride, self._base_offset(call, was) + result.offset)
            elif self._certain and self._meta_agrees(call, slot):  # it pads, or counts blocks
                made[slot] = with_view(was, result.shape, result.stride, was.offset)
            elif self._meta_agrees(call, slot):
                return f"it would make {list(result.shape)} of {list(was.shape)}"
            else:  # the meta kernel's results differ from those on real devices
                made[slot] = self._by_rule(call)[slot]
        return made

    def _checked(self, call: SlotCall, interpretation: Interpretation) -> dict[int, Tensor] | str:
        """A call without new results: whether its arguments fit."""
        if call.op.is_side_call or call.op.name.startswith(COLLECTIVE_CALLS):
            return self._collective(call, interpretation)
        if all(self.now[slot].shape == self.was[slot].shape for slot in call.reads):
            return {}
        if all(self.now[slot].layout == "strided" for slot in call.reads):
            try:
                self._on_meta(call, interpretation, self.now, self.change)
            except MetaUnsupportedError:
                return {}
            except ValueError as problem:
                return str(problem)
        elif any(
            self.now[slot].shape != self.now[other].shape
            for slot, other in pairwise(call.reads)
            if self.was[slot].shape == self.was[other].shape
        ):
            return "a sparse gradient and its weight have different shapes"
        return {}

    def _on_meta(
        self, call: SlotCall, interpretation: Interpretation, tensors: dict[int, Tensor], change: SizeChange
    ) -> dict[int, MetaTensor]:
        return meta_results(call, with_interpretation(call.args, interpretation, change), call.kwargs, tensors)

    def from_template(self, call: SlotCall, results: list[MetaTensor]) -> dict[int, Tensor]:
        """The results of a call, given those of an equal one."""
        return {
            slot: with_view(was, result.shape, result.stride, self._base_offset(call, was) + result.offset)
            for (slot, was), result in zip(call.made.items(), results)
        }

    def as_template(self, call: SlotCall, made: dict[int, Tensor]) -> list[MetaTensor]:
        """The results of a call, for equal ones."""
        return [
            MetaTensor(now.shape, now.stride, now.offset - self._base_offset(call, now), now.dtype)
            for now in made.values()
        ]

    def _base_offset(self, call: SlotCall, made: Tensor) -> int:
        """The offset of the tensor that a result is a view of; 0 if it is not a view."""
        base = next((slot for slot in call.reads if self.was[slot].storage == made.storage >= 0), None)
        return 0 if base is None else self.now[base].offset

    def _fits(self, call: SlotCall, shape: Sequence[int], was: Sequence[int]) -> bool:
        """Whether a shape is the recorded one with some sizes changed."""
        if len(shape) != len(was):
            return False
        of = self.change.of
        odd = [(old, now) for old, now in zip(was, shape) if now not in (old, of(old), of(old - 1) + 1)]
        return not odd or (call.op.name in CONCATENATING and all(self.change.add_sum(old, now) for old, now in odd))

    def _meta_agrees(self, call: SlotCall, slot: int) -> bool:
        """Whether the meta device gives the recorded result for the recorded arguments."""
        try:
            return self._on_meta(call, UNCHANGED, self.was, self.change)[slot].shape == call.made[slot].shape
        except (ValueError, MetaUnsupportedError, KeyError):
            return False

    def _inferred_view(self, call: SlotCall) -> dict[int, Tensor]:
        """A view that no recorded call made: its shape follows that of its base."""
        ((slot, tensor),) = call.made.items()
        was, now = self.was[call.reads[0]], self.now[call.reads[0]]
        if was.shape == now.shape:
            return {slot: tensor}
        if sorted(was.shape) == sorted(tensor.shape):
            order = [was.shape.index(size) for size in tensor.shape]
            shape = tuple(now.shape[dim] for dim in order)
        else:
            changed = self.changed_sizes(call)
            shape = tuple(self.change.of(size) if size in changed else size for size in tensor.shape)
        return {slot: with_shape(tensor, shape)}

    def changed_sizes(self, call: SlotCall) -> set[int]:
        """Recorded sizes of a call's arguments that have changed."""
        return {
            was for slot in call.reads for was, now in zip(self.was[slot].shape, self.now[slot].shape) if was != now
        }

    def follows(self, call: SlotCall, made: dict[int, Tensor]) -> bool:
        """Whether a result with the size of a changed argument has changed too."""
        changed = self.changed_sizes(call)
        related = any(size in changed for tensor in call.made.values() for size in tensor.shape)
        return not related or any(made[slot].shape != tensor.shape for slot, tensor in call.made.items())

    def _by_rule(self, call: SlotCall, interpretation: Interpretation = UNCHANGED) -> dict[int, Tensor]:
        """Results of a call that the meta device does not support: sizes equal to those of changed arguments change."""
        if call.op.name in SPARSE_ACCESSORS:
            return self._sparse_part(call)
        integers = enumerate(integers_in(call.args))
        changed = self.changed_sizes(call).union(size for place, size in integers if place in interpretation)
        made = {}
        for slot, tensor in call.made.items():
            shape = tuple(self.change.of(n) if n in changed else n for n in tensor.shape)
            made[slot] = with_shape(tensor, shape)
        return made

    def _keeps_sparse_shape(self, call: SlotCall, interpretation: Interpretation) -> bool:
        """Whether a sparse tensor constructed from another's parts has the shape of that one."""
        maker = self.maker.get(call.reads[0])
        accessor = self.step.calls[maker] if maker is not None else None
        sizes = with_interpretation(call.args, interpretation, self.change)[2:3]
        if accessor is None or accessor.op.name not in SPARSE_ACCESSORS or not sizes:
            return True
        return list(self.now[accessor.reads[0]].shape) == sizes[0]

    def _sparse_part(self, call: SlotCall) -> dict[int, Tensor]:
        """Indices or values of a sparse tensor: as constructed, or as many as its maker's arguments have ids."""
        whole, side = call.reads[0] if call.reads else -1, SPARSE_ACCESSORS[call.op.name]
        parts = self._sparse_parts.get(whole)
        made = {}
        for slot, tensor in call.made.items():
            shape = list(tensor.shape)
            if parts:
                shape = list(self.now[parts[side]].shape)
            elif whole in self.maker and len(shape) > 1 - side:
                ids = [slot for slot in self.step.calls[self.maker[whole]].reads if self.was[slot].dtype in ID_DTYPES]
                sizes = {was: now for slot in ids for was, now in zip(self.was[slot].shape, self.now[slot].shape)}
                shape[1 - side] = sizes.get(shape[1 - side], shape[1 - side])
                if side:
                    shape[1:] = self.now[whole].shape[1:]
            made[slot] = with_shape(tensor, shape)
        return made

    def _collective(self, call: SlotCall, interpretation: Interpretation) -> dict[int, Tensor] | str:
        """A collective: its inputs, outputs and split sizes must change alike."""
        old, new = self.change.old, self.change.new
        scaled = {
            self.now[slot].numel * old == self.was[slot].numel * new for slot in call.reads if self.was[slot].numel
        }
        if len(scaled) > 1:
            return "only some of its buffers change"
        wanted = new if True in scaled else old
        for was, now in zip(call.args, with_interpretation(call.args, interpretation, self.change)):
            if is_sequence(was) and sum(integers_in(now)) * old != sum(integers_in(was)) * wanted:
                return "its split sizes and its buffers do not change alike"
        return self._by_rule(call)
