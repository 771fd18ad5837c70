"""What each call of a step makes once a size is another one: asked of the meta device, else by rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from foretrace.graph.operators import COLLECTIVE_CALLS, SPARSE_ACCESSORS, SPARSE_CONSTRUCTORS
from foretrace.graph.tensor import Tensor, with_shape, with_view
from foretrace.transforms.dataflow import Call, Dataflow, is_sequence, slots_in, substitute
from foretrace.transforms.meta_device import META, MetaTensor, MetaUnsupportedError
from foretrace.transforms.resize.arguments import (
    UNCHANGED,
    Interpretation,
    SizeChange,
    integers_in,
    with_interpretation,
)

Dims = frozenset[int]
"""Dimensions of an input that change."""
IDS = ("int64", "int32")
JOINED = ("aten::cat", "aten::_cat", "aten::constant_pad_nd")
"""Calls that put something beside what holds the size."""


class StepShapes:
    """Shapes of everything in a step, for one size.

    ``certain`` says that readings are known to be right: what a call makes of them is taken as it is.
    """

    def __init__(self, step: Dataflow, scale: SizeChange, certain: bool = False) -> None:
        self.step, self.scale, self._certain = step, scale, certain
        self.now: dict[int, Tensor] = {}
        self.was: dict[int, Tensor] = dict(step.inputs)
        self.maker: dict[int, int] = {}
        self._parts: dict[int, list[int]] = {}
        """Indices and values of each sparse tensor."""
        for number, call in enumerate(step.calls):
            self.was.update(call.made)
            self.maker.update(dict.fromkeys(call.made, number))
            if call.op.name in SPARSE_CONSTRUCTORS:
                self._parts.update(dict.fromkeys(call.made, call.reads[-2:]))
            elif call.made and all(tensor.layout != "strided" for tensor in call.made.values()):
                given = next((self._parts[slot] for slot in call.reads if slot in self._parts), [])
                self._parts.update(dict.fromkeys(call.made, given))

    def take(self, chosen: dict[int, Dims]) -> None:
        """Start from inputs with these dimensions changed."""
        for slot, tensor in self.step.inputs.items():
            dims = chosen.get(slot)
            if not dims:
                self.now[slot] = tensor
                continue
            shape = tuple(self.scale.of(n) if dim in dims else n for dim, n in enumerate(tensor.shape))
            self.now[slot] = with_shape(tensor, shape)

    def untouched(self, call: Call) -> bool:
        """Whether a call is given what it was given; how many rows a sparse tensor holds, its shape does not tell."""
        given = ((self.was[slot], self.now[slot]) for slot in call.reads)
        return all(was.layout == "strided" and was.shape == now.shape for was, now in given)

    def made(self, call: Call, reading: Interpretation) -> dict[int, Tensor] | str:
        """What a call makes with its numbers read so; or what is wrong."""
        if call.op.is_side_call or not call.made:
            return self._checked(call, reading)
        if call.row < 0:
            return self._looked_at(call)
        if call.op.name in SPARSE_CONSTRUCTORS and not self._joins_alike(call, reading):
            return "it joins the parts of a sparse tensor of another shape"
        if call.op.name.startswith(COLLECTIVE_CALLS):
            return self._exchanged(call, reading)
        strided = all(self.now[slot].layout == "strided" for slot in call.reads)
        if not strided or any(tensor.layout != "strided" for tensor in call.made.values()):
            return self._alike(call, reading)
        try:
            results = self._asked(call, reading, self.now, self.scale)
        except MetaUnsupportedError:
            return self._alike(call)
        except ValueError as problem:
            return str(problem)
        made: dict[int, Tensor] = {}
        for slot, result in results.items():
            was = call.made[slot]
            if self._fits(call, result.shape, was.shape):
                made[slot] = with_view(was, result.shape, result.stride, self._base(call, was) + result.offset)
            elif self._certain and self._is_known(call, slot):  # it pads, or counts blocks
                made[slot] = with_view(was, result.shape, result.stride, was.offset)
            elif self._is_known(call, slot):
                return f"it would make {list(result.shape)} of {list(was.shape)}"
            else:  # the meta device makes something else than real ones do
                made[slot] = self._alike(call)[slot]
        return made

    def _checked(self, call: Call, reading: Interpretation) -> dict[int, Tensor] | str:
        """A call that makes nothing new: whether what it is given fits."""
        if call.op.is_side_call or call.op.name.startswith(COLLECTIVE_CALLS):
            return self._exchanged(call, reading)
        if all(self.now[slot].shape == self.was[slot].shape for slot in call.reads):
            return {}
        if all(self.now[slot].layout == "strided" for slot in call.reads):
            try:
                args = substitute(with_interpretation(call.args, reading, self.scale), self.now.__getitem__)
                META.called(call.op.name, call.op.overload, args, substitute(call.kwargs, self.now.__getitem__))
            except MetaUnsupportedError:
                return {}
            except ValueError as problem:
                return str(problem)
        elif any(
            self.now[slot].shape != self.now[other].shape
            for slot, other in pairwise(call.reads)
            if self.was[slot].shape == self.was[other].shape
        ):
            return "a sparse gradient and its weight have other shapes"
        return {}

    def _asked(self, call: Call, reading: Interpretation, shapes: dict[int, Tensor], scale: SizeChange) -> dict[int, MetaTensor]:
        args = substitute(with_interpretation(call.args, reading, scale), shapes.__getitem__)
        kwargs = substitute(call.kwargs, shapes.__getitem__)
        result = META.called(call.op.name, call.op.overload, args, kwargs)
        given = list(result) if isinstance(result, list) and len(call.results) != 1 else [result]
        return {slot: made for slot, made in _pairs(call.results, given) if slot in call.made and made is not None}

    def like(self, call: Call, others: list[MetaTensor]) -> dict[int, Tensor]:
        """What a call makes, where another of its kind makes these."""
        return {
            slot: with_view(was, other.shape, other.stride, self._base(call, was) + other.offset)
            for (slot, was), other in zip(call.made.items(), others)
        }

    def told(self, call: Call, made: dict[int, Tensor]) -> list[MetaTensor]:
        """What a call makes, for others of its kind."""
        return [MetaTensor(now.shape, now.stride, now.offset - self._base(call, now), now.dtype) for now in made.values()]

    def _base(self, call: Call, made: Tensor) -> int:
        """Where that begins which a result is a view of; 0 for what is none."""
        base = next((slot for slot in call.reads if self.was[slot].storage == made.storage >= 0), None)
        return 0 if base is None else self.now[base].offset

    def _fits(self, call: Call, shape: Sequence[int], was: Sequence[int]) -> bool:
        """Whether a shape is the recorded one with some sizes changed."""
        if len(shape) != len(was):
            return False
        of = self.scale.of
        odd = [(old, now) for old, now in zip(was, shape) if now not in (old, of(old), of(old - 1) + 1)]
        return not odd or (call.op.name in JOINED and all(self.scale.add(old, now) for old, now in odd))

    def _is_known(self, call: Call, slot: int) -> bool:
        """Whether the meta device makes of the recorded arguments what was made of them."""
        try:
            return self._asked(call, UNCHANGED, self.was, self.scale)[slot].shape == call.made[slot].shape
        except (ValueError, MetaUnsupportedError, KeyError):
            return False

    def _looked_at(self, call: Call) -> dict[int, Tensor]:
        """A look at a storage of the step that no call has left behind: like the tensor that lies there."""
        ((slot, tensor),) = call.made.items()
        was, now = self.was[call.reads[0]], self.now[call.reads[0]]
        if was.shape == now.shape:
            return {slot: tensor}
        if sorted(was.shape) == sorted(tensor.shape):
            order = [was.shape.index(size) for size in tensor.shape]
            shape = tuple(now.shape[dim] for dim in order)
        else:
            grown = self.grown(call)
            shape = tuple(self.scale.of(size) if size in grown else size for size in tensor.shape)
        return {slot: with_shape(tensor, shape)}

    def grown(self, call: Call) -> set[int]:
        """Recorded sizes of the arguments that are others now."""
        return {
            was for slot in call.reads for was, now in zip(self.was[slot].shape, self.now[slot].shape) if was != now
        }

    def follows(self, call: Call, made: dict[int, Tensor]) -> bool:
        """Whether a result that has the size of a changed argument has changed too."""
        grown = self.grown(call)
        alike = any(size in grown for tensor in call.made.values() for size in tensor.shape)
        return not alike or any(made[slot].shape != tensor.shape for slot, tensor in call.made.items())

    def _alike(self, call: Call, reading: Interpretation = UNCHANGED) -> dict[int, Tensor]:
        """What a call makes that the meta device does not know: sizes change that are those of changed arguments."""
        if call.op.name in SPARSE_ACCESSORS:
            return self._part(call)
        grown = self.grown(call).union(size for place, size in enumerate(integers_in(call.args)) if place in reading)
        made = {}
        for slot, tensor in call.made.items():
            shape = tuple(self.scale.of(n) if n in grown else n for n in tensor.shape)
            made[slot] = with_shape(tensor, shape)
        return made

    def _joins_alike(self, call: Call, reading: Interpretation) -> bool:
        """Whether a sparse tensor that is put together again has the shape of the one that was taken apart."""
        maker = self.maker.get(call.reads[0])
        parted = self.step.calls[maker] if maker is not None else None
        sizes = with_interpretation(call.args, reading, self.scale)[2:3]
        if parted is None or parted.op.name not in SPARSE_ACCESSORS or not sizes:
            return True
        return list(self.now[parted.reads[0]].shape) == sizes[0]

    def _part(self, call: Call) -> dict[int, Tensor]:
        """Indices or values of a sparse tensor: of its parts, or as many as its maker's arguments have it."""
        whole, side = call.reads[0] if call.reads else -1, SPARSE_ACCESSORS[call.op.name]
        parts = self._parts.get(whole)
        made = {}
        for slot, tensor in call.made.items():
            shape = list(tensor.shape)
            if parts:
                shape = list(self.now[parts[side]].shape)
            elif whole in self.maker and len(shape) > 1 - side:
                ids = [slot for slot in self.step.calls[self.maker[whole]].reads if self.was[slot].dtype in IDS]
                sizes = {was: now for slot in ids for was, now in zip(self.was[slot].shape, self.now[slot].shape)}
                shape[1 - side] = sizes.get(shape[1 - side], shape[1 - side])
                if side:
                    shape[1:] = self.now[whole].shape[1:]
            made[slot] = with_shape(tensor, shape)
        return made

    def _exchanged(self, call: Call, reading: Interpretation) -> dict[int, Tensor] | str:
        """A collective: what it gives and gets change together, and so do the parts for each rank."""
        old, new = self.scale.old, self.scale.new
        grown = {
            self.now[slot].numel * old == self.was[slot].numel * new for slot in call.reads if self.was[slot].numel
        }
        if len(grown) > 1:
            return "one side of it changes, and the other does not"
        wanted = new if True in grown else old
        for was, now in zip(call.args, with_interpretation(call.args, reading, self.scale)):
            if is_sequence(was) and sum(integers_in(now)) * old != sum(integers_in(was)) * wanted:
                return "its parts and its buffers do not change alike"
        return self._alike(call)


def _pairs(slots: Any, values: Any) -> Iterable[tuple[int, Any]]:
    """Each slot with what goes into it."""
    integers_in = list(slots_in(slots)) if not isinstance(slots, (list, tuple)) else None
    if integers_in is not None:
        yield from ((number, values) for number in integers_in)
        return
    found = values if isinstance(values, list) else [values]
    if len(found) != len(slots):
        raise ValueError(f"it would make {len(found)} tensors instead of {len(slots)}")
    for slot, value in zip(slots, found):
        if hasattr(slot, "number"):
            yield slot.number, value
        elif isinstance(slot, (list, tuple)):
            yield from _pairs(slot, value)
