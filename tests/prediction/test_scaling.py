"""From one rank to many."""

import pytest

from foretrace.analysis.report import StepReport
from foretrace.graph import Collective, ForetraceError, Graph, Job, Op, OpTable
from foretrace.graph.graph import cautions
from foretrace.prediction.scaling import at_world, at_world_resharded, parse_worlds, scaling_curve


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


def test_how_collectives_of_unknown_size_scale_is_not_known() -> None:
    job = rank(8, (0, 1), tuple(range(8)))
    for one in job.graphs[0].collectives:
        one.nbytes, one.us = 0, 35.0
    with pytest.raises(ForetraceError, match=r"size of 1 of its 2 collectives: how long .* can't be known"):
        at_world(job, 16)
    assert members(at_world(job, 8)) == [(0, 1), tuple(range(8))]


@pytest.mark.parametrize(("world", "said"), [(1, "take no time"), (4, "are taken to be of all 4 ranks")])
def test_communication_of_a_trace_that_tells_no_ranks_is_said_to_be_of_all_of_them(world: int, said: str) -> None:
    job = at_world(rank(1, ()), world)
    (caution,) = cautions(job.notes)
    assert members(job) == [tuple(range(world))] and said in caution
    assert not cautions(at_world(rank(1, (0,)), world).notes), "a group of one rank is known"


def test_all_ranks_share_the_one_graph() -> None:
    job = at_world(rank(8, tuple(range(8))), 16_384)
    assert (job.world, len(job.graphs), job.missing) == (16_384, 1, [])


def test_a_job_of_one_rank_has_nobody_to_talk_to() -> None:
    assert members(at_world(rank(8, tuple(range(8))), 1)) == [(0,)]


@pytest.mark.parametrize(("world", "match"), [(0, "world can't be 0"), (3, "2 apart"), (2, "reaches over 4")])
def test_worlds_that_do_not_fit_the_groups_are_refused(world: int, match: str) -> None:
    with pytest.raises(ForetraceError, match=match):
        at_world(rank(8, (0, 2, 4, 6)) if world == 3 else rank(8, (0, 1, 2, 3)), world)


@pytest.mark.parametrize(
    "text", ["", "a", "1,...", "...,4", "0", "4,2,...,64", "1.5", "1,1,...,3", "2,2", "1,2,4,...,3"]
)
def test_lists_of_worlds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ForetraceError):
        parse_worlds(text)


def test_a_stage_of_a_pipeline_does_not_stand_for_others() -> None:
    send = Collective("send", "stages", 1024, -1, 0, (0, 1), peer=1)
    stage = Graph(OpTable.of([Op("c10d::send")]), world=2, collectives=[send])
    with pytest.raises(ForetraceError, match="rank 0 sends to single ranks"):
        at_world(Job([stage]), 4)


def test_dots_go_on_as_the_numbers_before_them() -> None:
    assert parse_worlds("8,16,24,...,48") == [8, 16, 24, 32, 40, 48]
    assert parse_worlds("1,2,4,…,20") == [1, 2, 4, 8, 16, 20]


def test_notes_tell_which_groups_grow_and_that_no_other_rank_is_looked_at() -> None:
    small = rank(8, tuple(range(8)), (0, 1))
    notes = at_world(Job([small.graphs[0], *rank(8).graphs]), 16).notes
    assert any("group 0 goes from 8 to 16 ranks" in note and "group 1" not in note for note in notes)
    assert any("what rank 0 did: how much later others came is not in the step" in note for note in notes)


def test_a_step_that_exchanges_nothing_is_told_how_to() -> None:
    assert any("--parallel data=N" in note for note in at_world(rank(1), 8).notes)
    assert not any("--parallel" in note for note in [*at_world(rank(1), 1).notes, *at_world(rank(2, (0, 1)), 8).notes])


def test_a_curve_tells_once_what_differs_in_numbers_alone() -> None:
    said = [[f"fabric a100-8x is carried over to {n} nodes", f"{n} ranks do the same"] for n in (2, 4)]
    curve = scaling_curve([StepReport(world=n, step_ms=1.0, notes=notes) for n, notes in zip((16, 32), said)])
    assert curve.notes == ["fabric a100-8x is carried over to 4 nodes"]


def test_a_curve_tells_of_groups_once() -> None:
    notes = {n: at_world(rank(8, tuple(range(8))), n).notes for n in (16, 32)}
    curve = scaling_curve([StepReport(world=n, step_ms=1.0, notes=said) for n, said in notes.items()])
    assert [note for note in curve.notes if "goes from" in note] == [note for note in notes[32] if "goes from" in note]


def test_a_job_of_the_size_it_has_is_not_scaled() -> None:
    assert at_world(rank(8, tuple(range(8))), 8).notes == []


def test_shards_that_a_trace_does_not_tell_enough_of_stay_and_that_is_said() -> None:
    scatter = Collective("reduce_scatter", "0", 1024, -1, 0, (0, 1))
    step = Graph(OpTable.of([Op("fsdp::chunk_cat")]), world=2, collectives=[scatter])
    job = at_world_resharded(Job([step]), 8)
    assert job.graphs[0].collectives[0].ranks == tuple(range(8))
    assert any(note.startswith("shards stay as large as they were") for note in job.notes)
