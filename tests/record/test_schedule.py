"""Which steps are taken for what."""

from __future__ import annotations

from collections import Counter

import pytest

from foretrace.graph import ForetraceError
from foretrace.record.schedule import BACK_TO_BACK, INDICES, PROFILE, STRUCTURE, SYNCED, WARM_UP, Schedule


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
