"""Calls that only look at their tensor in another way, or put some together: where a divided dimension goes in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foretrace.graph import Op, Tensor, tensors_in
from foretrace.transforms.parallel.splitting import PARTIAL, ConflictError, Splitting, fraction, key_of

FUSED = (2, 3)
"""Sizes of a dimension that only says what is what: gate and value; query, key and value. It is not divided."""


def first(op: Op) -> Tensor:
    """The tensor a call is about.

    >>> first(Op("aten::relu", (Tensor((4,), "float32"),))).shape
    (4,)
    """
    value = op.args[0]
    assert isinstance(value, Tensor)
    return value


def out(op: Op) -> Tensor:
    """Its first result.

    >>> small = Tensor((4,), "float32")
    >>> out(Op("aten::relu", (small,), outputs=(small,))).shape
    (4,)
    """
    if not op.produced:
        raise ConflictError(op, op.tensors[0], "nothing tells what it makes")
    return op.produced[0]


def positive(dim: Any, tensor: Tensor) -> int:
    """A dimension counted from the front.

    >>> positive(-1, Tensor((4, 8), "float32"))
    1
    """
    return int(dim) % max(len(tensor.shape), 1)


def with_arg(op: Op, place: int, value: Any) -> Op:
    """A call with another argument at a place.

    >>> with_arg(Op("aten::sum", (Tensor((4, 8), "float32"), [0])), 1, [1]).args[1]
    [1]
    """
    return replace(op, args=(*op.args[:place], value, *op.args[place + 1 :]))


def mapped(old: Sequence[int], new: Sequence[int], dim: int, lead: int, ways: int) -> tuple[int, int] | None:
    """Where a divided dimension goes in a view of another shape, and how many places there stand before it in one.

    None where no dimension can be divided.

    >>> mapped((8, 32, 64), (8, 32, 4, 16), 2, 1, 2), mapped((8, 4, 32, 16), (32, 32, 16), 1, 1, 2)
    ((2, 1), (0, 8))
    >>> mapped((32, 32, 16), (8, 4, 32, 16), 0, 8, 2), mapped((6,), (3, 2), 0, 1, 2)
    ((1, 1), (1, 1))
    """
    start, end = math.prod(old[:dim]) * lead, math.prod(old[: dim + 1])
    at = 1
    for place, size in enumerate(new):
        if size > 1 and at < end and at * size > start:
            before = max(start // at, 1)
            if (size // before) % ways == 0:
                return place, before
            if size not in FUSED:
                return None
        at *= size
    return None


def view(s: Splitting, op: Op) -> Op | None:
    """Other shapes for the same elements."""
    given, made = first(op), out(op)
    state = s.state(given)
    if state is None or state == PARTIAL:
        s.set(made, state, op)
        return None
    found = mapped(given.shape, made.shape, state, s.lead.get(key_of(given), 1), s.ways)
    if found is None:
        raise ConflictError(op, made, f"dimension {state} of {list(given.shape)} can't be followed")
    dim, lead = found
    s.set(made, dim, op, lead)
    sizes = list(op.args[1])  # type: ignore[arg-type]
    sizes[dim] = fraction(sizes[dim], s.ways)
    return with_arg(op, 1, sizes)


def expand(s: Splitting, op: Op) -> Op | None:
    """More dimensions in front, and repeated ones; one number is repeated as often as somebody wants it."""
    given, made = first(op), out(op)
    state = s.state(given) if given.shape else s.wanted.get(key_of(made), s.state(given))
    if state is None or state == PARTIAL:
        s.set(made, state, op)
        return None
    dim = state + len(made.shape) - len(given.shape) if given.shape else state
    s.set(made, dim, op)
    sizes = list(op.args[1])  # type: ignore[arg-type]
    sizes[dim] = fraction(sizes[dim], s.ways)
    return with_arg(op, 1, sizes)


def transpose(s: Splitting, op: Op) -> Op | None:
    """Dimensions in another order."""
    given, made = first(op), out(op)
    dims = list(range(len(given.shape)))
    if op.name == "aten::permute":
        dims = [positive(d, given) for d in op.args[1]]  # type: ignore[union-attr]
    elif len(dims) > 1:
        one, other = (0, 1) if op.name == "aten::t" else (positive(d, given) for d in op.args[1:3])
        dims[one], dims[other] = dims[other], dims[one]
    state = s.state(given)
    s.set(made, dims.index(state) if state is not None and state >= 0 else state, op)
    return None


def unsqueeze(s: Splitting, op: Op) -> Op | None:
    """One dimension more."""
    state, at = s.state(first(op)), positive(op.args[1], out(op))
    s.set(out(op), state + (at <= state) if state is not None and state >= 0 else state, op)
    return None


def squeeze(s: Splitting, op: Op) -> Op | None:
    """Without the dimensions of size one, or one of them; ``select`` takes one of any size away."""
    given = first(op)
    state = s.state(given)
    if state is None or state == PARTIAL:
        s.set(out(op), state, op)
        return None
    if op.name == "aten::select":
        gone = [positive(op.args[1], given)]
    elif len(op.args) > 1:
        asked = op.args[1] if isinstance(op.args[1], (list, tuple)) else [op.args[1]]
        gone = [d for d in (positive(a, given) for a in asked) if given.shape[d] == 1]
    else:
        gone = [d for d, size in enumerate(given.shape) if size == 1]
    if state in gone:
        raise ConflictError(op, given, "it takes one place of the divided dimension")
    s.set(out(op), state - sum(d < state for d in gone), op)
    return None


def cut(s: Splitting, op: Op) -> Op | None:
    """Pieces along a dimension: split, split_with_sizes, slice, unbind."""
    given = first(op)
    state = s.state(given)
    plain = op.name in ("aten::slice", "aten::unbind")
    place = 1 if plain else 2
    along = positive(op.args[place] if len(op.args) > place else 0, given)
    for made in op.produced:
        gone = op.name == "aten::unbind" and state is not None and along < state
        s.set(made, state if state is None or state < 0 else state - gone, op)
    if state != along:
        return None
    if op.name == "aten::unbind":
        raise ConflictError(op, given, "it takes the divided dimension apart")
    if plain:
        bounds = [fraction(a, s.ways) if isinstance(a, int) and 0 < a < 1 << 62 else a for a in op.args[2:4]]
        return replace(op, args=(*op.args[:2], *bounds, *op.args[4:]))
    sizes = op.args[1]
    return with_arg(op, 1, [fraction(n, s.ways) for n in sizes] if isinstance(sizes, list) else fraction(sizes, s.ways))


def join(s: Splitting, op: Op) -> Op | None:
    """cat and stack."""
    parts = tensors_in(op.args[0])
    dims = [d for d in (s.split(t) for t in parts) if d is not None]
    if not dims:
        s.set(out(op), None, op)
        return None
    whole = max(len(part.shape) for part in parts)  # cat takes an empty vector beside anything
    for part in parts:
        if len(part.shape) == whole:
            s.want(part, dims[0], op)
    shift = op.name == "aten::stack" and positive(op.args[1] if len(op.args) > 1 else 0, out(op)) <= dims[0]
    s.set(out(op), dims[0] + shift, op)
    return None
