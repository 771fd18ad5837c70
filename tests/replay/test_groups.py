"""Groups that shrink to the ranks that are there, and what collectives then move."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from foretrace.replay.groups import among
from foretrace.replay.harness import fewer
from foretrace.replay.harness.fewer import Fewer, _shrunk


def test_a_group_keeps_the_ranks_that_are_there_under_their_new_numbers() -> None:
    assert among([1, 3, 5, 7], kept=[1, 2, 3]) == {"ranks": [0, 2], "places": [0, 1], "of": 4}


def test_a_group_of_missing_ranks_is_empty() -> None:
    assert among([4, 5], kept=[0, 1]) == {"ranks": [], "places": [], "of": 2}


GROUP = Fewer("box", of=4, places=(0, 2))


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
    assert importlib.import_module("foretrace.replay.harness.together").Fewer is fewer.Fewer
