"""Which reuse of rows goes with which call: a lookup's own, and the same one for its gradient and its update."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from foretrace.cost_models.families.lookups import BAGS, NUM_WEIGHTS, UPDATES
from foretrace.cost_models.families.reuse import evenly
from foretrace.graph import Indices, Op, Tensor

READS = (*BAGS, "aten::embedding")


def spread_of_ids(ops: Sequence[Op], known: Sequence[Indices]) -> dict[int, Indices]:
    """Statistics by position of the op; ids nobody looked at are taken to be spread evenly.

    >>> from foretrace.graph import Tensor
    >>> table, ids = Tensor((100, 8), "float32", storage=1), Tensor((40,), "int64", storage=2)
    >>> grad = Tensor((100, 8), "float32", layout="sparse_coo")
    >>> found = spread_of_ids([Op("aten::embedding", (table, ids)), Op("aten::add_", (table, grad))], [])
    >>> found[0].count, found[1] is found[0]
    (40, True)
    """
    given = {indices.op: indices for indices in known}
    result: dict[int, Indices] = {}
    by_ids: dict[Hashable, Indices] = {}
    by_table: dict[Hashable, Indices] = {}
    for place, op in enumerate(ops):
        found = given.get(place)
        if op.name in READS and len(op.tensors) > 1:
            table, ids = op.tensors[:2]
            found = found or evenly(table.shape[0] if table.shape else 1, ids.numel)
            by_ids[_known_by(ids)] = by_table[_known_by(table)] = found
        elif op.name in NUM_WEIGHTS and len(op.tensors) > 1:
            found = found or by_ids.get(_known_by(op.tensors[1]))
        elif op.name in UPDATES and op.tensors:
            found = found or by_table.get(_known_by(op.tensors[0]))
        if found is not None:
            result[place] = found
    return result


def _known_by(tensor: Tensor) -> Hashable:
    """Its storage; its shape in a trace that does not tell storages."""
    return tensor.storage if tensor.storage >= 0 else tensor.shape
