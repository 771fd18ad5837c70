"""A rank that plays alone: what others would send is made up, and comes as late as it is asked to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from foretrace.replay.harness import alone, together
from foretrace.replay.harness.alone import play, played
from foretrace.replay.harness.contents import ids
from foretrace.replay.harness.host import here
from foretrace.replay.harness.late import delays


@pytest.fixture(autouse=True)
def calls() -> Iterator[None]:
    made = {"shape": [4], "stride": [1], "dtype": "float32", "device": "cpu", "layout": "strided"}
    here.calls = [{"makes": [made], "took_us": 20_000.0}]
    yield
    here.calls, delays.wanted = [], False
    alone.received.clear()
    alone._kept.clear()


def test_a_reduction_leaves_what_it_is_given() -> None:
    given = torch.tensor([1.0, 2.0])
    result, work = played(0, "c10d.allreduce_", [given], None, None, None)
    assert result[0] is given and given.tolist() == [1.0, 2.0] and work is None


def test_an_exchange_gives_back_what_this_rank_sends() -> None:
    out = torch.zeros(3)
    assert played(0, "c10d.alltoall_base_", out, torch.tensor([5.0, 6.0]), None, [1, 2], [1, 1]) is None
    assert out.tolist() == [5.0, 6.0, 5.0]


def test_readers_get_ids_that_they_can_read() -> None:
    alone.received[0] = ids(low=3, high=5)
    out = torch.full((8,), 100)
    for _ in range(2):
        played(0, "c10d.alltoall_base_", out, torch.full((8,), 77), None, [8], [8])
        assert int(out.min()) >= 3 and int(out.max()) <= 5


def test_a_functional_collective_makes_what_it_made() -> None:
    out = played(0, "_c10d_functional.all_gather_into_tensor", torch.tensor([1.0, 2.0]), 2, "tp")
    assert out.tolist() == [1.0, 2.0, 1.0, 2.0]


def test_a_result_with_gaps_is_filled_too() -> None:
    out = torch.zeros(2, 2).t()
    played(0, "c10d._allgather_base_", out, torch.tensor([1.0, 2.0]), None)
    assert out.tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_a_delayed_collective_is_done_no_sooner_than_the_original_was(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(0, 10**9, 1000))
    monkeypatch.setattr("foretrace.replay.harness.late.perf_counter_ns", lambda: next(looks))
    delays.wanted = True
    _, work = play(0, "c10d.allreduce_", [torch.zeros(1)], None, None, None)
    assert next(looks) < 20e6, "only who waits is held up"
    together.wait(work)
    assert next(looks) >= 20e6


def test_nobody_waits_for_a_work_that_is_none() -> None:
    together.wait(None)
    assert together.tell("hello") == ["hello"] and together.group("0") is None
