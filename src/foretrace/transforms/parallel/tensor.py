"""Tensor parallel: each rank has a part of every large weight, and works on all samples, as Megatron does it.

In a block, a linear layer that reads whole activations is cut by its outputs (a column of ranks), one that reads
divided activations by its inputs (a row), after which the ranks sum what they have. Heads of attention are divided with
the outputs that they come from. In backward the sums are due at the other end. The vocabulary is divided too, where it
can be: then the embedding needs a sum, and the loss three small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foretrace.graph import ForetraceError, Graph, Op, Tensor
from foretrace.transforms.blocks import block_index, repeated_blocks
from foretrace.transforms.draft import Draft, ProcessGroup, draft_of
from foretrace.transforms.parallel.sequence import AlongSequence
from foretrace.transforms.parallel.split_rules import MOVES, RULES, elementwise
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

LINEAR = {"aten::mm": 0, "aten::addmm": 1}
"""Where a linear layer's call has its input; its weight is the next one."""
SOFTMAX = "aten::_log_softmax"
AHEAD = 8
"""So many calls from the first product of a layer's backward, its last one has been made."""
LOSS_SUMS = 3
"""Megatron's loss over a divided vocabulary sums the largest score, the right one, and the exponentials."""


def tensor_parallel(graph: Graph, ways: int, overlap: bool = False, sequence: bool = False) -> Graph:
    """The step of one of so many ranks that share the work of every block.

    Parameters
    ----------
    graph
        The step of one rank.
    ways
        How many ranks.
    overlap
        Whether backward sums the gradient of a layer's input beside the product of its weight's; else after it.
    sequence
        Whether each rank has a part of every sequence between the products.
    """
    draft = draft_of(graph, "tensor parallel")
    group = ProcessGroup("tensor", tuple(range(ways)))
    note = f"tensor parallel over {ways} ranks (Megatron's columns and rows) was not in the step that was given"
    return draft.graph_of(split_blocks(draft, draft.calls, group, overlap, sequence), 0, ways, note)


def split_blocks(
    draft: Draft, calls: Sequence[EditedCall], group: ProcessGroup, overlap: bool = False, sequence: bool = False
) -> list[EditedCall]:
    """The calls of a step with the work of its blocks divided over a group."""
    plan = _Plan.of([call.op for call in calls], group.size, draft.graph.source, overlap, sequence)
    while True:
        splitting = Splitting(group.size, RULES, elementwise, plan.wanted, plan.given, plan.made_free)
        try:
            written = _written(draft, calls, group, splitting, plan)
        except ConflictError as error:
            plan.give_up(splitting, error)
        else:
            if splitting.again:
                continue
            if not any(call.collective and call.collective.group == group.name for call in written):
                raise ForetraceError(
                    f"{draft.graph.source or 'the graph'} has no linear layers in the blocks that it repeats: "
                    f"{plan.blocks[0]}, …",
                    "Tensor parallel divides those. Leave out tensor.",
                )
            return written


@dataclass
class _Plan:
    """Which weights are divided, as far as that is known."""

    blocks: list[str]
    vocabulary: int
    given: dict[int, Tensor]
    weights: set[int]
    overlap: bool
    sequence: bool
    wanted: dict[Key, int] = field(default_factory=dict)
    made_free: set[Key] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    """Weights that were tried, and can't be divided."""

    @classmethod
    def of(cls, ops: Sequence[Op], ways: int, source: str, overlap: bool, sequence: bool) -> _Plan:
        blocks = repeated_blocks(ops)
        if not blocks:
            raise ForetraceError(
                f"{source or 'the graph'} repeats no block of modules",
                "Tensor parallel divides the linear layers of blocks that a model repeats: layers.0, layers.1, …",
            )
        classes = next((op.tensors[0].shape[-1] for op in ops if op.name == SOFTMAX), 0)
        weights = set(weights_of(ops, source).weights)
        return cls(blocks, classes if classes % ways == 0 else 0, preexisting_tensors(ops), weights, overlap, sequence)

    def columns(self, op: Op, splitting: Splitting) -> tuple[Tensor, int] | None:
        """The weight of a call that should be divided by its outputs, and the dimension."""
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

    def give_up(self, splitting: Splitting, error: ConflictError) -> None:
        """Leave the weight whole whose division led to a conflict; raise where there is none to blame."""
        blamed = [splitting.origin.get(key_of(t), -1) for t in (error.tensor, *error.op.tensors)]
        guilty = next((storage for storage in blamed if storage >= 0 and storage not in self.whole), None)
        odd = error.op.name in LINEAR or "divisible" in error.why or "followed" in error.why
        if guilty is None or odd:
            raise splitting.refused(error, "tensor parallel") from None
        self.whole.add(guilty)
        self.wanted.clear()


def _written(
    draft: Draft, calls: Sequence[EditedCall], group: ProcessGroup, splitting: Splitting, plan: _Plan
) -> list[EditedCall]:
    written: list[EditedCall] = []
    along = AlongSequence(draft, group, splitting, plan.blocks) if plan.sequence else None
    sums = _Sums(draft, group, splitting, along)
    last = max(row for row, call in enumerate(calls) if call.op.phase == "backward")
    for row, call in enumerate(calls):
        op = call.op
        splitting.note_cast(op)
        written += sums.before(op, written)
        if along:
            along.enter(op)
            ahead = plan.overlap and op.phase == "backward"
            gathering, op = along.gather_for(op, [soon.op for soon in calls[row + 1 : row + AHEAD]] if ahead else ())
            written += gathering
        chosen = plan.columns(op, splitting)
        if chosen:
            base = splitting.base(chosen[0])
            splitting.cause = base.storage if base is not None else -1
            if chosen[0].shape[chosen[1]] % group.size:
                raise ConflictError(op, chosen[0], f"{chosen[0].shape[chosen[1]]} is not divisible by {group.size}")
            splitting.want(*chosen, op)
        if op.name == SOFTMAX and splitting.split(op.tensors[0]) == len(op.tensors[0].shape) - 1:
            tokens = draft.tensor(op.tensors[0].shape[:-1], "float32", op.tensors[0].device)
            written += [draft.collective("all_reduce", group, tokens, tokens, op) for _ in range(LOSS_SUMS)]
        changed = splitting.through(op) if splitting.touched(op) else splitting.untouched(op)
        written.append(EditedCall(changed, call.origin, call.collective))
        written += sums.behind(op, written, plan.overlap)
        if row == last:
            written += sums.rest(written)
    return along.freed(written) if along else written


@dataclass
class _Sums:
    """Results of which every rank has a part, and that must be summed before anybody reads them."""

    draft: Draft
    group: ProcessGroup
    splitting: Splitting
    along: AlongSequence | None
    due: dict[int, Tensor] = field(default_factory=dict)

    def before(self, op: Op, written: Sequence[EditedCall]) -> list[EditedCall]:
        """The sums that are due before a call: of what it reads, and of what the module before it has left."""
        read = {t.storage for t in op.tensors} if op.name not in MOVES else set()
        left = bool(op.module) and bool(written) and op.module != written[-1].op.module
        now = [tensor for storage, tensor in self.due.items() if left or storage in read]
        return [call for tensor in now for call in self._sum(tensor, written)]

    def behind(self, op: Op, written: Sequence[EditedCall], at_once: bool) -> list[EditedCall]:
        """What a call leaves to be summed: at once, where that shall go on beside the calls that follow."""
        self.due |= {t.storage: t for t in op.produced if self.splitting.state(t) == PARTIAL}
        if not at_once or op.phase != "backward" or op.name not in LINEAR:
            return []
        return [call for t in op.produced if t.storage in self.due for call in self._sum(t, written)]

    def rest(self, written: Sequence[EditedCall]) -> list[EditedCall]:
        """What is due when backward is done."""
        calls = [call for tensor in list(self.due.values()) for call in self._sum(tensor, written)]
        return calls + self.along.last_sums(written[-1].op) if self.along else calls

    def _sum(self, tensor: Tensor, written: Sequence[EditedCall]) -> list[EditedCall]:
        del self.due[tensor.storage]
        if self.along and self.along.entered is not None:
            return self.along.sum_of(tensor, written)
        self.splitting.whole(tensor.storage)
        return [self.draft.collective("all_reduce", self.group, tensor, tensor, written[-1].op)]
