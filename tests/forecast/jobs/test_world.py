"""From one rank to many."""

import pytest

from foretrace.forecast.jobs.world import at_world, worlds
from foretrace.graph import Collective, ForetraceError, Graph, Job, Op, OpTable


def rank(world: int, *groups: tuple[int, ...]) -> Job:
    collectives = [Collective("all_reduce", str(n), 1024, -1, 0, group) for n, group in enumerate(groups)]
    return Job([Graph(OpTable.of([Op("c10d::allreduce_")]), world=world, collectives=collectives)])


def members(job: Job) -> list[tuple[int, ...]]:
    return [one.ranks for one in job.graphs[0].collectives]


def test_a_group_of_all_ranks_stays_one_of_all() -> None:
    assert members(at_world(rank(8, tuple(range(8)), ()), 64)) == [tuple(range(64))] * 2


def test_tensor_parallel_groups_stay_and_data_parallel_ones_grow() -> None:
    grown = at_world(rank(8, (0, 1), (0, 2, 4, 6)), 16)
    assert members(grown) == [(0, 1), tuple(range(0, 16, 2))]
    assert grown.graphs[0].collectives[0].nbytes == 1024, "weak scaling"


def test_all_ranks_share_the_one_graph() -> None:
    job = at_world(rank(8, tuple(range(8))), 16_384)
    assert (job.world, len(job.graphs), job.missing) == (16_384, 1, [])


def test_a_job_of_one_rank_has_nobody_to_talk_to() -> None:
    assert members(at_world(rank(8, tuple(range(8))), 1)) == [(0,)]


@pytest.mark.parametrize(("world", "match"), [(0, "can't have"), (3, "no whole groups"), (2, "reaches over 4")])
def test_worlds_that_do_not_fit_the_groups_are_refused(world: int, match: str) -> None:
    with pytest.raises(ForetraceError, match=match):
        at_world(rank(8, (0, 2, 4, 6)) if world == 3 else rank(8, (0, 1, 2, 3)), world)


@pytest.mark.parametrize("text", ["", "a", "1,...", "...,4", "0", "4,2,...,64", "1.5"])
def test_lists_of_worlds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ForetraceError):
        worlds(text)


def test_dots_go_on_as_the_numbers_before_them() -> None:
    assert worlds("8,16,24,...,48") == [8, 16, 24, 32, 40, 48]
    assert worlds("1,2,4,…,20") == [1, 2, 4, 8, 16, 20]
