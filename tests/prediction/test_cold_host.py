"""What a wait for the device adds to the step after it."""

from __future__ import annotations

import pytest

from foretrace.prediction.priced_step import OWN_STREAM
from foretrace.prediction.priced_tasks import longest_wait, with_cold_host_penalty
from foretrace.simulation.engine import simulate
from tests.prediction.by_hand import Call, device, run, step


def test_the_host_waits_from_its_last_call_to_the_devices_end() -> None:
    assert longest_wait(*run(step(Call([3000.0])), device())) == 6 + 3000 - 7


def test_a_wait_inside_the_step_counts_where_it_is_longer() -> None:
    table, timeline = run(step(Call([3000.0], waits=OWN_STREAM), Call([1.0])), device())
    assert longest_wait(table, timeline) == 3000.0


def test_a_host_that_never_waits_is_not_slower() -> None:
    priced = step(Call([1.0], cold=9.0), Call())
    table, timeline = run(priced, device())
    assert simulate(with_cold_host_penalty(priced, table)).span == timeline.span


def test_each_doubling_of_a_millisecond_makes_the_start_longer() -> None:
    priced = step(Call([3001.0], cold=9.0))
    table, timeline = run(priced, device())
    assert simulate(with_cold_host_penalty(priced, table)).span == pytest.approx(timeline.span + 2 * 9)
