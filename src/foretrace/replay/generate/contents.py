"""Contents of input tensors: as recorded, else as the calls that read them need, else small numbers or zeros.

What a call needs follows from its op and the position of the argument, for instance ids inside a table. Calls that only
move data pass the requirement on to their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from foretrace.graph import Content, Graph, Indices, Op, Tensor, Value, tensors_in
from foretrace.graph.graph import Fact
from foretrace.graph.op import COMPILED_PROGRAM
from foretrace.graph.operators import COLLECTIVE_CALLS
from foretrace.graph.programs import unfold
from foretrace.replay.generate.plan import Plan

CONTENT_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool | None]] = {
    "values": (("values",), (), None),
    "constant": (("value",), (), None),
    "normal": (("mean", "std", "low", "high"), ("zeros",), True),
    "uniform": (("low", "high"), ("zeros",), True),
    "either": (("one", "other", "share"), (), None),
    "triangle": (("below", "above"), (), None),
    "arange": (("start", "step", "period"), (), False),
    "tril": (("side", "offset", "row"), (), False),
    "offsets": (("first", "last", "steps"), (), False),
    "ids": (("low", "high"), ("unique", "reuse", "sorted", "none", "nones"), False),
    "even": (("total", "whole"), (), False),
    "bags": (("total", "bags"), (), False),
}
"""By kind of content: required and optional facts, and whether it is of floats (None for any dtype)."""
REQUIRED_KINDS = ("ids", "even", "bags", "tril")
"""Kinds without which the reading calls fail."""
HISTOGRAMS, MAX_BINS = ("reuse", "steps"), 63
WHOLE = ("start", "step", "period", "first", "last", "unique", "none", "nones", "total", "bags")
NEVER_NEGATIVE = ("std", "unique", "nones", "period", "total", "bags")
INT_LIMIT = 1 << 62
SMALL_NUMBERS = Content("normal", {"mean": 0.0, "std": 0.02, "low": -0.1, "high": 0.1})


def with_contents(plan: Plan, graph: Graph, ops: Sequence[Op], rows: Sequence[int]) -> Plan:
    """The plan with a content for each input, and a note on how many were not recorded.

    ``rows`` are those of the ops in the graph's table.
    """
    indices = {found.op: found for found in graph.indices}
    needed = required_contents(ops, {place: indices[row] for place, row in enumerate(rows) if row in indices})
    for op in ops:
        program = plan.programs.get(op.args[0]) if op.name == COMPILED_PROGRAM and op.args else None  # type: ignore[arg-type]
        if program is not None:
            needed = required_contents(unfold(op, program, count(1 << 62)), {}) | needed
    guessed = 0
    for given in plan.inputs:
        recorded = usable_content(graph.contents.get(given.tensor.id), given.tensor)
        role = usable_content(needed.get(given.tensor.storage), given.tensor)
        given.content = recorded or role or default_content(given.tensor)
        guessed += recorded is None
    for call in plan.recorded:
        if call.name.startswith(COLLECTIVE_CALLS):
            brought = (usable_content(needed.get(tensor.storage), tensor) for tensor in ops[call.number].tensors)
            required = [content for content in brought if content is not None and content.kind in REQUIRED_KINDS]
            if required:
                plan.received[call.number] = required[0]
    if guessed:
        plan.notes.append(f"{guessed} of {len(plan.inputs)} inputs hold values made up from what their readers need")
    return plan


def usable_content(content: Content | None, tensor: Tensor) -> Content | None:
    """The content if a tensor can hold it; None otherwise, or where its facts make no sense.

    >>> pairs = Content("tril", {"side": 5, "offset": -1, "row": 0})
    >>> both = Tensor((2, 10), "int64")
    >>> usable_content(pairs, Tensor((10,), "int64")) == pairs, usable_content(pairs, both).facts["row"]
    (True, 2)
    >>> usable_content(Content("normal", {"mean": 0.0, "std": 1.0, "low": -1.0, "high": 1.0}), Tensor((3,), "int64"))
    """
    if content is None or content.kind not in CONTENT_KINDS or tensor.layout != "strided":
        return None
    needed, optional, floating = CONTENT_KINDS[content.kind]
    facts = content.facts
    if not set(needed) <= set(facts) <= {*needed, *optional}:
        return None
    if floating is not None and floating != tensor.dtype.startswith(("float", "bfloat")):
        return None
    if content.kind == "values":
        values = facts["values"]
        known = isinstance(values, list) and all(isinstance(value, (bool, int, float)) for value in values)
        return content if known and len(values) == tensor.numel else None  # type: ignore[arg-type]
    if content.kind == "tril":
        return _pairs(content, tensor)
    return content if _is_plausible(facts, tensor) else None


def _is_plausible(facts: Mapping[str, Fact], tensor: Tensor) -> bool:
    """Whether facts can describe such a tensor."""
    numbers = {name: fact for name, fact in facts.items() if isinstance(fact, (bool, int, float))}
    lists = {name: fact for name, fact in facts.items() if isinstance(fact, list)}
    for name, counts in lists.items():
        if name not in HISTOGRAMS or len(counts) > MAX_BINS or sum(counts) > tensor.numel:
            return False
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            return False
    if any(name in WHOLE and not isinstance(fact, int) for name, fact in numbers.items()):
        return False
    if any(isinstance(fact, int) and abs(fact) >= INT_LIMIT for fact in numbers.values()):
        return False
    if any(numbers.get(name, 0) < 0 for name in NEVER_NEGATIVE) or not numbers.get("period", 1):
        return False
    if numbers.get("unique", 0) + numbers.get("nones", 0) > tensor.numel:
        return False
    return numbers.get("low", 0) <= numbers.get("high", numbers.get("low", 0))


def _pairs(content: Content, tensor: Tensor) -> Content | None:
    """Index pairs below a diagonal, if the tensor has their size: one coordinate, or both."""
    side, offset = content.facts["side"], content.facts["offset"]
    if not isinstance(side, int) or offset not in (-1, 0):
        return None
    count = side * (side + 1 + 2 * int(offset)) // 2
    if tensor.numel == 2 * count:
        return Content("tril", {**content.facts, "row": 2})
    return content if tensor.numel == count and content.facts["row"] in (0, 1) else None


def default_content(tensor: Tensor) -> Content:
    """A content that any op can work with.

    >>> default_content(Tensor((3,), "int64")).facts, default_content(Tensor((3,), "bfloat16")).kind
    ({'value': 0}, 'normal')
    """
    if tensor.dtype.startswith(("float", "bfloat", "complex")):
        return SMALL_NUMBERS
    return Content("constant", {"value": tensor.dtype == "bool" or 0})


MOVES = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "slice", "expand", "clone", "_to_copy", "constant_pad_nd", "unsqueeze", "squeeze", "t",
        "transpose", "permute", "detach", "alias", "select", "reshape", "lift_fresh", "_reshape_alias", "as_strided",
        "contiguous", "split", "chunk", "unbind", "split_with_sizes", "_pin_memory",
    )
)  # fmt: skip
"""Ops whose result holds the values of their first argument."""
SHIFTS = frozenset(f"aten::{name}" for name in ("add", "sub", "add_", "sub_", "remainder", "clamp", "where"))
"""Ops that change integers little, so that ids stay ids."""
POSITIVE = Content("uniform", {"low": 1e-8, "high": 1e-4})
UNIT = Content("uniform", {"low": 0.01, "high": 0.99})
VARIANCE = Content("constant", {"value": 1.0})


@dataclass(frozen=True)
class ReadingCall:
    """A call that reads tensors, with the recorded statistics of its ids."""

    op: Op
    indices: Indices | None = None

    def __getitem__(self, place: int) -> Value:
        return self.op.args[place] if place < len(self.op.args) else None

    def rows(self, place: int, dim: int = 0) -> int:
        """Rows of the table at an argument position; an integer there is their number."""
        table = self[place]
        if isinstance(table, Tensor):
            return table.shape[dim] if table.shape else 1
        return table if isinstance(table, int) else 1

    def ids(self, rows: int) -> Content:
        """Row ids, with the recorded reuse if there is any."""
        facts: dict[str, bool | int | float | list[int] | list[float]] = {"low": 0, "high": max(rows - 1, 0)}
        if self.indices is not None:
            facts |= {"unique": self.indices.unique, "reuse": list(self.indices.reuse)}
        return Content("ids", facts)


Roles = Iterator[tuple[Value, Content]]


def _bag(call: ReadingCall) -> Roles:
    ids, offsets = call[1], call[2]
    yield ids, call.ids(call.rows(0))
    yield offsets, Content("even", {"total": sum(t.numel for t in tensors_in(ids)), "whole": bool(call[8])})


def _bag_backward(call: ReadingCall) -> Roles:
    count, bags = (sum(t.numel for t in tensors_in(call[place])) for place in (1, 5))
    yield call[1], call.ids(call.rows(6))
    yield call[2], Content("even", {"total": count, "whole": False})
    yield call[3], Content("bags", {"total": count, "bags": bags})
    yield call[4], Content("constant", {"value": count // max(bags, 1)})


def _rows_of(table: int, places: int, dim: int | None = None) -> Callable[[ReadingCall], Roles]:
    def contents(call: ReadingCall) -> Roles:
        along = call[dim] if dim is not None else 0
        yield call[places], call.ids(call.rows(table, along if isinstance(along, int) else 0))

    return contents


def _positions(call: ReadingCall) -> Roles:
    table, places = call[0], call[1]
    if not isinstance(table, Tensor) or not isinstance(places, (list, tuple)):
        return
    indexed = [(dim, place) for dim, place in enumerate(places) if isinstance(place, Tensor)]
    sides = {table.shape[dim] for dim, _ in indexed if dim < len(table.shape)}
    count = indexed[0][1].numel if indexed else 0
    if len(indexed) == 2 and len(sides) == 1 and count == (side := sides.pop()) * (side - 1) // 2:
        for row, (_, place) in enumerate(indexed):
            yield place, Content("tril", {"side": side, "offset": -1, "row": row})
        return
    for dim, place in indexed:
        if place.dtype != "bool" and dim < len(table.shape):
            yield place, call.ids(table.shape[dim])


def _sparse(indices: int) -> Callable[[ReadingCall], Roles]:
    def contents(call: ReadingCall) -> Roles:
        places, shape = call[indices], call[2]
        if isinstance(places, Tensor) and places.shape and isinstance(shape, (list, tuple)):
            along = [size for size in shape[: places.shape[0]] if isinstance(size, int)]
            yield places, call.ids(min(along, default=1))

    return contents


def _classes(scores: int, target: int) -> Callable[[ReadingCall], Roles]:
    def contents(call: ReadingCall) -> Roles:
        given = call[scores]
        dim = 1 if isinstance(given, Tensor) and len(given.shape) > 1 else 0
        yield call[target], Content("ids", {"low": 0, "high": max(call.rows(scores, dim) - 1, 0)})

    return contents


def _holds(content: Content, *places: int) -> Callable[[ReadingCall], Roles]:
    return lambda call: ((call[place], content) for place in places)


def _fused(call: ReadingCall) -> Roles:
    yield from _holds(POSITIVE, 3, 4)(call)
    yield call[5], Content("constant", {"value": 10.0})


BY_OP: dict[str, Callable[[ReadingCall], Roles]] = {
    "aten::_embedding_bag": _bag,
    "aten::_embedding_bag_forward_only": _bag,
    "aten::_embedding_bag_backward": _bag_backward,
    "aten::embedding": _rows_of(0, 1),
    "aten::embedding_dense_backward": _rows_of(2, 1),
    "aten::index_select": _rows_of(0, 2, dim=1),
    "aten::index_add_": _rows_of(0, 2, dim=1),
    "aten::gather": _rows_of(0, 2, dim=1),
    "aten::scatter": _rows_of(0, 2, dim=1),
    "aten::scatter_": _rows_of(0, 2, dim=1),
    "aten::scatter_add_": _rows_of(0, 2, dim=1),
    "aten::index": _positions,
    "aten::index_put_": _positions,
    "aten::_index_put_impl_": _positions,
    "aten::_sparse_coo_tensor_unsafe": _sparse(0),
    "aten::_sparse_coo_tensor_with_dims_and_tensors": _sparse(3),
    "aten::nll_loss_forward": _classes(0, 1),
    "aten::nll_loss_backward": _classes(1, 2),
    "aten::nll_loss2d_forward": _classes(0, 1),
    "aten::nll_loss2d_backward": _classes(1, 2),
    "aten::binary_cross_entropy": _holds(UNIT, 0, 1),
    "aten::binary_cross_entropy_with_logits": _holds(UNIT, 1),
    "aten::_fused_adamw_": _fused,
    "aten::_fused_adam_": _fused,
    "aten::_foreach_sqrt": _holds(POSITIVE, 0),
    "aten::sqrt": _holds(POSITIVE, 0),
    "aten::rsqrt": _holds(POSITIVE, 0),
    "aten::native_batch_norm": _holds(VARIANCE, 4),
    "aten::cudnn_batch_norm": _holds(VARIANCE, 4),
    "aten::_native_batch_norm_legit": _holds(VARIANCE, 4),
}


def required_contents(ops: Sequence[Op], indices: dict[int, Indices]) -> dict[int, Content]:
    """By storage, the content that its first reading call needs; ``indices`` are by the position of their call.

    >>> ids = Tensor((8,), "int64", id=1, storage=1)
    >>> call = Op("aten::embedding", (Tensor((100, 4), "float32", id=0, storage=0), ids))
    >>> required_contents([call], {})[1].facts["high"]
    99
    """
    source: dict[int, int] = {}
    found: dict[int, Content] = {}
    for row, op in enumerate(ops):
        if op.tensors and (op.name in MOVES or (op.name in SHIFTS and op.tensors[0].dtype.startswith("int"))):
            given = op.tensors[0].storage
            for made in op.produced:
                source.setdefault(made.storage, source.get(given, given))
        if op.name not in BY_OP:
            continue
        for value, content in BY_OP[op.name](ReadingCall(op, indices.get(row))):
            for tensor in tensors_in(value):
                found.setdefault(source.get(tensor.storage, tensor.storage), content)
    return found
