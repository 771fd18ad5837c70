"""Fused chains of element-wise ops: one kernel each, as a compiler generates them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op, Tensor
from foretrace.transforms.blocks import block_index, repeated_blocks
from foretrace.transforms.meta_device import is_pointwise
from foretrace.transforms.step import EditedCall, editable_step, reassemble

ALSO_POINTWISE = ("aten::_to_copy", "aten::native_dropout")
"""Element-wise ops that PyTorch does not tag as pointwise. The first may also copy to another device; the second draws
random numbers, which a compiled kernel can do by itself."""
NAME = "triton_poi_fused_{}_{}"
MAX_NAMED = 8
"""Ops in a kernel's name."""


def fuse_elementwise(graph: Graph) -> Graph:
    """The step with each chain of element-wise ops as one kernel, which neither writes nor reads what stays inside.

    A call joins the chain whose result it reads, if both have the same shape and stream and nothing else has read that
    result. A chain stays in its repeated block, as where blocks are compiled one by one, and alike blocks have the same
    kernels. What later calls need is written. Reductions, views and the optimizer stay. ``torch.compile`` fuses at
    least that; it would also make the calls around the chains without Python, which stay here.
    """
    graph, ops = editable_step(graph)
    chains = [chain for chain in elementwise_chains(ops) if len(chain.rows) > 1]
    if not chains:
        raise ForetraceError(f"{graph.title} has no two consecutive element-wise calls", "There is nothing to fuse.")
    readers: dict[int, list[int]] = {storage: [] for op in ops for storage in op.frees}
    for row, op in enumerate(ops):
        for tensor in op.tensors:
            if tensor.storage in readers:
                readers[tensor.storage].append(row)
    numbers: dict[tuple[object, ...], int] = {}
    kernels = {
        chain.rows[-1]: _kernel(chain, ops, readers, numbers.setdefault(chain.signature(ops), len(numbers)))
        for chain in chains
    }
    inside = {row for chain in chains for row in chain.rows}
    calls = [EditedCall(kernels.get(row, op), row) for row, op in enumerate(ops) if row in kernels or row not in inside]
    fused = reassemble(graph, ops, calls)
    fused.notes.append(f"{len(inside)} element-wise calls are fused into {len(chains)} kernels, as by a compiler")
    return fused


@dataclass
class _Chain:
    """Calls that one kernel can perform."""

    like: Op
    block: int
    rows: list[int] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    """Storages that it writes."""
    read: set[int] = field(default_factory=set)
    """Storages that it reads from outside."""

    def add(self, row: int, op: Op) -> None:
        self.rows.append(row)
        self.read.update(tensor.storage for tensor in op.tensors if tensor.storage not in self.made)
        self.made.update(tensor.storage for tensor in op.produced)

    def signature(self, ops: Sequence[Op]) -> tuple[object, ...]:
        """Equal for chains that one kernel can do."""
        return tuple((ops[row].name, *((t.shape, t.dtype) for t in ops[row].tensors)) for row in self.rows)

    def takes(self, op: Op, block: int) -> bool:
        """Whether a call can be part of it: same block, shape, phase and stream, and it reads one of its results."""
        here, there = (
            (o.produced[0].shape, o.produced[0].device, o.phase, o.stream, o.thread) for o in (self.like, op)
        )
        return here == there and block == self.block and any(tensor.storage in self.made for tensor in op.tensors)

    def is_ended_by(self, op: Op) -> bool:
        """Whether a call outside reads what it makes, or writes what it reads."""
        touched = {tensor.storage for tensor in op.tensors}
        changed = {tensor.storage for tensor in op.produced}
        return not self.made.isdisjoint(touched | changed) or not self.read.isdisjoint(changed)


def elementwise_chains(ops: Sequence[Op], fuses: Callable[[Op], bool] | None = None) -> list[_Chain]:
    """Chains of element-wise calls, of one call or more; ``fuses`` says which are, what PyTorch says by default."""
    found: list[_Chain] = []
    open_chains: list[_Chain] = []
    blocks = repeated_blocks(ops)
    block_of = {module: block_index(module, blocks) for module in {op.module for op in ops}}
    updated_by = {t.storage for op in ops if op.phase == "optimizer" for t in op.tensors}
    for row, op in enumerate(ops):
        is_gradient = any(t.storage in updated_by for t in op.produced)  # may have to be reduced over ranks by itself
        fusable, block = _may_fuse(op) and (fuses or _is_elementwise)(op) and not is_gradient, block_of[op.module]
        chain = next((one for one in reversed(open_chains) if fusable and one.takes(op, block)), None)
        open_chains = [one for one in open_chains if one is chain or not one.is_ended_by(op)]
        if fusable and chain is None:
            chain = _Chain(op, block)
            found.append(chain)
            open_chains.append(chain)
        if chain is not None:
            chain.add(row, op)
    return found


def _may_fuse(op: Op) -> bool:
    """Whether a call of the forward or the backward has tensors of one device.

    Gradients are added up as they come, microbatch by microbatch: one kernel would need all of them at once.
    """
    if op.phase == "optimizer" or op.node.endswith("AccumulateGrad"):
        return False
    if not op.produced or any(t.layout != "strided" for t in (*op.tensors, *op.produced)):
        return False
    devices = {tensor.device for tensor in (*op.tensors, *op.produced) if tensor.shape}
    return len(devices) == 1 and bool(op.produced[0].shape)


def _is_elementwise(op: Op) -> bool:
    return op.name in ALSO_POINTWISE or is_pointwise(op.name, op.overload)


def _kernel(chain: _Chain, ops: Sequence[Op], readers: dict[int, list[int]], number: int) -> Op:
    """The call of the fused kernel: it takes what the chain reads from outside, and what others need of its results.

    ``readers`` are the calls that read each storage, of those that are freed in the step.
    """
    rows = set(chain.rows)
    given: dict[int, Tensor] = {}
    written: dict[int, Tensor] = {}
    for row in chain.rows:
        for tensor in ops[row].tensors:
            if tensor.storage not in chain.made and tensor.shape:
                given.setdefault(tensor.id, tensor)
        for tensor in ops[row].produced:
            needed = tensor.storage not in readers or not rows.issuperset(readers[tensor.storage])
            if needed or tensor.storage in chain.read:
                written[tensor.storage] = tensor
    if not written:
        written = {tensor.storage: tensor for tensor in ops[chain.rows[-1]].produced}
    last = ops[chain.rows[-1]].__copy__()
    names = [ops[row].name.partition("::")[2].strip("_") for row in chain.rows[:MAX_NAMED]]
    tensors = dict.fromkeys([*given.values(), *written.values()])
    last.name, last.overload = NAME.format("_".join(names), number), ""
    last.args, last.kwargs = (*tensors, chain.like.produced[0].numel, 0), {}
    last.outputs = tuple(written.values())
    last.entered = sum(ops[row].entered for row in chain.rows)
    return last
