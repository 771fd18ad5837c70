"""What a step's lines call besides operators."""

from __future__ import annotations

import pytest
import torch

from foretrace.replay.harness import host


class Clock:
    """A clock that goes on by a microsecond whenever it is looked at."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        self.ns += 1000
        return self.ns


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(host, "here", host.Here())
    monkeypatch.setattr(host, "perf_counter_ns", made)
    return made


def test_a_call_is_not_made_before_it_is_due(clock: Clock) -> None:
    host.begin()
    host.pace(3000.0)
    host.pace(3000.0)
    assert 6.0e6 <= clock.ns < 6.01e6


def test_whoever_is_late_catches_up(clock: Clock) -> None:
    host.begin()
    host.spend(8000.0)
    late = clock.ns
    host.pace(2000.0)
    host.pace(2000.0)
    assert clock.ns - late < 0.01e6


def test_after_a_wait_the_pace_goes_on_from_where_it_ended(clock: Clock) -> None:
    host.begin()
    host.spend(8000.0)
    host.resume()
    resumed = clock.ns
    host.pace(3000.0)
    assert 3.0e6 <= clock.ns - resumed < 3.01e6


def test_a_device_is_replaced_by_the_one_that_was_chosen() -> None:
    host.here.kind, host.here.main = "meta", "cuda"
    assert host.device("cuda:3") == torch.device("meta") and host.device("cpu") == torch.device("cpu")


def test_a_stand_in_makes_what_the_call_made() -> None:
    entry = {"shape": [2, 3], "stride": [1, 2], "dtype": "bfloat16", "device": "cpu", "layout": "strided"}
    sparse = {"shape": [4], "stride": None, "dtype": "float32", "device": "cpu", "layout": "sparse_coo"}
    host.here.calls = [{"host_us": 0.0, "device_us": 0.0, "makes": [entry, None, [sparse]]}]
    first, second, (third,) = host.stand_in(0)
    assert first.stride() == (1, 2) and first.dtype == torch.bfloat16 and not first.any()
    assert second is None and third.layout == torch.sparse_coo


def test_memory_can_be_let_go() -> None:
    tensor = torch.zeros(8)
    host.resize(tensor, 0)
    assert tensor.untyped_storage().nbytes() == 0
