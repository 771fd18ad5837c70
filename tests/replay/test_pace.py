"""Keeping to the original's pace, on a host that is not always equally fast too."""

from __future__ import annotations

from statistics import fmean, median

import pytest

from foretrace.replay.harness import pace
from foretrace.replay.harness.pace import Pace

LEARNT = 2 * pace.MOST_STEPS


class Host:
    """A host whose looks at the clock take a tenth of a microsecond, and its work as long as it is told."""

    def __init__(self) -> None:
        self.ns = 0

    def clock(self) -> int:
        self.ns += 100
        return self.ns

    def work(self, us: float) -> None:
        self.ns += round(us * 1000)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(pace, "perf_counter_ns", made.clock)
    return made


def step_us(host: Host, paced: Pace, due: list[float], work: list[float]) -> float:
    """How long a step takes whose stretches are due after so long, and take us so long."""
    began = host.ns
    paced.begin()
    for wanted, takes in zip(due, work, strict=True):
        host.work(takes)
        paced.wait(wanted)
    return (host.ns - began) / 1000


def test_a_step_takes_as_long_as_the_originals(host: Host) -> None:
    paced = Pace()
    first = step_us(host, paced, [300.0, 200.0], [50.0, 100.0])
    assert first == pytest.approx(150.0, rel=0.01)  # nothing is known yet
    assert step_us(host, paced, [300.0, 200.0], [50.0, 100.0]) == pytest.approx(500.0, rel=0.01)


def test_a_first_step_that_took_its_time_is_forgotten(host: Host) -> None:
    paced = Pace()
    times = [step_us(host, paced, [300.0, 200.0], [50_000.0 if not n else 50.0, 100.0]) for n in range(5)]
    assert times[-1] == pytest.approx(500.0, rel=0.01)


def test_who_is_late_catches_up_and_who_will_be_waits_less(host: Host) -> None:
    paced = Pace()
    for work in ([800.0, 100.0, 100.0], [100.0, 100.0, 800.0]):
        steps = [step_us(host, paced, [500.0, 300.0, 300.0], work) for _ in range(LEARNT)]
        assert steps[-1] == pytest.approx(1100.0, rel=0.01)


def test_a_replay_that_is_slower_than_its_original_never_waits(host: Host) -> None:
    paced = Pace()
    steps = [step_us(host, paced, [100.0, 100.0], [50.0, 400.0]) for _ in range(4)]
    assert steps[-1] == pytest.approx(450.0, rel=0.01)


def test_a_slow_step_stays_slow_and_the_middle_one_is_the_originals(host: Host) -> None:
    paced = Pace()
    work = [[200.0, 200.0], [200.0, 200.0], [400.0, 400.0]]
    steps = [step_us(host, paced, [300.0, 300.0], work[number % 3]) for number in range(3 * LEARNT)][LEARNT:]
    assert median(steps) == pytest.approx(600.0, rel=0.01)
    assert max(steps) == pytest.approx(1000.0, rel=0.05)


def test_an_interruption_hardly_counts(host: Host) -> None:
    paced = Pace()
    for number in range(LEARNT):
        step_us(host, paced, [300.0, 300.0], [50_000.0 if number % 7 == 3 else 200.0, 200.0])
    assert fmean(step_us(host, paced, [300.0, 300.0], [200.0, 200.0]) for _ in range(9)) == pytest.approx(600, rel=0.05)


def test_a_host_that_has_become_slower_is_followed(host: Host) -> None:
    paced = Pace()
    for work in (100.0, 250.0):
        steps = [step_us(host, paced, [300.0, 300.0], [work, work]) for _ in range(2 * LEARNT)]
        assert steps[-1] == pytest.approx(600.0, rel=0.01)


def test_a_wait_for_the_device_is_not_made_up_for(host: Host) -> None:
    paced, took = Pace(), 0.0
    for _ in range(4):
        began = host.ns
        paced.begin()
        host.work(100.0)
        paced.wait(300.0)
        host.work(5_000.0)
        paced.resume()
        host.work(100.0)
        paced.wait(300.0)
        took = (host.ns - began) / 1000
    assert took == pytest.approx(300 + 5_000 + 300, rel=0.01)


@pytest.mark.parametrize("slowness", [0.5, 1.5])
def test_the_originals_host_may_be_thought_slower_or_faster(host: Host, slowness: float) -> None:
    paced = Pace()
    for _ in range(3):
        step_us(host, paced, [300.0, 300.0], [50.0, 50.0])
    paced.slowness = slowness
    assert step_us(host, paced, [300.0, 300.0], [50.0, 50.0]) == pytest.approx(600 * slowness, rel=0.01)
