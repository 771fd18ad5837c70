"""Keeping to the original's pace, on a host of another speed too."""

from __future__ import annotations

import pytest

from foretrace.record import host_speed
from foretrace.replay.harness import pace
from foretrace.replay.harness.pace import Pace

TURN_NS = 1040.0
"""What a turn takes by the clock below: 25 of them are 26 looks at it."""


class Clock:
    """A clock that goes on by so much whenever it is looked at."""

    def __init__(self) -> None:
        self.ns, self.turn_ns = 0, 1000

    def __call__(self) -> int:
        self.ns += self.turn_ns
        return self.ns


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "perf_counter_ns", made)
    return made


@pytest.mark.parametrize("turn_ns", [None, TURN_NS])
def test_a_call_is_not_made_before_it_is_due(clock: Clock, turn_ns: float | None) -> None:
    paced = Pace(turn_ns)
    paced.begin()
    paced.wait(3000.0)
    paced.wait(3000.0)
    assert clock.ns == pytest.approx(6.0e6, rel=0.01)


@pytest.mark.parametrize("turn_ns", [None, TURN_NS])
def test_whoever_is_late_catches_up(clock: Clock, turn_ns: float | None) -> None:
    paced = Pace(turn_ns)
    paced.begin()
    clock.ns += 8_000_000
    late = clock.ns
    paced.wait(2000.0)
    paced.wait(2000.0)
    assert clock.ns - late < 0.01e6


@pytest.mark.parametrize("turn_ns", [None, TURN_NS])
def test_after_a_wait_the_pace_goes_on_from_where_it_ended(clock: Clock, turn_ns: float | None) -> None:
    paced = Pace(turn_ns)
    paced.begin()
    clock.ns += 8_000_000
    paced.resume()
    resumed = clock.ns
    paced.wait(3000.0)
    assert clock.ns - resumed == pytest.approx(3.0e6, rel=0.01)


def test_a_slower_host_takes_longer_and_is_not_late_for_it(clock: Clock) -> None:
    paced = Pace(turn_ns=TURN_NS)
    clock.turn_ns = 1500
    paced.begin()
    paced.wait(20_000.0)
    assert clock.ns == pytest.approx(30e6, rel=0.03) and paced.slowness == pytest.approx(1.5, rel=0.01)
    clock.ns += 3_000_000  # a call that took the original's host 2 ms
    paced.wait(4000.0)
    assert clock.ns == pytest.approx(36e6, rel=0.03)


def test_an_interruption_says_nothing_of_the_hosts_speed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Pace(turn_ns=TURN_NS)
    paced.begin()
    monkeypatch.setattr(pace, "perf_counter_ns", lambda: clock() + (50_000_000 if clock.ns > 50_000 else 0))
    paced.wait(40_000.0)
    assert clock.ns < 100_000 and paced.slowness == pytest.approx(1.0, abs=0.01)


def test_a_host_that_is_much_slower_all_the_time_is_not_taken_for_an_interrupted_one(clock: Clock) -> None:
    paced = Pace(turn_ns=TURN_NS)
    clock.turn_ns = 8000
    paced.begin()
    paced.wait(40_000.0)
    assert paced.slowness == pytest.approx(8.0, rel=0.01)


def test_a_host_that_is_much_faster_is_followed_too(clock: Clock) -> None:
    paced = Pace(turn_ns=pace.SOUND_NS[1])
    clock.turn_ns = 10
    paced.begin()
    paced.wait(40_000.0)
    assert 0 < paced.slowness < 0.01 and clock.ns < 40e6


@pytest.mark.parametrize("turn_ns", [0.0, -5.0, 1e-300, 1e5, float("nan"), float("inf"), "70"])
def test_a_figure_that_is_no_turns_time_is_not_believed(clock: Clock, turn_ns: object) -> None:
    paced = Pace(turn_ns)  # type: ignore[arg-type]
    paced.begin()
    paced.wait(100.0)
    assert 100e3 <= clock.ns < 110e3


def test_a_replay_does_as_many_turns_at_once_as_the_recorder_timed() -> None:
    assert pace.TURNS == host_speed.TURNS
