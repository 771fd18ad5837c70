"""What sparse tensors are made of, as the calls around them tell."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor

JOINS = ("aten::_sparse_coo_tensor_unsafe", "aten::_sparse_coo_tensor_with_dims_and_tensors")
PARTS = {"aten::_indices": 0, "aten::_values": 1}


def sparse_parts(ops: Sequence[Op]) -> dict[int, tuple[Tensor, Tensor]]:
    """Indices and values of each sparse tensor, by its id, where a call put them together or took them apart.

    >>> ids, rows = Tensor((1, 9), "int64", id=0, storage=0), Tensor((9, 4), "float32", id=1, storage=1)
    >>> gradient = Tensor((50, 4), "float32", id=2, layout="sparse_coo")
    >>> parts = sparse_parts([Op(JOINS[0], (ids, rows, [50, 4]), outputs=(gradient,))])
    >>> parts[2] == (ids, rows)
    True
    """
    apart: dict[int, dict[int, Tensor]] = {}
    for op in ops:
        if op.name in JOINS:
            for made in op.produced:
                apart[made.id] = dict(enumerate([t for t in op.tensors if t.layout == "strided"][-2:]))
        elif op.name in PARTS:
            for whole, part in zip(op.tensors, op.produced):
                if part.layout == "strided":  # a damaged recording may have a tensor that is its own part
                    apart.setdefault(whole.id, {}).setdefault(PARTS[op.name], part)
    return {number: (parts[0], parts[1]) for number, parts in apart.items() if len(parts) == 2}
