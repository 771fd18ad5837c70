"""In which order the stages of a pipeline work on the parts of a batch."""

from __future__ import annotations

from typing import NamedTuple

from foretrace.graph.errors import ForetraceError

SCHEDULES = ("1f1b", "gpipe", "interleaved")


class Turn(NamedTuple):
    """One piece of a stage's work: forward or backward of a part of the batch, through one of its chunks of blocks."""

    forward: bool
    chunk: int
    microbatch: int


def turns(schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Turn]:
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

    >>> [f"{'F' if t.forward else 'B'}{t.microbatch}" for t in turns("1f1b", 0, 2, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    if schedule == "interleaved":
        return _interleaved(stage, stages, microbatches, chunks)
    forward = [Turn(True, 0, m) for m in range(microbatches)]
    backward = [Turn(False, 0, m) for m in range(microbatches)]
    if schedule == "gpipe":
        return forward + backward
    return _alternating(forward, backward, stages - stage - 1)


def _interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[Turn]:
    """Megatron's: rounds of as many parts of the batch as there are stages, through one chunk after the other."""
    forward = [
        Turn(True, chunk, first + part)
        for first in range(0, microbatches, stages)
        for chunk in range(chunks)
        for part in range(stages)
    ]
    backward = [Turn(False, chunks - 1 - turn.chunk, turn.microbatch) for turn in forward]
    return _alternating(forward, backward, 2 * (stages - stage - 1) + (chunks - 1) * stages)


def _alternating(forward: list[Turn], backward: list[Turn], ahead: int) -> list[Turn]:
    """Some forwards first, then one of each in turn, then the backwards that are left."""
    ahead = min(ahead, len(forward))
    steady = [turn for pair in zip(forward[ahead:], backward) for turn in pair]
    return forward[:ahead] + steady + backward[len(forward) - ahead :]


def check(schedule: str, stages: int, microbatches: int, chunks: int) -> None:
    """Refuse what no schedule can do.

    >>> check("1f1b", 4, 8, 1)
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
