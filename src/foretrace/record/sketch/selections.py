"""Sizes that follow from unknown values: how many elements pass a mask, how many are distinct.

A detector keeps the boxes whose score is high, a loss the anchors that match. A sketch has no scores: it goes on with
an assumed share of the elements, which the headline names with the line of the script, and which ``FORETRACE_ASSUME``
sets; `shares` sketches the step with less and with more of them. A mask of flags is drawn with that share, once, so
that whatever is chosen by it, counted or filled agrees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch._library.fake_impl import FakeImplCtx
from torch._subclasses.fake_tensor import FakeTensor

from foretrace.record.sketch.shares import DISTINCT, RETURNED, SELECTED
from foretrace.record.sketch.values import MAX_INTEGERS, UNKNOWN, is_small

if TYPE_CHECKING:
    from foretrace.record.sketch.fake_step import FakeStepMode

aten: Any = torch.ops.aten
COUNTS = (aten.sum.default, aten.sum.dim_IntList, aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
"""Calls that count what a mask chooses."""
UNIQUE = (aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default)
EXACT = 1 << 20
"""Flags of a mask of which exactly the assumed share is set; of a larger one, about as many."""


class Selections:
    """Results whose sizes follow from unknown values."""

    def __init__(self, mode: FakeStepMode) -> None:
        self._mode = mode

    def count(self, func: Any, args: Any) -> None:
        """Draw an unknown mask that is about to be counted."""
        if func in COUNTS and isinstance(args[0], FakeTensor) and args[0].dtype == torch.bool:
            self._drawn(args[0], note=False)

    def fill(self, places: Any, values: FakeTensor) -> None:
        """Draw an unknown mask by which several values are written: it chooses as many places as there are values."""
        masks = [place for place in places if isinstance(place, FakeTensor) and place.dtype == torch.bool]
        if len(masks) == 1 and values.dim() and values.size(0) > 1 and values.size(0) <= masks[0].numel():
            self._drawn(masks[0], note=False, count=values.size(0))

    def result(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a call whose shape follows from unknown values; `UNKNOWN` of other calls."""
        if func is aten.nonzero.default:
            return self._nonzero(args[0])
        if func is aten.masked_select.default:
            chosen = torch.broadcast_shapes(args[0].shape, args[1].shape)
            mask = self._drawn(args[1])
            passed = self._passed(args[1]) if mask is None else int(mask.expand(chosen).sum())
            return args[0].new_empty(passed)
        if func in UNIQUE:
            return self._unique(func, args, kwargs)
        if func.namespace not in ("aten", "prims"):
            return self._returned(func, args, kwargs)
        return UNKNOWN

    def _nonzero(self, fake: Any) -> Any:
        mask = self._drawn(fake)
        if mask is None:
            return fake.new_empty((self._passed(fake), fake.dim()), dtype=torch.int64)
        return self._mode.held(mask.nonzero(), self._mode.values.assumed(fake))

    def _drawn(self, fake: Any, note: bool = True, count: int | None = None) -> torch.Tensor | None:
        """The flags of a mask, drawn where they are unknown; None of numbers, and of a large mask."""
        values = self._mode.values
        if (known := values.of(fake)) is None and fake.dtype == torch.bool and is_small(fake):
            share, why = self._mode.assumptions.share(SELECTED) if count is None else (0.0, "")
            nbytes = fake.untyped_storage().nbytes()
            chosen = torch.zeros(nbytes, dtype=torch.bool)
            if count is not None and fake.numel() != nbytes:
                return None
            passed = round(share * nbytes) if count is None else count
            if nbytes <= EXACT:
                chosen[torch.randperm(nbytes)[:passed]] = True
            else:
                torch.lt(torch.rand(nbytes), passed / nbytes, out=chosen)
            values.hold_storage(fake, chosen, frozenset({why} if why else ()))
            known = values.of(fake)
        if known is not None and note:
            self._mode.assumptions.known(values.assumed(fake), self._mode.calls)
        return known

    def _passed(self, fake: Any) -> int:
        """How many elements of an unknown tensor are chosen."""
        return self._part(fake.numel(), SELECTED)

    def _part(self, count: int, what: str) -> int:
        share, why = self._mode.assumptions.share(what)
        self._mode.assumptions.known(frozenset({why}), self._mode.calls)
        return min(count, max(1, round(share * count)))

    def _unique(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
        given |= dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
        fake, dim = given["self"], given.get("dim")
        rows = fake.numel() if dim is None else fake.size(dim)
        found = self._part(rows, DISTINCT)
        shape = [found] if dim is None else [*fake.shape]
        if dim is not None:
            shape[dim] = found
        places = fake.new_empty(
            (fake.shape if dim is None else rows) if given["return_inverse"] else 0, dtype=torch.int64
        )
        counts = fake.new_empty(found if given["return_counts"] else 0, dtype=torch.int64)
        _, why = self._mode.assumptions.share(DISTINCT)
        if rows <= MAX_INTEGERS and found:
            of = torch.arange(rows) % found
            for made, values in ((places, of), (counts, torch.bincount(of))):
                if made.numel():
                    self._mode.values.hold(made, values.view(made.shape), frozenset({why}))
        return fake.new_empty(shape), places, counts

    def _returned(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a custom operator whose fake kernel asks for a size that follows from data."""
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, FakeTensor) and value.dim()]
        if not tensors:
            return UNKNOWN
        rows = self._part(tensors[0].size(0), RETURNED)

        def size(_: Any, *, min: int = 0, max: int | None = None) -> int:
            return rows if rows >= min and (max is None or rows <= max) else min if rows < min else max or rows

        with patch.object(FakeImplCtx, "new_dynamic_size", size):
            return self._mode.call(func, args, kwargs)
