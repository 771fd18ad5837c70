"""Collectives of a rank that runs alone or with fewer ranks: received data is made up, delays are the original's."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from foretrace.replay.generate.folder import remaining_group
from foretrace.replay.harness import collectives, ranks
from foretrace.replay.harness.collectives import PartialGroup, _shrunk, emulate, emulated
from foretrace.replay.harness.host import runtime
from foretrace.replay.harness.inputs import ids


@pytest.fixture(autouse=True)
def calls() -> Iterator[None]:
    made = {"shape": [4], "stride": [1], "dtype": "float32", "device": "cpu", "layout": "strided"}
    runtime.calls = [{"makes": [made], "took_us": 20_000.0}]
    yield
    runtime.calls, runtime.delayed = [], False
    collectives.received.clear()
    collectives._contents.clear()


def test_a_reduction_leaves_what_it_is_given() -> None:
    given = torch.tensor([1.0, 2.0])
    result, work = emulated(0, "c10d.allreduce_", [given], None, None, None)
    assert result[0] is given and given.tolist() == [1.0, 2.0] and work is None


def test_an_exchange_gives_back_what_this_rank_sends() -> None:
    out = torch.zeros(3)
    assert emulated(0, "c10d.alltoall_base_", out, torch.tensor([5.0, 6.0]), None, [1, 2], [1, 1]) is None
    assert out.tolist() == [5.0, 6.0, 5.0]


def test_readers_get_ids_that_they_can_read() -> None:
    collectives.received[0] = ids(low=3, high=5)
    out = torch.full((8,), 100)
    for _ in range(2):
        emulated(0, "c10d.alltoall_base_", out, torch.full((8,), 77), None, [8], [8])
        assert int(out.min()) >= 3 and int(out.max()) <= 5


def test_a_functional_collective_makes_what_it_made() -> None:
    out = emulated(0, "_c10d_functional.all_gather_into_tensor", torch.tensor([1.0, 2.0]), 2, "tp")
    assert out.tolist() == [1.0, 2.0, 1.0, 2.0]


def test_a_result_with_gaps_is_filled_too() -> None:
    out = torch.zeros(2, 2).t()
    emulated(0, "c10d._allgather_base_", out, torch.tensor([1.0, 2.0]), None)
    assert out.tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_a_delayed_collective_is_done_no_sooner_than_the_original_was(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(0, 10**9, 1000))
    monkeypatch.setattr("foretrace.replay.harness.collectives.perf_counter_ns", lambda: next(looks))
    runtime.delayed = True
    _, work = emulate(0, "c10d.allreduce_", [torch.zeros(1)], None, None, None)
    assert next(looks) < 20e6, "only the one that waits is held up"
    ranks.wait(work)
    assert next(looks) >= 20e6


def test_a_work_that_is_none_is_not_waited_for() -> None:
    ranks.wait(None)
    assert ranks.gather_from_ranks("hello") == ["hello"] and ranks.group("0") is None


def test_a_group_keeps_the_ranks_that_are_there_under_their_new_numbers() -> None:
    assert remaining_group([1, 3, 5, 7], replayed_ranks=[1, 2, 3]) == {"ranks": [0, 2], "places": [0, 1], "of": 4}


def test_a_group_of_missing_ranks_is_empty() -> None:
    assert remaining_group([4, 5], replayed_ranks=[0, 1]) == {"ranks": [], "places": [], "of": 2}


GROUP = PartialGroup("box", of=4, places=(0, 2))


def shrunk(name: str, *arguments: Any) -> list[Any]:
    return _shrunk(name, list(arguments), GROUP)


def test_a_gather_brings_the_parts_of_the_ranks_that_are_there() -> None:
    out, given, box = shrunk("_allgather_base_", torch.zeros(4, 3), torch.zeros(3), GROUP)
    assert out.numel() == 6 and given.numel() == 3 and box == "box"


def test_a_scatter_sends_the_parts_of_the_ranks_that_are_there() -> None:
    _, given, *_ = shrunk("_reduce_scatter_base_", torch.zeros(3), torch.zeros(12), GROUP, "sum")
    assert given.numel() == 6


def test_an_exchange_moves_between_two_ranks_what_it_moved_before() -> None:
    out, given, _, received, sent = shrunk(
        "alltoall_base_", torch.zeros(10), torch.zeros(20), GROUP, [1, 2, 3, 4], [5, 5, 4, 6]
    )
    assert (received, sent) == ([1, 3], [5, 4]) and (len(out), len(given)) == (4, 9)


def test_an_even_exchange_stays_even() -> None:
    _, given, _, received, _ = shrunk("alltoall_base_", torch.zeros(8), torch.zeros(8), GROUP, [], [])
    assert received == [2, 2] and len(given) == 4


@pytest.mark.parametrize(("root", "new"), [(2, 1), (3, 0)])
def test_a_root_that_is_gone_is_replaced_by_the_first(root: int, new: int) -> None:
    assert shrunk("broadcast_", [torch.zeros(1)], GROUP, root, 0)[2] == new


def test_every_part_of_a_list_belongs_to_a_rank() -> None:
    parts = [torch.full((1,), float(n)) for n in range(4)]
    out, given, _ = shrunk("alltoall_", parts, parts, GROUP)
    assert [int(part) for part in out] == [int(part) for part in given] == [0, 2]


def test_the_harness_runs_from_its_own_folder_and_from_ours() -> None:
    assert importlib.import_module("foretrace.replay.harness.ranks").PartialGroup is collectives.PartialGroup
