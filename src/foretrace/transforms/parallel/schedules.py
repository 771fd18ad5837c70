"""Microbatches and pipeline schedules: the step on a part of its batch, and the order in which stages process them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from foretrace.graph import ForetraceError, Op, Tensor
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

SCHEDULES = ("1f1b", "gpipe", "interleaved")
REDUCTIONS = ("aten::mean", "aten::sum")
"""Calls that reduce all samples to one number."""


class ScheduledPass(NamedTuple):
    """The forward or backward of a microbatch through one of a stage's chunks of blocks."""

    forward: bool
    chunk: int
    microbatch: int


def stage_schedule(schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[ScheduledPass]:
    """The passes of one stage, in order.

    ``gpipe`` does all forwards, then all backwards; ``1f1b`` alternates as soon as the pipeline is full, so that it
    holds fewer activations; ``interleaved`` does so with several chunks of blocks on each stage, so that the pipeline
    fills sooner.

    >>> [f"{'F' if one.forward else 'B'}{one.microbatch}" for one in stage_schedule("1f1b", 0, 2, 3)]
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
    """Megatron's schedule: rounds of as many microbatches as there are stages, through one chunk after the other."""
    forward = [
        ScheduledPass(True, chunk, first + part)
        for first in range(0, microbatches, stages)
        for chunk in range(chunks)
        for part in range(stages)
    ]
    backward = [ScheduledPass(False, chunks - 1 - one.chunk, one.microbatch) for one in forward]
    return _alternating(forward, backward, 2 * (stages - stage - 1) + (chunks - 1) * stages)


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
    if schedule != "interleaved" and chunks > 1:
        raise ForetraceError(f"schedule {schedule} has no chunks", "Give schedule='interleaved'.")


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
            made = [_on_microbatch(splitting, op, reduced) for op in ops]
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


def _on_microbatch(splitting: Splitting, op: Op, reduced: dict[tuple[int, ...], int]) -> Op:
    """A call on a microbatch; ``reduced`` maps shapes that were reduced to one number to their split dimension."""
    if op.name in REDUCTIONS and (dim := splitting.split_dim(op.tensors[0])) is not None:
        reduced[op.tensors[0].shape] = dim
    if op.name == "aten::expand" and not op.tensors[0].shape and (made := op.produced[0]).shape in reduced:
        splitting.wanted[key_of(made)] = reduced[made.shape]  # the gradient of the reduction, equal for all samples
    for tensor in op.tensors:
        if splitting.state(tensor) == PARTIAL:
            splitting.set(tensor, None, op)  # the sum over samples is made by gradient accumulation
    return op if op.phase == "optimizer" else splitting.apply(op)
