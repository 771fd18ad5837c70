"""What tensors must hold for the calls that read them, where a recording does not say: ids inside tables, and so on.

A role is found by the op that reads a tensor and by the place it is read at. Calls that only move data hand it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from foretrace.graph import Content, Indices, Op, Tensor, Value, tensors_in

MOVES = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "slice", "expand", "clone", "_to_copy", "constant_pad_nd", "unsqueeze", "squeeze", "t",
        "transpose", "permute", "detach", "alias", "select", "reshape", "lift_fresh", "_reshape_alias", "as_strided",
        "contiguous", "split", "chunk", "unbind", "split_with_sizes", "_pin_memory",
    )
)  # fmt: skip
"""Ops whose result holds what they were given."""

SHIFTS = frozenset(f"aten::{name}" for name in ("add", "sub", "add_", "sub_", "remainder", "clamp", "where"))
"""Ops that leave integers much what they were, so that ids stay ids."""

POSITIVE = Content("uniform", {"low": 1e-8, "high": 1e-4})
UNIT = Content("uniform", {"low": 0.01, "high": 0.99})


@dataclass(frozen=True)
class Reading:
    """A call that reads tensors by role, and what is known of the ids it asks for."""

    op: Op
    indices: Indices | None = None

    def __getitem__(self, place: int) -> Value:
        return self.op.args[place] if place < len(self.op.args) else None

    def rows(self, place: int, dim: int = 0) -> int:
        """Rows of the table at a place, which may be given as their number."""
        table = self[place]
        if isinstance(table, Tensor):
            return table.shape[dim] if table.shape else 1
        return table if isinstance(table, int) else 1

    def ids(self, rows: int) -> Content:
        """Row ids by the recorded reuse, where that was counted."""
        facts: dict[str, bool | int | float | list[int] | list[float]] = {"low": 0, "high": max(rows - 1, 0)}
        if self.indices is not None:
            facts |= {"unique": self.indices.unique, "reuse": list(self.indices.reuse)}
        return Content("ids", facts)


Roles = Iterator[tuple[Value, Content]]


def _bag(call: Reading) -> Roles:
    ids, offsets = call[1], call[2]
    yield ids, call.ids(call.rows(0))
    yield offsets, Content("even", {"total": sum(t.numel for t in tensors_in(ids)), "whole": bool(call[8])})


def _bag_backward(call: Reading) -> Roles:
    count, bags = (sum(t.numel for t in tensors_in(call[place])) for place in (1, 5))
    yield call[1], call.ids(call.rows(6))
    yield call[2], Content("even", {"total": count, "whole": False})
    yield call[3], Content("bags", {"total": count, "bags": bags})
    yield call[4], Content("constant", {"value": count // max(bags, 1)})


def _rows_of(table: int, places: int, dim: int | None = None) -> Callable[[Reading], Roles]:
    def roles(call: Reading) -> Roles:
        along = call[dim] if dim is not None else 0
        yield call[places], call.ids(call.rows(table, along if isinstance(along, int) else 0))

    return roles


def _positions(call: Reading) -> Roles:
    table, places = call[0], call[1]
    if not isinstance(table, Tensor) or not isinstance(places, (list, tuple)):
        return
    asked = [(dim, place) for dim, place in enumerate(places) if isinstance(place, Tensor)]
    sides = {table.shape[dim] for dim, _ in asked if dim < len(table.shape)}
    count = asked[0][1].numel if asked else 0
    if len(asked) == 2 and len(sides) == 1 and count == (side := sides.pop()) * (side - 1) // 2:
        for row, (_, place) in enumerate(asked):
            yield place, Content("tril", {"side": side, "offset": -1, "row": row})
        return
    for dim, place in asked:
        if place.dtype != "bool" and dim < len(table.shape):
            yield place, call.ids(table.shape[dim])


def _sparse(indices: int) -> Callable[[Reading], Roles]:
    def roles(call: Reading) -> Roles:
        places, shape = call[indices], call[2]
        if isinstance(places, Tensor) and places.shape and isinstance(shape, (list, tuple)):
            along = [size for size in shape[: places.shape[0]] if isinstance(size, int)]
            yield places, call.ids(min(along, default=1))

    return roles


def _classes(scores: int, target: int) -> Callable[[Reading], Roles]:
    def roles(call: Reading) -> Roles:
        given = call[scores]
        dim = 1 if isinstance(given, Tensor) and len(given.shape) > 1 else 0
        yield call[target], Content("ids", {"low": 0, "high": max(call.rows(scores, dim) - 1, 0)})

    return roles


def _positive(*places: int) -> Callable[[Reading], Roles]:
    def roles(call: Reading) -> Roles:
        for place in places:
            for tensor in tensors_in(call[place]):
                yield tensor, POSITIVE

    return roles


def _fused(call: Reading) -> Roles:
    yield from _positive(3, 4)(call)
    for tensor in tensors_in(call[5]):
        yield tensor, Content("constant", {"value": 10.0})


def _unit(*places: int) -> Callable[[Reading], Roles]:
    def roles(call: Reading) -> Roles:
        for place in places:
            yield call[place], UNIT

    return roles


def _variance(call: Reading) -> Roles:
    yield call[4], Content("constant", {"value": 1.0})


BY_OP: dict[str, Callable[[Reading], Roles]] = {
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
    "aten::binary_cross_entropy": _unit(0, 1),
    "aten::binary_cross_entropy_with_logits": _unit(1),
    "aten::_fused_adamw_": _fused,
    "aten::_fused_adam_": _fused,
    "aten::_foreach_sqrt": _positive(0),
    "aten::sqrt": _positive(0),
    "aten::rsqrt": _positive(0),
    "aten::native_batch_norm": _variance,
    "aten::cudnn_batch_norm": _variance,
    "aten::_native_batch_norm_legit": _variance,
}


def roles(ops: Sequence[Op], indices: dict[int, Indices]) -> dict[int, Content]:
    """What each storage's first reader asks of it, by storage id.

    Parameters
    ----------
    ops
        The calls of a step.
    indices
        Statistics of the ids of calls, by their position.

    >>> ids = Tensor((8,), "int64", id=1, storage=1)
    >>> call = Op("aten::embedding", (Tensor((100, 4), "float32", id=0, storage=0), ids))
    >>> roles([call], {})[1].facts["high"]
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
        for value, content in BY_OP[op.name](Reading(op, indices.get(row))):
            for tensor in tensors_in(value):
                found.setdefault(source.get(tensor.storage, tensor.storage), content)
    return found
