"""Which reuse of rows goes with which call: a lookup's own, and the same one for its gradient and its update."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.costs.families.lookups import BAGS, NUM_WEIGHTS, UPDATES
from foretrace.costs.families.reuse import evenly
from foretrace.graph import Indices, Op

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
    by_ids: dict[int, Indices] = {}
    by_table: dict[int, Indices] = {}
    for place, op in enumerate(ops):
        found = given.get(place)
        if op.name in READS and len(op.tensors) > 1:
            table, ids = op.tensors[:2]
            found = found or evenly(table.shape[0] if table.shape else 1, ids.numel)
            if ids.storage >= 0 <= table.storage:
                by_ids[ids.storage] = by_table[table.storage] = found
        elif op.name in NUM_WEIGHTS:
            found = found or next((by_ids[t.storage] for t in op.tensors[1:2] if t.storage in by_ids), None)
        elif op.name in UPDATES and op.tensors:
            found = found or by_table.get(op.tensors[0].storage)
        if found is not None:
            result[place] = found
    return result
