"""Keeping to the original's pace, on a host of another speed too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from foretrace.record import host_speed
from foretrace.replay.harness import pace
from foretrace.replay.harness.pace import Pace

CALL_NS = 1000.0


class Host:
    """A host whose calls, and looks at the clock, take as long as it is told."""

    def __init__(self) -> None:
        self.ns, self.call_ns = 0.0, CALL_NS

    def clock(self) -> int:
        self.ns += 1
        return int(self.ns)

    def empty(self, _: int) -> None:
        self.ns += self.call_ns


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(pace, "perf_counter_ns", made.clock)
    monkeypatch.setattr(pace, "torch", SimpleNamespace(empty=made.empty))
    return made


@pytest.mark.parametrize("call_ns", [None, CALL_NS])
def test_a_call_is_not_made_before_it_is_due(host: Host, call_ns: float | None) -> None:
    paced = Pace(call_ns)
    paced.begin()
    paced.wait(300.0)
    paced.wait(300.0)
    assert host.ns == pytest.approx(600e3, rel=0.01)


@pytest.mark.parametrize("call_ns", [None, CALL_NS])
def test_whoever_is_late_catches_up(host: Host, call_ns: float | None) -> None:
    paced = Pace(call_ns)
    paced.begin()
    host.ns += 800_000
    late = host.ns
    paced.wait(200.0)
    paced.wait(200.0)
    assert host.ns - late < 10


@pytest.mark.parametrize("call_ns", [None, CALL_NS])
def test_after_a_wait_the_pace_goes_on_from_where_it_ended(host: Host, call_ns: float | None) -> None:
    paced = Pace(call_ns)
    paced.begin()
    host.ns += 800_000
    paced.resume()
    resumed = host.ns
    paced.wait(300.0)
    assert host.ns - resumed == pytest.approx(300e3, rel=0.01)


@pytest.mark.parametrize("times", [0.5, 1.5, 8.0])
def test_on_a_host_of_another_speed_all_takes_as_much_longer(host: Host, times: float) -> None:
    paced = Pace(CALL_NS)
    host.call_ns *= times
    paced.begin()
    began = host.ns
    paced.wait(10_000.0)
    assert host.ns - began == pytest.approx(times * 10e6, rel=0.01)
    assert paced.slowness == pytest.approx(times, rel=0.01)


def test_a_host_whose_speed_changes_is_followed(host: Host) -> None:
    paced = Pace(CALL_NS)
    for call_ns in (CALL_NS, 1.5 * CALL_NS):
        host.call_ns = call_ns
        for _ in range(pace.STEPS):
            paced.begin()
    assert paced.slowness == pytest.approx(1.5, rel=0.01)


def test_an_interruption_says_nothing_of_the_hosts_speed(host: Host) -> None:
    paced = Pace(CALL_NS)
    for call_ns in (CALL_NS, CALL_NS, 50e6):
        host.call_ns = call_ns
        paced.begin()
    assert paced.slowness == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("call_ns", [0.0, -5.0, 1e-300, 1e9, float("nan"), float("inf"), "700"])
def test_a_figure_that_is_no_calls_time_is_not_believed(host: Host, call_ns: object) -> None:
    paced = Pace(call_ns)  # type: ignore[arg-type]
    paced.begin()
    host.call_ns = 50e6
    paced.wait(100.0)
    assert host.ns == pytest.approx(100e3, rel=0.01)


def test_a_replay_makes_as_many_calls_at_once_as_the_recorder_timed() -> None:
    assert pace.CALLS == host_speed.CALLS
