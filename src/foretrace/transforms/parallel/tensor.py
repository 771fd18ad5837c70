"""Tensor parallel: each rank holds a part of every large weight and works on all samples, as in Megatron.

In a block, a linear layer with a whole input is split by its outputs (column parallel), one with a split input by its
inputs (row parallel), after which the partial results are reduced. Attention heads are split with the outputs that they
come from. In backward the reductions are due at the other end. The vocabulary is split too, padded if its size is not
divisible: then the embedding is reduced, and the loss takes three small reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.transforms.blocks import block_index, repeated_blocks
from foretrace.transforms.draft import Draft, ProcessGroup, freed_after_last_use
from foretrace.transforms.parallel.sequence import SequenceParallel
from foretrace.transforms.parallel.split_rules import RULES, VIEWS, elementwise
from foretrace.transforms.parallel.splitting import (
    PARTIAL,
    ConflictError,
    Key,
    Splitting,
    key_of,
    preexisting_tensors,
)
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import weights_of

LINEAR = {"aten::mm": 0, "aten::addmm": 1, "aten::_scaled_mm": 0}
"""Position of the input in a linear layer's call; its weight is the next argument."""
ADDITIONS = ("aten::add", "aten::add_")
SOFTMAX, STACK = "aten::_log_softmax", "aten::stack"
PREFETCH_CALLS = 8
"""Calls after the first GEMM of a layer's backward among which its last one is."""
LEAST_SPLIT = 0.5
"""Share of the weights' bytes of which less is worth a caution: tensor parallel then saves little."""
VOCABULARY_UNIT = 128
"""Megatron pads a vocabulary to a multiple of so many for each tensor parallel rank."""
LOSS_REDUCTIONS = 3
"""Megatron's loss over a split vocabulary reduces the largest logit, the target's, and the sum of exponentials."""


def split_blocks(
    draft: Draft, calls: Sequence[EditedCall], group: ProcessGroup, overlap: bool = False, sequence: bool = False
) -> list[EditedCall]:
    """The calls of a step with its blocks split over a group."""
    plan = _Plan.of([call.op for call in calls], group.size, draft.graph.source, overlap, sequence)
    early: tuple[Splitting, ConflictError] | None = None  # what is to be split by now may resolve it
    while True:
        splitting = Splitting(group.size, RULES, elementwise, plan.wanted, plan.preexisting, plan.splittable)
        splitting.padded = plan.padded
        try:
            made = _split_calls(draft, calls, group, splitting, plan)
        except ConflictError as error:
            early = early or (splitting, error)
            if not splitting.again:
                plan.leave_whole(*early)
                early = None
        else:
            if splitting.again:
                continue
            if not any(call.collective and call.collective.group == group.name for call in made):
                raise ForetraceError(
                    f"{draft.graph.source or 'the graph'} has no linear layers in the blocks that it repeats: "
                    f"{plan.blocks[0]}, …",
                    "Tensor parallel splits those. Leave out tensor.",
                )
            draft.notes += [*plan.split_share(splitting), *plan.notes()]
            return made


@dataclass
class _Plan:
    """Which weights are split, as far as known."""

    blocks: list[str]
    vocabulary: int
    preexisting: dict[int, Tensor]
    weights: set[int]
    overlap: bool
    sequence: bool
    padded: dict[int, int]
    """The vocabulary and what it is padded to, where it is not divisible."""
    wanted: dict[Key, int] = field(default_factory=dict)
    splittable: set[Key] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    """Weights that were tried and can't be split."""
    first_conflict: ConflictError | None = None

    @classmethod
    def of(cls, ops: Sequence[Op], ranks: int, source: str, overlap: bool, sequence: bool) -> _Plan:
        blocks = repeated_blocks(ops)
        if not blocks:
            raise ForetraceError(
                f"{source or 'the graph'} has no repeated blocks of modules",
                "Tensor parallel splits the linear layers of blocks that a model repeats: layers.0, layers.1, …",
            )
        classes = next((op.tensors[0].shape[-1] for op in ops if op.name == SOFTMAX), 0)
        weights = set(weights_of(ops, source).weights)
        unit = VOCABULARY_UNIT * ranks
        embedded = any(op.name == "aten::embedding" and op.tensors[0].shape[0] == classes for op in ops)
        padded = {classes: -(-classes // unit) * unit} if classes % ranks and embedded else {}
        split = padded or classes % ranks == 0
        return cls(blocks, classes if split else 0, preexisting_tensors(ops), weights, overlap, sequence, padded)

    def column_parallel(self, op: Op, splitting: Splitting) -> tuple[Tensor, int] | None:
        """The weight of a call that should be split by its outputs, and the dimension."""
        if op.phase != "forward":
            return None
        if op.name == "aten::embedding":
            table = op.tensors[0]
            free = table.storage in self.weights - self.whole and table.shape[0] == self.vocabulary
            return (table, 0) if free else None
        if op.name not in LINEAR:
            return None
        given, weight = op.args[LINEAR[op.name] : LINEAR[op.name] + 2]
        if not isinstance(given, Tensor) or not isinstance(weight, Tensor) or splitting.state(given) is not None:
            return None
        base = splitting.base(weight)
        if base is None or base.storage not in self.weights - self.whole:
            return None
        inside = block_index(op.module, self.blocks) >= 0
        return (weight, 1) if inside or weight.shape[1] == self.vocabulary else None

    def leave_whole(self, splitting: Splitting, error: ConflictError) -> None:
        """Leave the weight whole whose split led to a conflict; raises if there is none."""
        # Those that are split by now first: an origin is kept when what came of it is reduced.
        tensors = sorted((error.tensor, *error.op.tensors), key=lambda tensor: splitting.state(tensor) is None)
        causes = [splitting.origin.get(key_of(tensor), -1) for tensor in tensors]
        cause = next((storage for storage in causes if storage >= 0 and storage not in self.whole), None)
        final = error.op.name in LINEAR or "divisible" in error.why or "followed" in error.why
        self.first_conflict = self.first_conflict or error
        if cause is None or final or self.sequence:
            # What conflicts later may follow from what was left whole.
            raise splitting.refused(self.first_conflict, "tensor parallel") from None
        self.whole.add(cause)
        self.wanted.clear()

    def split_share(self, splitting: Splitting) -> list[str]:
        """A caution where most of the weights' bytes are whole on each rank, as in a model of convolutions."""
        weights = [self.preexisting[storage] for storage in self.weights if storage in self.preexisting]
        split = sum(weight.nbytes for weight in weights if splitting.split_dim(weight) is not None)
        share = split / max(sum(weight.nbytes for weight in weights), 1)
        if share >= LEAST_SPLIT:
            return []
        return [f"tensor parallel splits only {100 * share:.2g} % of the weights: each rank does all else as one alone"]

    def notes(self) -> list[str]:
        """What the user should know of a padded vocabulary, and of weights that stay whole."""
        padded = [
            f"the vocabulary of {size:,} is padded to {to:,}, as in Megatron, to be split over tensor parallel ranks"
            for size, to in self.padded.items()
        ]
        if self.first_conflict is None:
            return padded
        op, count = self.first_conflict.op, len(self.whole)
        at = f"{op.name} in {op.module}" if op.module else op.name
        return [
            *padded,
            f"tensor parallel leaves {count} weights whole: {at} can't be split: {self.first_conflict.why}",
        ]


def _split_calls(
    draft: Draft, calls: Sequence[EditedCall], group: ProcessGroup, splitting: Splitting, plan: _Plan
) -> list[EditedCall]:
    made: list[EditedCall] = []
    sequence = SequenceParallel(draft, group, splitting, plan.blocks, plan.weights) if plan.sequence else None
    accumulated = _accumulated([call.op for call in calls]) if sequence else set()
    reductions = _Reductions(draft, group, splitting, sequence, accumulated)
    last = max(row for row, call in enumerate(calls) if call.op.phase == "backward")
    for row, call in enumerate(calls):
        op = call.op
        splitting.note_cast(op)
        made += reductions.before(op, made)
        if sequence:
            sequence.enter(op)
            ahead = plan.overlap and op.phase == "backward"
            soon = [later.op for later in calls[row + 1 : row + PREFETCH_CALLS]] if ahead else ()
            gathering, op = sequence.gather_for(op, soon)
            made += gathering
        chosen = plan.column_parallel(op, splitting)
        if chosen:
            weight, dim = chosen
            base = splitting.base(weight)
            splitting.cause = base.storage if base is not None else -1
            if not splitting.divides(weight.shape[dim]):
                raise ConflictError(op, weight, f"{weight.shape[dim]} is not divisible by {group.size}")
            splitting.require(weight, dim, op)
        if op.name == SOFTMAX and splitting.split_dim(op.tensors[0]) == len(op.tensors[0].shape) - 1:
            tokens = draft.tensor(op.tensors[0].shape[:-1], "float32", op.tensors[0].device)
            made += [draft.collective("all_reduce", group, tokens, tokens, op) for _ in range(LOSS_REDUCTIONS)]
        made.append(EditedCall(splitting.apply(op), call.origin, call.collective))
        made += reductions.after(op, made, plan.overlap)
        if row == last:
            made += reductions.remaining(made)
    if sequence:
        freed_after_last_use(made, sequence.temporary)
    return made


def _accumulated(ops: Sequence[Op]) -> set[int]:
    """Storages of gradients that backward adds up: those of an input that several layers read."""
    adds = (op for op in ops if op.phase == "backward" and op.name in ADDITIONS and len(op.tensors) == 2)
    return {t.storage for op in adds if op.tensors[0].shape == op.tensors[1].shape for t in op.tensors}


@dataclass
class _Reductions:
    """Partial results that must be reduced before they are read."""

    draft: Draft
    group: ProcessGroup
    splitting: Splitting
    sequence: SequenceParallel | None
    accumulated: set[int]
    """Storages of partial gradients that are reduced after their sum, once."""
    due: dict[int, Tensor] = field(default_factory=dict)
    backward_done: bool = False

    def before(self, op: Op, made: Sequence[EditedCall]) -> list[EditedCall]:
        """The reductions due before a call: of what it reads, and of what the previous module has left."""
        read = {t.storage for t in op.tensors} if op.name not in VIEWS else set()
        leaves_module = bool(op.module) and bool(made) and op.module != made[-1].op.module
        adds = op.name in ADDITIONS and read and read <= self.accumulated & self.due.keys()
        if adds or op.name == STACK:  # norms of gradients are reduced together
            self.due = {storage: tensor for storage, tensor in self.due.items() if storage not in read}
            return []
        now = [
            tensor
            for storage, tensor in self.due.items()
            if storage in read or (leaves_module and storage not in self.accumulated)
        ]
        return [call for tensor in now for call in self._reduce(tensor, made)]

    def after(self, op: Op, made: Sequence[EditedCall], at_once: bool) -> list[EditedCall]:
        """Register the partial results of a call; with overlap, reduce those of backward GEMMs at once."""
        self.due |= {t.storage: t for t in op.produced if self.splitting.state(t) == PARTIAL}
        if not at_once or op.phase != "backward" or op.name not in LINEAR:
            return []
        now = [t for t in op.produced if t.storage in self.due and t.storage not in self.accumulated]
        return [call for t in now for call in self._reduce(t, made)]

    def remaining(self, made: Sequence[EditedCall]) -> list[EditedCall]:
        """The reductions due at the end of backward."""
        calls = [call for tensor in list(self.due.values()) for call in self._reduce(tensor, made)]
        self.backward_done = True
        return calls + self.sequence.final_reductions(made[-1].op) if self.sequence else calls

    def _reduce(self, tensor: Tensor, made: Sequence[EditedCall]) -> list[EditedCall]:
        del self.due[tensor.storage]
        # What scales a tensor in float8 is read at once; gradients of norms and biases are not.
        if tensor.shape and self.sequence and self.sequence.entered is not None and not self.backward_done:
            return self.sequence.reduce(tensor, made)
        self.splitting.set_summed(tensor.storage)
        return [self.draft.collective("all_reduce", self.group, tensor, tensor, made[-1].op)]
