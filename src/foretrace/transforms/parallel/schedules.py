"""Microbatches and pipeline schedules: the step on a part of its batch, and the order in which stages process them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.transforms.blocks import block_index, repeated_blocks
from foretrace.transforms.parallel.split_rules import KEEPS_STATISTICS, RULES, by_sample
from foretrace.transforms.parallel.splitting import (
    PARTIAL,
    ConflictError,
    Key,
    Splitting,
    key_of,
    preexisting_tensors,
)
from foretrace.transforms.weights import weights_of

ZERO_BUBBLE, ZERO_BUBBLE_V = "zb-h1", "zbv"
SCHEDULES = ("1f1b", "gpipe", "interleaved", ZERO_BUBBLE, ZERO_BUBBLE_V)
INPUTS, WEIGHTS = "inputs", "weights"
"""The parts of a backward that zero-bubble schedules take apart: what the previous stage waits for, and the rest."""
RING, ALL_GATHER, ALL_TO_ALL = CONTEXT_KINDS = ("ring", "all-gather", "all-to-all")
"""How context parallel ranks share attention (`context`)."""
REDUCTIONS = ("aten::mean", "aten::sum")
"""Calls that reduce all samples to one number."""


class ScheduledPass(NamedTuple):
    """The forward or backward of a microbatch through one of a stage's chunks of blocks."""

    forward: bool
    chunk: int
    microbatch: int
    part: str = ""
    """Of a backward `INPUTS` or `WEIGHTS`; all of it if empty."""


def chunks_of(schedule: str, chunks: int) -> int:
    """Groups of blocks on each stage: two in the shape of a V where that is the schedule."""
    return 2 if schedule == ZERO_BUBBLE_V else chunks


def stage_of(chunk: int, stages: int, schedule: str) -> int:
    """The stage that has a chunk, counted through the model.

    >>> [stage_of(chunk, 3, "zbv") for chunk in range(6)], [stage_of(chunk, 3, "interleaved") for chunk in range(6)]
    ([0, 1, 2, 2, 1, 0], [0, 1, 2, 0, 1, 2])
    """
    return 2 * stages - 1 - chunk if schedule == ZERO_BUBBLE_V and chunk >= stages else chunk % stages


def stage_schedule(schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[ScheduledPass]:
    """The passes of one stage, in order.

    ``gpipe`` does all forwards, then all backwards; ``1f1b`` alternates as soon as the pipeline is full, so that it
    holds fewer activations; ``interleaved`` does so with several chunks of blocks on each stage, so that the pipeline
    fills sooner. ``zb-h1`` leaves gradients of weights for later, when the stage would wait; ``zbv`` does, too, and has
    two groups of blocks on each stage, in the shape of a V: the zero-bubble schedules of Qi et al. (ICLR 2024), in the
    order of `torch.distributed.pipelining`.

    >>> [f"{'F' if one.forward else 'B'}{one.microbatch}" for one in stage_schedule("1f1b", 0, 2, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    if schedule == "interleaved":
        return _interleaved(stage, stages, microbatches, chunks)
    if schedule == ZERO_BUBBLE_V:
        return _zero_bubble_v(stage, stages, microbatches)
    if schedule == ZERO_BUBBLE:
        return _zero_bubble(stage, stages, microbatches)
    forward = [ScheduledPass(True, 0, m) for m in range(microbatches)]
    backward = [ScheduledPass(False, 0, m) for m in range(microbatches)]
    if schedule == "gpipe":
        return forward + backward
    return _alternating(forward, backward, stages - stage - 1)


def _interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[ScheduledPass]:
    """Megatron's schedule: rounds of as many microbatches as there are stages, through one chunk after the other."""
    forward = [
        ScheduledPass(True, chunk, first + part)
        for first in range(0, microbatches, stages)
        for chunk in range(chunks)
        for part in range(stages)
    ]
    backward = [ScheduledPass(False, chunks - 1 - one.chunk, one.microbatch) for one in forward]
    return _alternating(forward, backward, 2 * (stages - stage - 1) + (chunks - 1) * stages)


def _zero_bubble(stage: int, stages: int, microbatches: int) -> list[ScheduledPass]:
    """1F1B whose gradients of weights come as many microbatches later as there are stages before this one."""
    order = stage_schedule("1f1b", stage, stages, microbatches)
    found: list[ScheduledPass] = []
    for one in order:
        found.append(one if one.forward else one._replace(part=INPUTS))
        if not one.forward and one.microbatch >= stage:
            found.append(ScheduledPass(False, 0, one.microbatch - stage, WEIGHTS))
    done = sum(one.part == WEIGHTS for one in found)
    return found + [ScheduledPass(False, 0, microbatch, WEIGHTS) for microbatch in range(done, microbatches)]


def _zero_bubble_v(stage: int, stages: int, microbatches: int) -> list[ScheduledPass]:
    """Both chunks of a stage in turns; where forward and both parts of backward take as long, no stage ever waits."""
    count = max(microbatches, 2 * stages - 1)  # the pipeline is full with so many; those that are too many are left out
    found: list[ScheduledPass] = []
    done: Counter[tuple[int, str]] = Counter()

    def add(chunk: int, *parts: str) -> None:
        for part in parts:
            found.append(ScheduledPass(part == "", chunk, done[chunk, part], part))
            done[chunk, part] += 1

    for _ in range(2 * (stages - stage) - 1):
        add(0, "")
    for _ in range(stage):
        add(1, "")
        add(0, "")
    for _ in range(stages - stage):
        add(1, "", INPUTS, WEIGHTS)
    while done[1, ""] < done[0, ""] or done[0, ""] < count:
        if done[0, ""] < count:
            add(0, "")
        add(0, INPUTS, WEIGHTS)
        add(1, "", INPUTS, WEIGHTS)
    for _ in range(stage):
        add(0, INPUTS)
        add(1, INPUTS)
    for _ in range(stages - stage):
        add(0, INPUTS, WEIGHTS)
    for chunk in (1, 0):
        while done[chunk, WEIGHTS] < done[chunk, INPUTS]:
            add(chunk, WEIGHTS)
    return [one for one in found if one.microbatch < microbatches]


def _alternating(forward: list[ScheduledPass], backward: list[ScheduledPass], warmup: int) -> list[ScheduledPass]:
    """Some forwards first, then forward and backward in turn, then the remaining backwards."""
    warmup = min(warmup, len(forward))
    steady = [one for pair in zip(forward[warmup:], backward) for one in pair]
    return forward[:warmup] + steady + backward[len(forward) - warmup :]


def check_schedule(schedule: str, stages: int, microbatches: int, chunks: int) -> None:
    """Raise for a schedule that does not exist, or that can't handle these numbers."""
    if schedule not in SCHEDULES:
        raise ForetraceError(f"there is no schedule {schedule!r}", f"There are {', '.join(SCHEDULES)}.")
    if schedule == "interleaved" and microbatches % stages:
        raise ForetraceError(
            f"the interleaved schedule needs a multiple of {stages} microbatches, not {microbatches}",
            f"Give a multiple of {stages}, or schedule='1f1b'.",
        )
    if schedule == "interleaved" and chunks < 2:
        raise ForetraceError("the interleaved schedule needs several chunks per stage", "Give chunks=2 or more.")
    if schedule == ZERO_BUBBLE_V and chunks not in (1, 2):
        raise ForetraceError(f"schedule zbv has two chunks per stage, not {chunks}", "Leave out chunks.")
    if schedule not in ("interleaved", ZERO_BUBBLE_V) and chunks > 1:
        raise ForetraceError(f"schedule {schedule} has no chunks", "Give schedule='interleaved'.")


def accumulation_rounds(ops: Sequence[Op], blocks: Sequence[str]) -> list[range]:
    """The rows of each forward and backward that a step adds gradients up over; one of all if there is no backward.

    A round begins in a block; in any module, where a model repeats none.

    >>> step = [Op("aten::mm", phase=phase, module="net.0") for phase in 2 * ["forward", "backward"] + ["optimizer"]]
    >>> accumulation_rounds(step, ["net.0"])
    [range(0, 2), range(2, 4)]
    """
    begun, end = [0], 0
    inside = {module: is_inside(module, blocks) for module in {op.module for op in ops}}
    for row, op in enumerate(ops):
        if op.phase == "backward":
            end = row + 1
        elif op.phase == "forward" and end > begun[-1] and inside[op.module]:
            begun.append(end)
    return [range(*ends) for ends in zip(begun, [*begun[1:], end or len(ops)])]


def is_inside(module: str, blocks: Sequence[str]) -> bool:
    """Whether a module is part of the blocks of a model; any is, where it repeats none."""
    return block_index(module, blocks) >= 0 if blocks else bool(module)


def first_round(ops: Sequence[Op], source: str = "") -> tuple[list[int], int]:
    """The rows of a step that goes forward and backward once, and how often the given one does so, adding up gradients.

    Steps that do not go through the same calls each time raise.
    """
    blocks = repeated_blocks(ops)
    rounds = accumulation_rounds(ops, blocks)
    calls = [
        [(op.name, [t.shape for t in op.tensors]) for op in ops[rows.start : rows.stop]
         if op.phase == "forward" and is_inside(op.module, blocks)]
        for rows in rounds
    ]  # fmt: skip
    updates = any(op.phase == "optimizer" for op in ops[: rounds[-1].stop])
    if len(rounds) > 1 and (updates or any(calls[0] != others for others in calls[1:])):
        what = "updates weights in between" if updates else "makes other calls in some of them"
        raise ForetraceError(
            f"{source or 'the graph'} goes forward and backward {len(rounds)} times, and {what}",
            "Microbatches and stages are made of a step that does so once, or that only adds up gradients.",
        )
    return [*rounds[0], *range(rounds[-1].stop, len(ops))], len(rounds)


def microbatch_of(ops: Sequence[Op], count: int, source: str = "") -> list[Op]:
    """The calls of a step on one of several equal microbatches."""
    if count == 1:
        return list(ops)
    preexisting = preexisting_tensors(ops)
    data = data_tensors(ops, preexisting)
    size = _batch_size(ops, data)
    if not size:
        raise ForetraceError(f"{source or 'the graph'} reads no batch that could be split", "Give it its batch.")
    if size % count:
        raise ForetraceError(
            f"a batch of {size} can't be split into {count} microbatches", "Give a number that divides it."
        )
    wanted: dict[Key, int] = {key_of(t): 0 for t in data if t.shape[0] == size}
    splittable: set[Key] = set()
    reduced: dict[tuple[int, ...], int] = {}
    while True:
        splitting = Splitting(count, RULES, by_sample, wanted, preexisting, splittable)
        try:
            made = [on_part(splitting, op, reduced) for op in ops]
        except ConflictError as error:
            raise splitting.refused(error, "microbatches") from None
        if not splitting.again:
            return made


def data_tensors(ops: Sequence[Op], preexisting: dict[int, Tensor]) -> list[Tensor]:
    """Inputs of a step that are neither weights, nor statistics of norms, nor optimizer state."""
    others = set(weights_of(ops).weights)
    others |= {t.storage for op in ops if op.phase == "optimizer" for t in op.tensors}
    others |= {t.storage for op in ops if op.name in KEEPS_STATISTICS for t in op.tensors[1:]}
    read = {t.storage for op in ops if op.phase != "optimizer" for t in op.tensors}
    return [t for s, t in preexisting.items() if s in read - others and t.shape]


def _batch_size(ops: Sequence[Op], data: Sequence[Tensor]) -> int:
    """The first dimension of an input that most results of forward begin with too; 0 if there is none.

    Token ids begin with the batch, even if their embeddings begin with the sequence, as in Megatron.
    """
    ids = {op.tensors[1].storage for op in ops if op.name == "aten::embedding"}
    of_ids = {t.shape[0] for t in data if t.storage in ids and len(t.shape) > 1}
    sizes = of_ids or {t.shape[0] for t in data}
    first_dims = Counter(t.shape[0] for op in ops if op.phase == "forward" for t in op.produced if t.shape)
    return max(sizes, key=lambda size: first_dims[size], default=0)


def on_part(splitting: Splitting, op: Op, reduced: dict[tuple[int, ...], int]) -> Op:
    """A call on a part of the samples or of the tokens, whose partial sums are added up later.

    ``reduced`` maps shapes that were reduced to one number to their split dimension.
    """
    if op.name in REDUCTIONS and (dim := splitting.split_dim(op.tensors[0])) is not None:
        reduced[op.tensors[0].shape] = dim
    if op.name == "aten::expand" and not op.tensors[0].shape and (made := op.produced[0]).shape in reduced:
        splitting.wanted[key_of(made)] = reduced[made.shape]  # the gradient of the reduction, equal for all samples
    for tensor in op.tensors:
        if splitting.state(tensor) == PARTIAL:
            splitting.set(tensor, None, op)  # gradients are added up by accumulation, or between ranks
    return op if op.phase == "optimizer" else splitting.apply(op)
