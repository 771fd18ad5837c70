"""Chains of element-wise calls as one kernel each, the way a compiler writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.meta_device import is_pointwise
from foretrace.transforms.step import EditedCall, assemble, editable_step, recompute_frees, storages_in

ALSO = ("aten::_to_copy", "aten::native_dropout")
"""Calls that go element by element although PyTorch does not mark them so. The first may also copy to another device;
the second draws random numbers, which a compiled kernel can do by itself."""
NAME = "triton_poi_fused_{}_{}"
LONGEST_NAME = 8
"""Calls named in a kernel's name."""


def fuse_elementwise(graph: Graph) -> Graph:
    """The step with each chain of element-wise calls as one kernel: what stays inside it is neither written nor read.

    A call joins the chain whose result it takes, where both walk the same shape on the same stream, and nothing else
    has looked at that result. What later calls need is written. Reductions, views and the optimizer stay as they are.
    ``torch.compile`` does at least that. It would also make the calls around the chains without Python; here they stay.

    >>> from foretrace.graph import OpTable
    >>> x, y, z = (Tensor((8, 4), "float32", "cuda:0", (4, 1), id=number, storage=number) for number in range(3))
    >>> relu, double = Op("aten::relu", (x,), outputs=(y,)), Op("aten::mul", (y, 2.0), outputs=(z,), frees=())
    >>> relu.overload, double.overload = "default", "Tensor"
    >>> [op.name for op in fuse_elementwise(Graph(OpTable.of([relu, double]))).ops]
    ['triton_poi_fused_relu_mul_0']
    """
    graph, ops = editable_step(graph)
    chains = [chain for chain in _chains(ops) if len(chain.rows) > 1]
    if not chains:
        raise ForetraceError(f"{graph.title} has no two element-wise calls in a row", "There is nothing to fuse.")
    readers = _readers(ops)
    kernels = {chain.rows[-1]: _kernel(chain, ops, readers, number) for number, chain in enumerate(chains)}
    inside = {row for chain in chains for row in chain.rows}
    rows = [EditedCall(kernels.get(row, op), row) for row, op in enumerate(ops) if row in kernels or row not in inside]
    recompute_frees(rows, ops)
    seen = storages_in(row.op for row in rows)
    made = {tensor.storage for row in inside for tensor in ops[row].produced}
    storages = {number: kept for number, kept in graph.storages.items() if number in seen or number not in made}
    fused = assemble(replace(graph, storages=storages), rows)
    fused.notes.append(f"{len(inside)} element-wise calls are {len(chains)} kernels, as a compiler would write them")
    return fused


@dataclass
class _Chain:
    """Calls that one kernel can do."""

    like: Op
    rows: list[int] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    """Storages."""

    def add(self, row: int, op: Op) -> None:
        self.rows.append(row)
        self.read.update(tensor.storage for tensor in op.tensors if tensor.storage not in self.made)
        self.made.update(tensor.storage for tensor in op.produced)

    def takes(self, op: Op) -> bool:
        """Whether a call can be part of it: it walks the same shape, from the same place."""
        here, there = (
            (o.produced[0].shape, o.produced[0].device, o.phase, o.stream, o.thread) for o in (self.like, op)
        )
        return here == there and any(tensor.storage in self.made for tensor in op.tensors)

    def is_ended_by(self, op: Op) -> bool:
        """Whether a call that is not part of it reads what it makes, or changes what it reads."""
        touched = {tensor.storage for tensor in op.tensors}
        changed = {tensor.storage for tensor in op.produced}
        return not self.made.isdisjoint(touched | changed) or not self.read.isdisjoint(changed)


def _chains(ops: Sequence[Op]) -> list[_Chain]:
    found: list[_Chain] = []
    still: list[_Chain] = []
    for row, op in enumerate(ops):
        goes = _is_elementwise(op)
        mine = next((chain for chain in reversed(still) if goes and chain.takes(op)), None)
        still = [chain for chain in still if chain is mine or not chain.is_ended_by(op)]
        if goes and mine is None:
            mine = _Chain(op)
            found.append(mine)
            still.append(mine)
        if mine is not None:
            mine.add(row, op)
    return found


def _is_elementwise(op: Op) -> bool:
    if op.phase == "optimizer" or not op.produced or any(t.layout != "strided" for t in (*op.tensors, *op.produced)):
        return False
    if len({tensor.device for tensor in (*op.tensors, *op.produced) if tensor.shape}) != 1 or not op.produced[0].shape:
        return False
    return op.name in ALSO or is_pointwise(op.name, op.overload)


def _readers(ops: Sequence[Op]) -> dict[int, list[int]]:
    """The rows that read each storage."""
    found: dict[int, list[int]] = {}
    for row, op in enumerate(ops):
        for tensor in op.tensors:
            found.setdefault(tensor.storage, []).append(row)
    return found


def _kernel(chain: _Chain, ops: Sequence[Op], readers: dict[int, list[int]], number: int) -> Op:
    """The one call: it is given what the chain reads from outside, and what of it others need."""
    rows = set(chain.rows)
    freed = {storage for op in ops for storage in op.frees}
    given: dict[int, Tensor] = {}
    written: dict[int, Tensor] = {}
    for row in chain.rows:
        for tensor in ops[row].tensors:
            if tensor.storage not in chain.made and tensor.shape:
                given.setdefault(tensor.id, tensor)
        for tensor in ops[row].produced:
            needed = tensor.storage not in freed or not rows.issuperset(readers.get(tensor.storage, ()))
            if needed or tensor.storage in chain.read:
                written[tensor.storage] = tensor
    if not written:
        written = {tensor.storage: tensor for tensor in ops[chain.rows[-1]].produced}
    last = ops[chain.rows[-1]].__copy__()
    words = [ops[row].name.partition("::")[2].strip("_") for row in chain.rows[:LONGEST_NAME]]
    tensors = dict.fromkeys([*given.values(), *written.values()])
    last.name, last.overload = NAME.format("_".join(words), number), ""
    last.args, last.kwargs = (*tensors, chain.like.produced[0].numel, 0), {}
    last.outputs = tuple(written.values())
    last.entered = sum(ops[row].entered for row in chain.rows)
    return last
