"""Which steps are taken for what."""

from __future__ import annotations

from collections import Counter

import pytest

from foretrace.graph import ForetraceError
from foretrace.record.watch.schedule import (
    BACK_TO_BACK,
    INDICES,
    PROFILE,
    SHORTEST,
    STRUCTURE,
    SYNCED,
    WARM_UP,
    Schedule,
)


def test_the_steps_that_count_come_in_this_order() -> None:
    steps = Schedule(warmup=2, plain=3, profile=2).steps
    assert list(dict.fromkeys(steps)) == [WARM_UP, SYNCED, BACK_TO_BACK, PROFILE, STRUCTURE, INDICES]
    assert Counter(steps) == {WARM_UP: 2, SYNCED: 3, BACK_TO_BACK: 3, PROFILE: 3, STRUCTURE: 1, INDICES: 1}


def test_a_schedule_without_options_is_that_of_the_documentation() -> None:
    assert len(Schedule().steps) == 51


def test_no_profile_means_no_step_thrown_away_for_it() -> None:
    assert PROFILE not in Schedule(profile=0).steps


@pytest.mark.parametrize("wrong", [{"warmup": 0}, {"plain": 0}, {"profile": -1}])
def test_a_schedule_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    """One step always passes first: what went before it, from the start of the process on, is no step."""
    with pytest.raises(ForetraceError, match="there can't be"):
        Schedule(**wrong)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("asked", [Schedule(), Schedule(2, 5, 1), Schedule(1, 3, 0), Schedule(50, 1, 1)])
def test_a_fitting_schedule_fits_and_asks_for_no_more_than_the_first_one(asked: Schedule, compiled: bool) -> None:
    for steps in range(len(asked.steps)):
        fewer = asked.fitting(steps, compiled)
        if fewer is None:
            assert steps < len(Schedule(1, 1, 0).steps)
            continue
        assert fewer != asked
        assert len(fewer.steps) + (compiled and fewer.profile > 0) <= steps
        assert (fewer.warmup, fewer.plain, fewer.profile) <= (asked.warmup, asked.plain, asked.profile)


def test_a_job_that_is_long_enough_for_a_profile_gets_one() -> None:
    fewer = Schedule().fitting(len(SHORTEST.steps))
    assert fewer == SHORTEST and fewer.options == "--warmup 1 --plain 1 --profile 1"
