"""Rules by which a split dimension goes through each kind of call, from its arguments to its results.

A rule sets the states of the results (`Splitting.set`) and returns the call if its sizes change with the split. To
support an op, write a rule and add it to `RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from foretrace.graph import Op, Tensor, tensors_in
from foretrace.transforms.parallel.splitting import PARTIAL, ConflictError, Rule, Splitting, key_of

FUSED_SIZES = (2, 3)
"""Sizes of a dimension over fused projections: gate and up; query, key and value. It is never split."""


def first(op: Op) -> Tensor:
    """The first argument, a tensor."""
    value = op.args[0]
    assert isinstance(value, Tensor)
    return value


def out(op: Op) -> Tensor:
    """The first result."""
    if not op.produced:
        raise ConflictError(op, op.tensors[0], "its results are unknown")
    return op.produced[0]


def positive(dim: Any, tensor: Tensor) -> int:
    """A dimension as a non-negative index."""
    return int(dim) % max(len(tensor.shape), 1)


def with_arg(op: Op, place: int, value: Any) -> Op:
    """A call with another argument at a position."""
    return replace(op, args=(*op.args[:place], value, *op.args[place + 1 :]))


def view_dim(
    old: Sequence[int], new: Sequence[int], dim: int, lead: int, parts: int, padded: Collection[int] = ()
) -> tuple[int, int] | None:
    """The dimension of a view that a split dimension becomes, and the size of what is merged into it before that.

    None if no dimension can be split. Sizes that are ``padded`` can be.

    >>> view_dim((8, 32, 64), (8, 32, 4, 16), 2, 1, 2), view_dim((8, 4, 32, 16), (32, 32, 16), 1, 1, 2)
    ((2, 1), (0, 8))
    >>> view_dim((32, 32, 16), (8, 4, 32, 16), 0, 8, 2), view_dim((6,), (3, 2), 0, 1, 2)
    ((1, 1), (1, 1))
    """
    start, end = math.prod(old[:dim]) * lead, math.prod(old[: dim + 1])
    at = 1
    for place, size in enumerate(new):
        if size > 1 and at < end and at * size > start:
            before = max(start // at, 1)
            if (size // before) % parts == 0 or size in padded:
                return place, before
            if size not in FUSED_SIZES:
                return None
        at *= size
    return None


def with_size_divided(s: Splitting, op: Op, place: int, dim: int) -> Op:
    """A call with one of the sizes at a position divided."""
    sizes = list(op.args[place])  # type: ignore[arg-type]
    sizes[dim] = s.part_size(sizes[dim])
    return with_arg(op, place, sizes)


def of_split(rule: Callable[[Splitting, Op, int], Op | None]) -> Rule:
    """A rule for calls that view their first argument where that is split: whole or partial, the view is that too."""

    def applied(s: Splitting, op: Op) -> Op | None:
        state = s.state(first(op))
        if state is not None and state != PARTIAL:
            return rule(s, op, state)
        for made in op.produced or [out(op)]:
            s.set(made, state, op)
        return None

    return applied


@of_split
def view(s: Splitting, op: Op, split: int) -> Op | None:
    """Views: another shape for the same elements."""
    given, made = first(op), out(op)
    found = view_dim(given.shape, made.shape, split, s.lead.get(key_of(given), 1), s.parts, s.padded)
    if found is None:
        raise ConflictError(op, made, f"dimension {split} of {list(given.shape)} can't be followed")
    dim, lead = found
    s.set(made, dim, op, lead)
    return with_size_divided(s, op, 1, dim)


def expand(s: Splitting, op: Op) -> Op | None:
    """Expand: new and repeated dimensions; a scalar is repeated as wanted."""
    given, made = first(op), out(op)
    state = s.state(given) if given.shape else s.wanted.get(key_of(made), s.state(given))
    if state is None or state == PARTIAL:
        s.set(made, state, op)
        return None
    dim = state + len(made.shape) - len(given.shape) if given.shape else state
    s.set(made, dim, op)
    return with_size_divided(s, op, 1, dim)


@of_split
def transpose(s: Splitting, op: Op, split: int) -> None:
    """Transpositions: dimensions in another order."""
    given = first(op)
    dims = list(range(len(given.shape)))
    if op.name == "aten::permute":
        dims = [positive(d, given) for d in op.args[1]]  # type: ignore[union-attr]
    elif len(dims) > 1:
        one, other = (0, 1) if op.name == "aten::t" else (positive(d, given) for d in op.args[1:3])
        dims[one], dims[other] = dims[other], dims[one]
    s.set(out(op), dims.index(split), op)


@of_split
def unsqueeze(s: Splitting, op: Op, split: int) -> None:
    """Unsqueeze: a new dimension of size one."""
    s.set(out(op), split + (positive(op.args[1], out(op)) <= split), op)


@of_split
def squeeze(s: Splitting, op: Op, split: int) -> None:
    """Squeeze removes dimensions of size one; ``select`` removes one of any size."""
    given = first(op)
    if op.name == "aten::select":
        gone = [positive(op.args[1], given)]
    else:
        asked = op.args[1] if len(op.args) > 1 else list(range(len(given.shape)))
        dims = [positive(dim, given) for dim in (asked if isinstance(asked, (list, tuple)) else [asked])]
        gone = [dim for dim in dims if given.shape[dim] == 1]
    if split in gone:
        raise ConflictError(op, given, "it selects one index of the split dimension")
    s.set(out(op), split - sum(dim < split for dim in gone), op)


@of_split
def cut(s: Splitting, op: Op, split: int) -> Op | None:
    """Pieces along a dimension: split, split_with_sizes, slice, unbind, chunk."""
    unbinds, slices = op.name == "aten::unbind", op.name == "aten::slice"
    place = 1 if unbinds or slices else 2
    along = positive(op.args[place] if len(op.args) > place else 0, first(op))
    for made in op.produced:
        s.set(made, split - (unbinds and along < split), op)
    if split != along:
        return None
    if unbinds:
        raise ConflictError(op, first(op), "it unbinds the split dimension")
    if slices:
        bounds = [s.part_size(a) if isinstance(a, int) and 0 < a < 1 << 62 else a for a in op.args[2:4]]
        return replace(op, args=(*op.args[:2], *bounds, *op.args[4:]))
    sizes = op.args[1]
    divided = [s.part_size(n) for n in sizes] if isinstance(sizes, list) else s.part_size(sizes)
    return with_arg(op, 1, divided)


@of_split
def complex_view(s: Splitting, op: Op, split: int) -> None:
    """Pairs as complex numbers, and back: the last dimension, of two, comes and goes."""
    if split >= len(out(op).shape):
        raise ConflictError(op, first(op), "real and imaginary parts can't be split")
    s.set(out(op), split, op)


def concat(s: Splitting, op: Op) -> None:
    """Cat and stack."""
    parts = tensors_in(op.args[0])
    dims = [d for d in (s.split_dim(t) for t in parts) if d is not None]
    if not dims:
        s.set(out(op), PARTIAL if any(s.state(t) == PARTIAL for t in parts) else None, op)
        return
    whole = max(len(part.shape) for part in parts)  # cat accepts an empty vector among any tensors
    for part in parts:
        if len(part.shape) == whole:
            s.require(part, dims[0], op)
    shift = op.name == "aten::stack" and positive(op.args[1] if len(op.args) > 1 else 0, out(op)) <= dims[0]
    s.set(out(op), dims[0] + shift, op)


ATTENTION = (
    "flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable",
    "flash_attention_for_cpu",
)  # fmt: skip

BATCH_NORMS = (
    "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
)  # fmt: skip
KEEPS_STATISTICS = frozenset(f"aten::{name}" for name in BATCH_NORMS)
"""Calls that read and update running statistics."""
MIN_SAMPLE_DIMS = 2
"""Fewest dimensions of a tensor that holds samples: statistics have one."""


def gemm(s: Splitting, op: Op) -> None:
    """Matrix products, with or without bias, batched or not."""
    bias = op.name in ("aten::addmm", "aten::baddbmm")
    a, b = op.args[bias : bias + 2]
    assert isinstance(a, Tensor) and isinstance(b, Tensor)
    batch = len(a.shape) - 2
    left, right = s.split_dim(a), s.split_dim(b)
    if left is None and right is None:
        s.set(out(op), None, op)
        return
    if batch and 0 in (left, right):
        s.require(a, 0, op)
        s.require(b, 0, op)
        s.set(out(op), 0, op)
        return
    inner = left == batch + 1 or right == batch
    if inner:
        s.require(a, batch + 1, op)
        s.require(b, batch, op)
        s.set(out(op), PARTIAL, op)
        return
    if left is not None and right is not None:
        raise ConflictError(op, out(op), "both of its matrices are split")
    s.set(out(op), left if left is not None else right, op)
    if bias and right == batch + 1:
        s.require(first(op), len(first(op).shape) - 1, op)


def attention(s: Splitting, op: Op) -> None:
    """Scaled dot product attention, forward and backward: samples and heads are independent."""
    dim = next((d for d in (s.split_dim(t) for t in op.tensors) if d is not None), None)
    for tensor in op.tensors:
        if dim is not None and len(tensor.shape) == 4:
            s.require(tensor, dim, op)
    for made in op.produced:
        s.set(made, dim if len(made.shape) >= 3 else None, op)


def reduction(s: Splitting, op: Op) -> None:
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


def vector_norm(s: Splitting, op: Op) -> None:
    """Norms of whole tensors, as gradients are clipped by: of a part, they are a part of the norm."""
    for given, made in zip(op.tensors, op.produced):
        if made.shape:
            raise ConflictError(op, given, "only norms of whole tensors are split")
        s.set(made, None if s.state(given) is None else PARTIAL, op)


def norm(s: Splitting, op: Op) -> None:
    """Layer and root-mean-square norms, forward and backward."""
    dim = next((d for d in (s.split_dim(t) for t in op.tensors) if d is not None), None)
    whole = first(op)  # backward may have made gradients of the weights alone
    if dim is not None and dim >= len(whole.shape) - 1:
        raise ConflictError(op, whole, "it normalizes over the split dimension")
    for made in op.produced:
        inside = dim is not None and len(made.shape) == len(whole.shape)
        s.set(made, dim if inside else None if dim is None else PARTIAL, op)


def sample_independent(s: Splitting, op: Op) -> None:
    """Convolutions and batch norms: samples may be split; weights are shared, and their gradients are partial sums."""
    split = next((t for t in op.tensors if s.split_dim(t) is not None), None)
    if split is None:
        unsplit(s, op)
        return
    if s.split_dim(split) != 0 or len(split.shape) < MIN_SAMPLE_DIMS:
        raise ConflictError(op, split, "only its samples are independent")
    others = PARTIAL if op.name.endswith("_backward") else None
    for made in op.produced:
        s.set(made, 0 if len(made.shape) >= MIN_SAMPLE_DIMS and made.shape[0] == split.shape[0] else others, op)


def convolution_backward(s: Splitting, op: Op) -> None:
    """Gradients of the input, the weight and the bias, as far as they were requested."""
    of_input, of_weight, of_bias = op.outputs[:3]
    dim = s.split_dim(first(op))
    if dim not in (None, 0):
        raise ConflictError(op, first(op), "only its samples are independent")
    for made, state in ((of_input, dim), (of_weight, PARTIAL), (of_bias, PARTIAL)):
        if isinstance(made, Tensor):
            s.set(made, None if dim is None else state, op)


def embedding(s: Splitting, op: Op) -> None:
    """Embedding lookups: each part of a split table returns the rows that it has."""
    table, ids = op.args[:2]
    assert isinstance(table, Tensor) and isinstance(ids, Tensor)
    s.set(out(op), PARTIAL if s.split_dim(table) == 0 else s.split_dim(ids), op)


def embedding_backward(s: Splitting, op: Op) -> Op | None:
    """The gradient of an embedding table."""
    if s.wanted.get(key_of(out(op))) == 0:
        return with_arg(op, 2, s.part_size(op.args[2]))
    s.splittable.add(key_of(out(op)))
    s.set(out(op), None if s.split_dim(first(op)) is None else PARTIAL, op)
    return None


def class_loss(s: Splitting, op: Op) -> None:
    """Negative log likelihood: partial if samples are split; if classes are, every part has all of it."""
    scores, target = (op.args[:2] if op.name.endswith("forward") else op.args[1:3])[:2]
    assert isinstance(scores, Tensor) and isinstance(target, Tensor)
    dim = s.split_dim(scores)
    if dim == 0:
        s.require(target, 0, op)
    for made in op.produced:
        backward = made.shape == scores.shape
        s.set(made, dim if backward else PARTIAL if dim == 0 else None, op)


def factory(s: Splitting, op: Op) -> Op | None:
    """Factories: the result is split on demand."""
    made = out(op)
    s.splittable.add(key_of(made))
    dim = s.wanted.get(key_of(made))
    return None if dim is None else with_size_divided(s, op, 0, dim)


def elementwise(s: Splitting, op: Op) -> None:
    """Element-wise calls: dimensions are aligned from the right, as in broadcasting."""
    if any(isinstance(a, list) and any(isinstance(t, Tensor) for t in a) for a in op.args):
        _by_position(s, op)
    else:
        _aligned(s, op, op.tensors, op.produced)


def _by_position(s: Splitting, op: Op) -> None:
    """Lists of tensors, as in foreach and fused optimizers: each position is a call of its own."""
    lists = [[t for t in a if isinstance(t, Tensor)] for a in op.args if isinstance(a, list)]
    lists = [tensors for tensors in lists if tensors]
    made = [[t for t in o if isinstance(t, Tensor)] for o in op.outputs if isinstance(o, list)]
    for place in range(len(lists[0])):
        _aligned(s, op, [one[place] for one in lists if place < len(one)], [m[place] for m in made if place < len(m)])


def _aligned(s: Splitting, op: Op, tensors: Sequence[Tensor], made: Sequence[Tensor]) -> None:
    dims = {len(t.shape) - d for t in tensors if (d := s.split_dim(t)) is not None}
    if not dims:
        partial = any(s.state(t) == PARTIAL for t in tensors)
        for result in made:
            s.set(result, PARTIAL if partial else None, op)
        return
    if len(dims) > 1:
        raise ConflictError(op, tensors[0], "its arguments are split along different dimensions")
    back = dims.pop()
    full = max(t.shape[len(t.shape) - back] for t in tensors if s.split_dim(t) is not None)
    for tensor in tensors:
        if len(tensor.shape) >= back and tensor.shape[len(tensor.shape) - back] == full:
            s.require(tensor, len(tensor.shape) - back, op)
    for result in made:
        alike = len(result.shape) >= back and result.shape[len(result.shape) - back] == full
        if not alike:
            raise ConflictError(op, result, "its result has no such dimension")
        s.set(result, len(result.shape) - back, op)


def along_one(s: Splitting, op: Op) -> None:
    """Softmax, sort and running sums: element-wise but for the dimension that they go along."""
    named = op.kwargs.get("dim", next((a for a in op.args if isinstance(a, int) and not isinstance(a, bool)), -1))
    if s.split_dim(first(op)) == positive(named, first(op)):
        raise ConflictError(op, first(op), "it goes along the split dimension")
    elementwise(s, op)


def routed(s: Splitting, op: Op) -> None:
    """Calls that choose rows for experts: each part of the tokens is sorted and counted by itself.

    Results that have as many rows as an argument that is split have parts of them; others, as the rows that each expert
    has, are of as many elements on each rank.
    """
    split = [t for t in op.tensors if s.state(t) is not None]
    if any(s.state(t) != 0 for t in split) or (op.name == "aten::sort" and len(first(op).shape) > 1):
        (along_one if op.name == "aten::sort" else s.default_rule)(s, op)
        return
    sizes = {t.shape[0] for t in split}
    for tensor in op.tensors:
        if tensor.shape and tensor.shape[0] in sizes:
            s.require(tensor, 0, op)
    for made in op.produced:
        s.set(made, 0 if made.shape and made.shape[0] in sizes else None, op)


def grouped_gemm(s: Splitting, op: Op) -> None:
    """Grouped GEMMs over rows sorted by expert: parts have some rows of each, and gradients of weights are partial."""
    a, b = op.args[:2]
    assert isinstance(a, Tensor) and isinstance(b, Tensor)
    left, right = s.split_dim(a), s.split_dim(b)
    if len(b.shape) == 2 and (left == 1 or right == 0):
        s.require(a, 1, op)
        s.require(b, 0, op)
        s.set(out(op), PARTIAL, op)
    elif right is not None or left not in (None, 0):
        raise ConflictError(op, out(op), "only rows of grouped GEMMs are split")
    else:
        s.set(out(op), left, op)


def unsplit(s: Splitting, op: Op) -> None:
    """Calls whose results are always whole: values for the host."""
    for made in op.produced:
        s.set(made, None, op)


def _table(*pairs: tuple[Rule, Sequence[str]]) -> dict[str, Rule]:
    return {f"aten::{name}": rule for rule, names in pairs for name in names}


RULES: dict[str, Rule] = _table(
    (view, ("view", "_unsafe_view", "reshape", "_reshape_alias")),
    (expand, ("expand",)),
    (transpose, ("transpose", "t", "permute")),
    (unsqueeze, ("unsqueeze",)),
    (squeeze, ("squeeze", "select")),
    (complex_view, ("view_as_complex", "view_as_real")),
    (cut, ("split", "split_with_sizes", "slice", "unbind", "chunk")),
    (concat, ("cat", "stack")),
    (gemm, ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm")),
    (reduction, ("sum", "mean", "amax", "amin")),
    (norm, ("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward")),
    (vector_norm, ("linalg_vector_norm", "_foreach_norm")),
    (sample_independent, ("convolution", *BATCH_NORMS, *(f"{kind}_backward" for kind in BATCH_NORMS))),
    (convolution_backward, ("convolution_backward",)),
    (embedding, ("embedding",)),
    (embedding_backward, ("embedding_dense_backward",)),
    (class_loss, ("nll_loss_forward", "nll_loss_backward")),
    (factory, ("empty", "zeros", "ones", "full", "randn", "rand")),
    (unsplit, ("_local_scalar_dense", "item")),
    (grouped_gemm, ("_grouped_mm",)),
    (routed, ("sort", "bincount", "index", "index_add", "index_select", "_index_put_impl_", "index_put_")),
    (along_one, ("_softmax", "_softmax_backward_data", "argsort", "cumsum", "cumprod", "logcumsumexp")),
    (attention, [f"_scaled_dot_product_{kind}{suffix}" for kind in ATTENTION for suffix in ("", "_backward")]),
)
VIEWS = frozenset(
    name for name, rule in RULES.items() if rule in (view, expand, transpose, unsqueeze, squeeze, complex_view, cut)
)
"""Calls that only view their argument: a pending reduction may come after them."""


def by_sample(s: Splitting, op: Op) -> None:
    """Calls without a rule, assumed to treat samples independently: results without samples are partial sums."""
    try:
        elementwise(s, op)
    except ConflictError:
        sizes = {t.shape[0] for t in op.tensors if s.split_dim(t) == 0}
        if len(sizes) != 1:
            raise
        for made in op.produced:
            s.set(made, 0 if made.shape and made.shape[0] in sizes else PARTIAL, op)
