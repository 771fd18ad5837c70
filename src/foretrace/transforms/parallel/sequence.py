"""Sequence parallel: between the linear layers of tensor parallel blocks, activations are split along the sequence.

Norms, dropouts and residual additions then work on a part, and only that part is saved for backward. A layer with a
split weight gathers its input; where ranks would reduce its result, they reduce and scatter it. Backward does the same
in reverse, and gathers inputs again for weight gradients. Gradients of norms and biases are partial sums, reduced at
once before the optimizer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.graph.op import with_tensors
from foretrace.transforms.blocks import block_index
from foretrace.transforms.draft import Draft, ProcessGroup, allocation
from foretrace.transforms.parallel.splitting import ConflictError, Splitting, key_of
from foretrace.transforms.step import EditedCall

SEQUENCE = -2
"""Cause of a split that is no weight's: in place of a storage."""
NEEDS_WHOLE = ("aten::mm", "aten::addmm", "aten::_scaled_mm", "aten::embedding_dense_backward")
"""Calls that read whole sequences."""
ACTIVATION_DIMS = 3
"""Batch, sequence, width."""


@dataclass
class SequenceParallel:
    """Keeps the activations of a step's blocks split along the sequence."""

    draft: Draft
    group: ProcessGroup
    splitting: Splitting
    blocks: Sequence[str]
    weights: Collection[int]
    """Storages of the weights."""
    entered: Tensor | None = None
    """The input of the first block."""
    gathered: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    """Gathered activations, by storage and phase."""
    partial_gradients: list[Tensor] = field(default_factory=list)
    """Gradients that are partial sums over the sequence."""
    temporary: set[int] = field(default_factory=set)
    """Storages that are freed after their last use."""
    left: bool = False
    """Whether backward has left the blocks, or is in the first one."""

    def enter(self, op: Op) -> None:
        """Split the input at the first call of the first block, and whole gradients where backward begins."""
        block = block_index(op.module, self.blocks)
        self.left |= op.phase == "backward" and block == 0
        if op.phase == "backward" and not self.left:
            for tensor in self._whole_among_split(op):  # each rank takes its part
                self.splitting.cause = SEQUENCE
                self.splitting.set(tensor, 1, op)
        if self.entered is not None or op.phase != "forward" or block != 0:
            return
        if all(tensor.storage in self.weights for tensor in op.tensors):
            return  # transposes a weight, or allocates
        self.entered = next((t for t in op.tensors if len(t.shape) == ACTIVATION_DIMS), None)
        if self.entered is None or self.entered.shape[1] % self.group.size:
            seen = list(self.entered.shape) if self.entered is not None else "nothing of three dimensions"
            raise ForetraceError(
                f"sequence parallel: {op.name} in {op.module} reads {seen}, without a sequence that is divisible by "
                f"{self.group.size}",
                "Give a number that divides its second dimension, or leave out sequence.",
            )
        self.splitting.cause = SEQUENCE
        self.splitting.set(self.entered, 1, op)

    def _whole_among_split(self, op: Op) -> list[Tensor]:
        """Whole arguments of a call that have the shape of a split one."""
        shapes = {t.shape for t in op.tensors if self.is_split(t) and len(t.shape) == ACTIVATION_DIMS}
        new = self.splitting.splittable  # fused kernels take the buffers that they write
        return [t for t in op.tensors if t.shape in shapes and self.splitting.state(t) is None and key_of(t) not in new]

    def is_split(self, tensor: Tensor) -> bool:
        """Whether a tensor is split along the sequence."""
        return self.splitting.split_dim(tensor) is not None and self.splitting.origin.get(key_of(tensor)) == SEQUENCE

    def gather_for(self, op: Op, soon: Sequence[Op] = ()) -> tuple[list[EditedCall], Op]:
        """The calls that gather the sequences which a call needs whole, and the call that reads them.

        What ``soon`` calls of the same module need is gathered too, ahead of time.
        """
        if op.name not in NEEDS_WHOLE and not (self.left and self._whole_among_split(op)):
            return [], op
        calls: list[EditedCall] = []
        later = [t for other in soon if other.module == op.module and other.name in NEEDS_WHOLE for t in other.tensors]
        for tensor in (*op.tensors, *later):
            key = tensor.storage, op.phase
            if self.is_split(tensor) and key not in self.gathered:
                part, whole = self.splitting.part(tensor), self.draft.copy(tensor)
                self.gathered[key] = whole
                self.temporary.add(whole.storage)
                gather = self.draft.collective("all_gather", self.group, whole, part, op)
                calls += [EditedCall(allocation(whole, op)), gather]

        def gathered(tensor: Tensor) -> Tensor:
            whole = self.gathered.get((tensor.storage, op.phase))
            if whole is None or not self.is_split(tensor):
                return tensor
            return replace(tensor, id=whole.id, storage=whole.storage)

        return calls, with_tensors(op, gathered)

    def reduce(self, tensor: Tensor, made: Sequence[EditedCall]) -> list[EditedCall]:
        """The reduce_scatter of partial activations; partial gradients are reduced before the optimizer."""
        assert self.entered is not None
        samples, length, width = self.entered.shape
        dims = {(samples, length, width): (1, 1), (samples * length, width): (0, samples)}
        if tensor.shape not in dims:
            self.partial_gradients.append(tensor)
            self.splitting.set_summed(tensor.storage)
            return []
        views = self.splitting.partial_views(tensor.storage)
        like = made[-1].op
        self.splitting.cause = SEQUENCE
        for storage, offset, shape, stride in views:
            if shape not in dims:
                raise ConflictError(like, tensor, f"its sequences can't be followed into {list(shape)}")
            dim, lead = dims[shape]
            view = replace(tensor, storage=storage, offset=offset, shape=shape, stride=stride)
            self.splitting.set(view, dim, like, lead)
        given = self.draft.copy(tensor)
        self._move_writes(tensor.storage, given.storage, made)
        part = self.splitting.part(tensor)
        scatter = self.draft.collective("reduce_scatter", self.group, part, given, like)
        return [EditedCall(allocation(part, like)), scatter]

    def _move_writes(self, storage: int, other: int, made: Sequence[EditedCall]) -> None:
        """Let the last calls on a storage use another: the storage now holds the scattered part."""
        self.temporary.add(other)
        for call in reversed(made):
            writes = any(tensor.storage == storage for tensor in call.op.produced)
            reads = any(tensor.storage == storage for tensor in call.op.tensors)
            if writes or reads:
                call.op = with_tensors(call.op, lambda t: replace(t, storage=other) if t.storage == storage else t)
            if writes and not reads:
                return

    def final_reductions(self, like: Op) -> list[EditedCall]:
        """All partial gradients in one all_reduce before the optimizer; once per step, also with microbatches."""
        if not self.partial_gradients:
            return []
        count, first = sum(tensor.numel for tensor in self.partial_gradients), self.partial_gradients[0]
        self.partial_gradients.clear()
        buffer = self.draft.tensor((count,), first.dtype, first.device)
        return [self.draft.collective("all_reduce", self.group, buffer, buffer, replace(like, phase="optimizer"))]
