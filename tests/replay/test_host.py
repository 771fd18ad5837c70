"""Host pace, streams and stand-ins."""

from __future__ import annotations

from statistics import fmean, median

import pytest
import torch

from foretrace.replay.harness import host as harness_host
from foretrace.replay.harness.host import Pace


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness_host, "runtime", harness_host.Runtime())


def test_a_device_is_replaced_by_the_one_that_was_chosen() -> None:
    harness_host.runtime.kind, harness_host.runtime.main = "meta", "cuda"
    assert harness_host.device("cuda:3") == torch.device("meta") and harness_host.device("cpu") == torch.device("cpu")


def test_a_stand_in_makes_what_the_call_made() -> None:
    entry = {"shape": [2, 3], "stride": [1, 2], "dtype": "bfloat16", "device": "cpu", "layout": "strided"}
    sparse = {"shape": [4], "stride": None, "dtype": "float32", "device": "cpu", "layout": "sparse_coo"}
    harness_host.runtime.calls = [{"host_us": 0.0, "device_us": 0.0, "makes": [entry, None, [sparse]]}]
    first, second, (third,) = harness_host.stand_in(0)
    assert first.stride() == (1, 2) and first.dtype == torch.bfloat16 and not first.any()
    assert second is None and third.layout == torch.sparse_coo


def test_memory_can_be_let_go() -> None:
    tensor = torch.zeros(8)
    harness_host.resize(tensor, 0)
    assert tensor.untyped_storage().nbytes() == 0


LEARNT = 2 * harness_host.RELEARN_STEPS


class Host:
    """A host whose looks at the clock take a tenth of a microsecond, and its work as long as a test says."""

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
    monkeypatch.setattr(harness_host, "perf_counter_ns", made.clock)
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


@pytest.mark.parametrize("slow_host", [0.5, 1.5])
def test_the_originals_host_may_be_thought_slower_or_faster(host: Host, slow_host: float) -> None:
    paced = Pace()
    for _ in range(3):
        step_us(host, paced, [300.0, 300.0], [50.0, 50.0])
    paced.slow_host = slow_host
    assert step_us(host, paced, [300.0, 300.0], [50.0, 50.0]) == pytest.approx(600 * slow_host, rel=0.01)
