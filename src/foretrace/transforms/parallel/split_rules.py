"""How each call hands on the division of a dimension: from its arguments to its results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foretrace.graph import Op, Tensor, tensors_in
from foretrace.transforms.parallel.splitting import PARTIAL, ConflictError, Rule, Splitting, key_of, part_size

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
    sizes[dim] = part_size(sizes[dim], s.ways)
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
    sizes[dim] = part_size(sizes[dim], s.ways)
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
        bounds = [part_size(a, s.ways) if isinstance(a, int) and 0 < a < 1 << 62 else a for a in op.args[2:4]]
        return replace(op, args=(*op.args[:2], *bounds, *op.args[4:]))
    sizes = op.args[1]
    return with_arg(
        op, 1, [part_size(n, s.ways) for n in sizes] if isinstance(sizes, list) else part_size(sizes, s.ways)
    )


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


ATTENTION = (
    "flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable",
    "flash_attention_for_cpu",
)  # fmt: skip

BATCH_NORMS = (
    "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
)  # fmt: skip
READS_STATISTICS = frozenset(f"aten::{name}" for name in BATCH_NORMS)
"""Calls that keep something of earlier batches, beside what they are given of this one."""
BATCHED = 2
"""Dimensions of something that holds samples, at least: less, and it is a statistic."""


def product(s: Splitting, op: Op) -> Op | None:
    """Matrix products, with or without a bias, one or many at once.

    >>> x, w, y = (Tensor((8, 8), "float32", stride=(8, 1), id=number, storage=number) for number in range(3))
    >>> rows = Splitting(2, {}, elementwise, wanted={key_of(x): 1, key_of(w): 0})
    >>> product(rows, Op("aten::mm", (x, w), outputs=(y,)))
    >>> rows.state(y) == PARTIAL
    True
    """
    bias = op.name in ("aten::addmm", "aten::baddbmm")
    a, b = op.args[bias : bias + 2]
    assert isinstance(a, Tensor) and isinstance(b, Tensor)
    batch = len(a.shape) - 2
    left, right = s.split(a), s.split(b)
    if left is None and right is None:
        s.set(out(op), None, op)
        return None
    if batch and 0 in (left, right):
        s.want(a, 0, op)
        s.want(b, 0, op)
        s.set(out(op), 0, op)
        return None
    inner = left == batch + 1 or right == batch
    if inner:
        s.want(a, batch + 1, op)
        s.want(b, batch, op)
        s.set(out(op), PARTIAL, op)
        return None
    if left is not None and right is not None:
        raise ConflictError(op, out(op), "both of its sides are divided")
    s.set(out(op), left if left is not None else right, op)
    if bias and right == batch + 1:
        s.want(first(op), len(first(op).shape) - 1, op)
    return None


def attention(s: Splitting, op: Op) -> Op | None:
    """Scaled dot product attention, forward and backward: samples and heads are apart from each other."""
    dim = next((d for d in (s.split(t) for t in op.tensors) if d is not None), None)
    for tensor in op.tensors:
        if dim is not None and len(tensor.shape) == 4:
            s.want(tensor, dim, op)
    for made in op.produced:
        s.set(made, dim if len(made.shape) >= 3 else None, op)
    return None


def reduction(s: Splitting, op: Op) -> Op | None:
    """Sums and means over dimensions."""
    given, made = first(op), out(op)
    state = s.state(given)
    asked = op.args[1] if len(op.args) > 1 and isinstance(op.args[1], (list, tuple, int)) else None
    dims = asked if isinstance(asked, (list, tuple)) else range(len(given.shape)) if asked is None else [asked]
    gone = [positive(d, given) for d in dims] or list(range(len(given.shape)))
    keep = len(made.shape) == len(given.shape)
    if state is None or state == PARTIAL or state in gone:
        s.set(made, None if state is None else PARTIAL, op)
    else:
        s.set(made, state if keep else state - sum(d < state for d in gone), op)
    return None


def norm(s: Splitting, op: Op) -> Op | None:
    """Layer and root-mean-square norms, forward and backward."""
    dim = next((d for d in (s.split(t) for t in op.tensors) if d is not None), None)
    whole = out(op)
    if dim is not None and dim >= len(whole.shape) - 1:
        raise ConflictError(op, whole, "it norms over the divided dimension")
    for made in op.produced:
        inside = dim is not None and len(made.shape) == len(whole.shape)
        s.set(made, dim if inside else None if dim is None else PARTIAL, op)
    return None


def apart_by_sample(s: Splitting, op: Op) -> Op | None:
    """Convolutions and batch norms: samples may be divided, weights are everybody's and their gradients are sums."""
    divided = next((t for t in op.tensors if s.split(t) is not None), None)
    if divided is None:
        return silent(s, op)
    if s.split(divided) != 0 or len(divided.shape) < BATCHED:
        raise ConflictError(op, divided, "only its samples are apart from each other")
    whole = PARTIAL if op.name.endswith("_backward") else None
    for made in op.produced:
        s.set(made, 0 if len(made.shape) >= BATCHED and made.shape[0] == divided.shape[0] else whole, op)
    return None


def convolution_backward(s: Splitting, op: Op) -> Op | None:
    """Gradients of the input, the weight and the bias, as far as they were asked for."""
    of_input, of_weight, of_bias = op.outputs[:3]
    dim = s.split(first(op))
    if dim not in (None, 0):
        raise ConflictError(op, first(op), "only its samples are apart from each other")
    for made, state in ((of_input, dim), (of_weight, PARTIAL), (of_bias, PARTIAL)):
        if isinstance(made, Tensor):
            s.set(made, None if dim is None else state, op)
    return None


def embedding(s: Splitting, op: Op) -> Op | None:
    """Rows of a table by number: of a divided table, each part gives what it has."""
    table, ids = op.args[:2]
    assert isinstance(table, Tensor) and isinstance(ids, Tensor)
    s.set(out(op), PARTIAL if s.split(table) == 0 else s.split(ids), op)
    return None


def embedding_backward(s: Splitting, op: Op) -> Op | None:
    """The gradient of a table."""
    if s.wanted.get(key_of(out(op))) == 0:
        return with_arg(op, 2, part_size(op.args[2], s.ways))
    s.made_free.add(key_of(out(op)))
    s.set(out(op), None if s.split(first(op)) is None else PARTIAL, op)
    return None


def class_loss(s: Splitting, op: Op) -> Op | None:
    """The loss of the right class: divided over samples it is partial; over classes, every part knows all of it."""
    scores, target = (op.args[:2] if op.name.endswith("forward") else op.args[1:3])[:2]
    assert isinstance(scores, Tensor) and isinstance(target, Tensor)
    dim = s.split(scores)
    if dim == 0:
        s.want(target, 0, op)
    for made in op.produced:
        backward = made.shape == scores.shape
        s.set(made, dim if backward else PARTIAL if dim == 0 else None, op)
    return None


def factory(s: Splitting, op: Op) -> Op | None:
    """Something from nothing: divided where somebody wants it so."""
    made = out(op)
    s.made_free.add(key_of(made))
    dim = s.wanted.get(key_of(made))
    if dim is None:
        return None
    sizes = list(op.args[0])  # type: ignore[arg-type]
    sizes[dim] = part_size(sizes[dim], s.ways)
    return with_arg(op, 0, sizes)


def elementwise(s: Splitting, op: Op) -> Op | None:
    """Each element from those at its place: sides are aligned from the right, as PyTorch broadcasts."""
    if any(isinstance(a, list) and any(isinstance(t, Tensor) for t in a) for a in op.args):
        return _by_position(s, op)
    _aligned(s, op, op.tensors, op.produced)
    return None


def _by_position(s: Splitting, op: Op) -> Op | None:
    """Lists of tensors, as foreach and fused optimizers take them: each place is a call of its own."""
    lists = [[t for t in a if isinstance(t, Tensor)] for a in op.args if isinstance(a, list)]
    lists = [tensors for tensors in lists if tensors]
    made = [[t for t in o if isinstance(t, Tensor)] for o in op.outputs if isinstance(o, list)]
    for place in range(len(lists[0])):
        _aligned(s, op, [one[place] for one in lists if place < len(one)], [m[place] for m in made if place < len(m)])
    return None


def _aligned(s: Splitting, op: Op, tensors: Sequence[Tensor], made: Sequence[Tensor]) -> None:
    dims = {len(t.shape) - d for t in tensors if (d := s.split(t)) is not None}
    if not dims:
        partial = any(s.state(t) == PARTIAL for t in tensors)
        for result in made:
            s.set(result, PARTIAL if partial else None, op)
        return
    if len(dims) > 1:
        raise ConflictError(op, tensors[0], "its arguments are divided in several dimensions")
    back = dims.pop()
    full = max(t.shape[len(t.shape) - back] for t in tensors if s.split(t) is not None)
    for tensor in tensors:
        if len(tensor.shape) >= back and tensor.shape[len(tensor.shape) - back] == full:
            s.want(tensor, len(tensor.shape) - back, op)
    for result in made:
        alike = len(result.shape) >= back and result.shape[len(result.shape) - back] == full
        if not alike:
            raise ConflictError(op, result, "its result has no such dimension")
        s.set(result, len(result.shape) - back, op)


def silent(s: Splitting, op: Op) -> Op | None:
    """A call whose results are whole whatever it is given: a value for the host."""
    for made in op.produced:
        s.set(made, None, op)
    return None


def _table(*pairs: tuple[Rule, Sequence[str]]) -> dict[str, Rule]:
    return {f"aten::{name}": rule for rule, names in pairs for name in names}


RULES: dict[str, Rule] = _table(
    (view, ("view", "_unsafe_view", "reshape", "_reshape_alias")),
    (expand, ("expand",)),
    (transpose, ("transpose", "t", "permute")),
    (unsqueeze, ("unsqueeze",)),
    (squeeze, ("squeeze", "select")),
    (cut, ("split", "split_with_sizes", "slice", "unbind", "chunk")),
    (join, ("cat", "stack")),
    (product, ("mm", "addmm", "bmm", "baddbmm")),
    (reduction, ("sum", "mean", "amax", "amin")),
    (norm, ("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward")),
    (apart_by_sample, ("convolution", *BATCH_NORMS, *(f"{kind}_backward" for kind in BATCH_NORMS))),
    (convolution_backward, ("convolution_backward",)),
    (embedding, ("embedding",)),
    (embedding_backward, ("embedding_dense_backward",)),
    (class_loss, ("nll_loss_forward", "nll_loss_backward")),
    (factory, ("empty", "zeros", "ones", "full", "randn", "rand")),
    (silent, ("_local_scalar_dense", "item")),
    (attention, [f"_scaled_dot_product_{kind}{way}" for kind in ATTENTION for way in ("", "_backward")]),
)
MOVES = frozenset(name for name, rule in RULES.items() if rule in (view, expand, transpose, unsqueeze, squeeze, cut))
"""Calls that only look at what they are given: a sum that is due may wait till after them."""


def by_sample(s: Splitting, op: Op) -> Op | None:
    """A call of which no more is known than that it treats each sample apart: what has no samples is their sum."""
    try:
        return elementwise(s, op)
    except ConflictError:
        sizes = {t.shape[0] for t in op.tensors if s.split(t) == 0}
        if len(sizes) != 1:
            raise
    for made in op.produced:
        s.set(made, 0 if made.shape and made.shape[0] in sizes else PARTIAL, op)
    return None
