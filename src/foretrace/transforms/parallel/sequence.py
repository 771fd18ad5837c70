"""Sequence parallel: between the products of tensor parallel blocks, each rank has a part of every sequence.

Norms, dropouts and sums of residuals then work on a part, and only that is kept for backward. A layer whose weight is
divided gathers its input; where ranks would sum its result, they sum and scatter it. Backward does the same the other
way, and gathers inputs once more for the gradients of weights. Gradients of norms and biases are sums over the parts,
made at once before the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.graph.op import with_tensors
from foretrace.transforms.blocks import block_index
from foretrace.transforms.draft import Draft, ProcessGroup, allocation
from foretrace.transforms.parallel.splitting import PARTIAL, ConflictError, Splitting, key_of
from foretrace.transforms.step import EditedCall

SEQUENCE = -2
"""What led to the division of a tensor, where it was no weight."""
NEEDS_ALL = ("aten::mm", "aten::addmm", "aten::embedding_dense_backward")
"""Calls that read all of every sequence."""
ACTIVATION = 3
"""Dimensions: samples, places in their sequences, width."""


@dataclass
class AlongSequence:
    """Keeps the activations of a step's blocks divided along their sequences."""

    draft: Draft
    group: ProcessGroup
    splitting: Splitting
    blocks: Sequence[str]
    entered: Tensor | None = None
    """What the first block reads."""
    gathered: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    """What was gathered, by storage and phase."""
    sums: list[Tensor] = field(default_factory=list)
    """Gradients that are sums over the parts of a sequence."""
    passing: set[int] = field(default_factory=set)
    """Storages that hold something only for as long as it is read."""
    left: bool = False
    """Whether backward has been through all blocks, or is in the first one."""

    def enter(self, op: Op) -> None:
        """At the first call of the first block, each rank goes on with its part; so it does where backward begins."""
        block = block_index(op.module, self.blocks)
        self.left |= op.phase == "backward" and block == 0
        if op.phase == "backward" and not self.left:
            self._even(op)
        if self.entered is not None or op.phase != "forward" or block != 0:
            return
        self.entered = next((t for t in op.tensors if len(t.shape) == ACTIVATION), None)
        if self.entered is None or self.entered.shape[1] % self.group.size:
            seen = list(self.entered.shape) if self.entered is not None else "nothing of three dimensions"
            raise ForetraceError(
                f"sequence parallel: {op.name} in {op.module} reads {seen}, which has no sequence that "
                f"{self.group.size} ranks can share evenly",
                "Give a number that divides its second dimension, or leave out sequence.",
            )
        self.splitting.cause = SEQUENCE
        self.splitting.set(self.entered, 1, op)

    def _even(self, op: Op) -> None:
        """What is whole, beside something divided of the same shape, is divided too: each rank takes its part."""
        for tensor in self._whole_beside(op):
            self.splitting.cause = SEQUENCE
            self.splitting.set(tensor, 1, op)

    def _whole_beside(self, op: Op) -> list[Tensor]:
        shapes = {tensor.shape for tensor in op.tensors if self.divides(tensor) and len(tensor.shape) == ACTIVATION}
        return [t for t in op.tensors if t.shape in shapes and self.splitting.state(t) is None]

    def divides(self, tensor: Tensor) -> bool:
        """Whether a tensor is divided along its sequence."""
        return self.splitting.split(tensor) is not None and self.splitting.origin.get(key_of(tensor)) == SEQUENCE

    def gather_for(self, op: Op, soon: Sequence[Op] = ()) -> tuple[list[EditedCall], Op]:
        """What gathers the sequences that a call needs all of, and the call that reads them so.

        What other calls of its module need ``soon`` is gathered too, to be there when they come.
        """
        if op.name not in NEEDS_ALL and not (self.left and self._whole_beside(op)):
            return [], op
        calls: list[EditedCall] = []
        later = [t for other in soon if other.module == op.module and other.name in NEEDS_ALL for t in other.tensors]
        for tensor in (*op.tensors, *later):
            place = tensor.storage, op.phase
            if self.divides(tensor) and place not in self.gathered:
                part, whole = self.splitting.divided(tensor), self.draft.copy(tensor)
                self.gathered[place] = whole
                self.passing.add(whole.storage)
                gather = self.draft.collective("all_gather", self.group, whole, part, op)
                calls += [EditedCall(allocation(whole, op)), gather]

        def seen(tensor: Tensor) -> Tensor:
            whole = self.gathered.get((tensor.storage, op.phase))
            if whole is None or not self.divides(tensor):
                return tensor
            return replace(tensor, id=whole.id, storage=whole.storage)

        return calls, with_tensors(op, seen)

    def sum_of(self, tensor: Tensor, written: Sequence[EditedCall]) -> list[EditedCall]:
        """What makes the sum of activations that ranks have parts of; sums of gradients wait for the optimizer."""
        assert self.entered is not None
        samples, places, width = self.entered.shape
        dims = {(samples, places, width): (1, 1), (samples * places, width): (0, samples)}
        if tensor.shape not in dims:
            self.sums.append(tensor)
            self.splitting.whole(tensor.storage)
            return []
        looks = [key for key, state in self.splitting.states.items() if key[0] == tensor.storage and state == PARTIAL]
        like = written[-1].op
        self.splitting.cause = SEQUENCE
        for storage, offset, shape, stride in looks:
            if shape not in dims:
                raise ConflictError(like, tensor, f"its sequences can't be followed into {list(shape)}")
            dim, lead = dims[shape]
            look = replace(tensor, storage=storage, offset=offset, shape=shape, stride=stride)
            self.splitting.set(look, dim, like, lead)
        given = self.draft.copy(tensor)
        self._elsewhere(tensor.storage, given.storage, written)
        kept = self.splitting.divided(tensor)
        scatter = self.draft.collective("reduce_scatter", self.group, kept, given, like)
        return [EditedCall(allocation(kept, like)), scatter]

    def _elsewhere(self, storage: int, other: int, written: Sequence[EditedCall]) -> None:
        """The last calls wrote something to another storage: theirs is for the part that is kept of it."""
        self.passing.add(other)
        for call in reversed(written):
            made = any(tensor.storage == storage for tensor in call.op.produced)
            read = any(tensor.storage == storage for tensor in call.op.tensors)
            if made or read:
                call.op = with_tensors(call.op, lambda t: replace(t, storage=other) if t.storage == storage else t)
            if made and not read:
                return

    def freed(self, written: Sequence[EditedCall]) -> list[EditedCall]:
        """The calls, with what was gathered or is summed given back after its last use."""
        last: dict[int, int] = {}
        for row, call in enumerate(written):
            last |= dict.fromkeys({t.storage for t in call.op.tensors} & self.passing, row)
        dying: dict[int, list[int]] = {}
        for storage, row in last.items():
            dying.setdefault(row + 1, []).append(storage)
        return [
            replace(call, op=replace(call.op, frees=(*call.op.frees, *dying[row]))) if row in dying else call
            for row, call in enumerate(written)
        ]

    def last_sums(self, like: Op) -> list[EditedCall]:
        """All sums that are due before the optimizer, in one; once a step, however many parts its batch has."""
        if not self.sums:
            return []
        count, first = sum(tensor.numel for tensor in self.sums), self.sums[0]
        self.sums.clear()
        room = self.draft.tensor((count,), first.dtype, first.device)
        return [self.draft.collective("all_reduce", self.group, room, room, replace(like, phase="optimizer"))]
