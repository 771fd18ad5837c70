from __future__ import annotations

import pytest

from foretrace.graph import ForetraceError
from foretrace.transforms.parallel.schedules import Turn, check, turns

CASES = [("1f1b", 4, 8, 1), ("gpipe", 4, 8, 1), ("1f1b", 4, 2, 1), ("interleaved", 4, 8, 2), ("interleaved", 2, 6, 3)]


@pytest.mark.parametrize("schedule, stages, microbatches, chunks", CASES)
def test_each_part_passes_each_chunk_once_in_each_direction(
    schedule: str, stages: int, microbatches: int, chunks: int
) -> None:
    every = {Turn(f, c, m) for f in (True, False) for c in range(chunks) for m in range(microbatches)}
    for stage in range(stages):
        order = turns(schedule, stage, stages, microbatches, chunks)
        assert len(order) == len(every)
        assert set(order) == every


@pytest.mark.parametrize("schedule, stages, microbatches, chunks", CASES)
def test_no_stage_waits_for_another_forever(schedule: str, stages: int, microbatches: int, chunks: int) -> None:
    left = [turns(schedule, stage, stages, microbatches, chunks) for stage in range(stages)]
    done: set[tuple[bool, int, int]] = set()
    last = stages * chunks - 1
    while any(left):
        before = len(done)
        for stage, order in enumerate(left):
            while order:
                turn = order[0]
                chunk = turn.chunk * stages + stage
                ahead = (True, chunk - 1, turn.microbatch) if turn.forward else (False, chunk + 1, turn.microbatch)
                needs = {ahead} if (chunk > 0 if turn.forward else chunk < last) else set()
                if not turn.forward:
                    needs.add((True, chunk, turn.microbatch))
                if not needs <= done:
                    break
                done.add((turn.forward, chunk, turn.microbatch))
                order.pop(0)
        assert len(done) > before


def test_the_first_stage_of_1f1b_keeps_no_more_activations_than_there_are_stages() -> None:
    kept, most = 0, 0
    for turn in turns("1f1b", 0, 4, 16):
        kept += 1 if turn.forward else -1
        most = max(most, kept)
    assert most == 4


@pytest.mark.parametrize(
    "case, message",
    [
        (("2f2b", 4, 8, 1), "no schedule is called '2f2b'"),
        (("interleaved", 4, 6, 2), "rounds of 4 microbatches, and 6 is not divisible"),
        (("interleaved", 4, 8, 1), "needs several chunks"),
        (("1f1b", 4, 8, 2), "knows no chunks"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(case: tuple[str, int, int, int], message: str) -> None:
    with pytest.raises(ForetraceError, match=message):
        check(*case)
