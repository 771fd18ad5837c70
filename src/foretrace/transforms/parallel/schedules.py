"""In which order the stages of a pipeline work on the parts of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.transforms.parallel.split_rules import READS_STATISTICS, RULES, by_sample
from foretrace.transforms.parallel.splitting import (
    PARTIAL,
    ConflictError,
    Key,
    Splitting,
    key_of,
    preexisting_tensors,
)
from foretrace.transforms.weights import weights_of

SCHEDULES = ("1f1b", "gpipe", "interleaved")


class ScheduledPass(NamedTuple):
    """One piece of a stage's work: forward or backward of a part of the batch, through one of its chunks of blocks."""

    forward: bool
    chunk: int
    microbatch: int


def stage_schedule(schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[ScheduledPass]:
    """What one stage does, in order.

    Parameters
    ----------
    schedule
        ``gpipe`` does all forwards, then all backwards; ``1f1b`` takes turns as soon as the pipeline is full, so that
        it keeps fewer activations; ``interleaved`` does so with several chunks of blocks on each stage, so that the
        pipeline fills sooner.
    stage, stages
        Which of how many.
    microbatches
        Parts of the batch.
    chunks
        Of blocks on each stage; 1 but in ``interleaved``.

    >>> [f"{'F' if t.forward else 'B'}{t.microbatch}" for t in stage_schedule("1f1b", 0, 2, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    if schedule == "interleaved":
        return _interleaved(stage, stages, microbatches, chunks)
    forward = [ScheduledPass(True, 0, m) for m in range(microbatches)]
    backward = [ScheduledPass(False, 0, m) for m in range(microbatches)]
    if schedule == "gpipe":
        return forward + backward
    return _alternating(forward, backward, stages - stage - 1)


def _interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[ScheduledPass]:
    """Megatron's: rounds of as many parts of the batch as there are stages, through one chunk after the other."""
    forward = [
        ScheduledPass(True, chunk, first + part)
        for first in range(0, microbatches, stages)
        for chunk in range(chunks)
        for part in range(stages)
    ]
    backward = [ScheduledPass(False, chunks - 1 - turn.chunk, turn.microbatch) for turn in forward]
    return _alternating(forward, backward, 2 * (stages - stage - 1) + (chunks - 1) * stages)


def _alternating(forward: list[ScheduledPass], backward: list[ScheduledPass], ahead: int) -> list[ScheduledPass]:
    """Some forwards first, then one of each in turn, then the backwards that are left."""
    ahead = min(ahead, len(forward))
    steady = [turn for pair in zip(forward[ahead:], backward) for turn in pair]
    return forward[:ahead] + steady + backward[len(forward) - ahead :]


def check_schedule(schedule: str, stages: int, microbatches: int, chunks: int) -> None:
    """Refuse what no schedule can do.

    >>> check_schedule("1f1b", 4, 8, 1)
    """
    if schedule not in SCHEDULES:
        raise ForetraceError(f"no schedule is called {schedule!r}", f"Say one of {', '.join(SCHEDULES)}.")
    if schedule == "interleaved" and microbatches % stages:
        raise ForetraceError(
            f"the interleaved schedule works on rounds of {stages} microbatches, and {microbatches} is not divisible",
            f"Give a multiple of {stages}, or schedule='1f1b'.",
        )
    if schedule == "interleaved" and chunks < 2:
        raise ForetraceError("the interleaved schedule needs several chunks a stage", "Give chunks=2 or more.")
    if schedule != "interleaved" and chunks > 1:
        raise ForetraceError(f"schedule {schedule} knows no chunks", "Say schedule='interleaved'.")


# --- was transforms.parallel.batches: A step on a part of its batch.

REDUCES = ("aten::mean", "aten::sum")
"""Calls that make one number of all samples."""


def microbatch_of(ops: Sequence[Op], parts: int, source: str = "") -> list[Op]:
    """The calls of a step on one of so many equal parts of its batch.

    Parameters
    ----------
    ops
        Calls of the whole step.
    parts
        How many.
    source
        What to call the step in messages.

    >>> x, w, y, g = (Tensor((8, 8), "float32", stride=(8, 1), id=number, storage=number) for number in range(4))
    >>> forward, backward = Op("aten::mm", (x, w), outputs=(y,)), Op("aten::mm", (y, w), outputs=(g,))
    >>> forward.phase, backward.phase = "forward", "backward"
    >>> update = Op("aten::add_", (w, g), outputs=(w,), phase="optimizer")
    >>> microbatch_of([forward, backward, update], 4)[0].outputs[0].shape
    (2, 8)
    """
    if parts == 1:
        return list(ops)
    given = preexisting_tensors(ops)
    inputs = _inputs(ops, given)
    size = _batch_size(ops, inputs)
    if not size:
        raise ForetraceError(f"{source or 'the graph'} reads no batch that could be divided", "Give it its batch.")
    if size % parts:
        raise ForetraceError(
            f"a batch of {size} can't be divided into {parts} microbatches", "Give a number that divides it."
        )
    wanted: dict[Key, int] = {key_of(t): 0 for t in inputs if t.shape[0] == size}
    free: set[Key] = set()
    reduced: dict[tuple[int, ...], int] = {}
    while True:
        splitting = Splitting(parts, RULES, by_sample, wanted, given, free)
        try:
            divided = [_through(splitting, op, reduced) for op in ops]
        except ConflictError as error:
            raise splitting.refused(error, "microbatches") from None
        if not splitting.again:
            return divided


def _inputs(ops: Sequence[Op], given: dict[int, Tensor]) -> list[Tensor]:
    """What a step reads that is no weight, no statistic of a norm, and no state of the optimizer."""
    others = set(weights_of(ops).weights)
    others |= {t.storage for op in ops if op.phase == "optimizer" for t in op.tensors}
    others |= {t.storage for op in ops if op.name in READS_STATISTICS for t in op.tensors[1:]}
    seen = {t.storage for op in ops if op.phase != "optimizer" for t in op.tensors}
    return [t for s, t in given.items() if s in seen - others and t.shape]


def _batch_size(ops: Sequence[Op], inputs: Sequence[Tensor]) -> int:
    """The first dimension of an input that most results of forward begin with too; 0 where there is none.

    Sequences of ids begin with the batch, even where what is made of them begins with the sequence, as in Megatron.
    """
    looked_up = {op.tensors[1].storage for op in ops if op.name == "aten::embedding"}
    ids = {t.shape[0] for t in inputs if t.storage in looked_up and len(t.shape) > 1}
    sizes = ids or {t.shape[0] for t in inputs}
    begun = Counter(t.shape[0] for op in ops if op.phase == "forward" for t in op.produced if t.shape)
    return max(sizes, key=lambda size: begun[size], default=0)


def _through(splitting: Splitting, op: Op, reduced: dict[tuple[int, ...], int]) -> Op:
    """A call on a part of the batch; what was reduced to one number so far, and over which dimension it was divided."""
    if op.name in REDUCES and (dim := splitting.split(op.tensors[0])) is not None:
        reduced[op.tensors[0].shape] = dim
    if op.name == "aten::expand" and not op.tensors[0].shape and (made := op.produced[0]).shape in reduced:
        splitting.wanted[key_of(made)] = reduced[made.shape]  # its gradient, the same number for all samples
    for tensor in op.tensors:
        if splitting.state(tensor) == PARTIAL:
            splitting.set(tensor, None, op)  # the sum over samples is made by accumulation
    if op.phase == "optimizer":
        return op
    return splitting.through(op) if splitting.touched(op) else splitting.untouched(op)
