"""What each rank of a job waits for."""

from typing import Any

import numpy as np
import pytest

from foretrace.analysis.breakdown import device_span
from foretrace.analysis.collectives import CollectiveTimes, collective_times, pair_waits, wait_ms
from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import PairWait, StepReport
from foretrace.graph import Graph
from foretrace.graph.graph import cautions
from tests.analysis.builders import Call, Runtime, all_reduce, job, launch, rank


def met(group: str, *times: tuple[float, float]) -> CollectiveTimes:
    """One collective of two ranks, that come at these times and are done at those."""
    start, end = np.array([times]).transpose(2, 0, 1)
    return CollectiveTimes(group, [0, 1], ["all_reduce"], np.array([1024]), np.zeros((1, 2), np.int64), start, end)


def test_a_rank_that_waits_in_two_collectives_at_a_time_waits_once() -> None:
    graphs = [rank(number=0, world=2), rank(number=1, world=2)]
    both = [met("one", (0.0, 120.0), (100.0, 120.0)), met("other", (50.0, 170.0), (150.0, 170.0))]
    assert wait_ms(graphs, both) == {0: pytest.approx(0.15), 1: 0.0}
    assert pair_waits(graphs, both) == [PairWait(rank=0, waits_for=1, ms=pytest.approx(0.15), count=2)]


def test_what_was_measured_is_told_in_the_same_words() -> None:
    early = rank(all_reduce(0, 1, (10, 50)), launch(2, 3, (0, 15)), world=2)
    both = job(early, rank(all_reduce(0, 1, (40, 50)), number=1, world=2))
    seen = measure_step(both)
    assert seen.by_rank("wait_ms") == {0: pytest.approx(0.03), 1: 0.0}
    assert seen.device_span_ms == device_span(both.graphs) == pytest.approx(0.05)


def meets(start: float, end: float, **more: Any) -> Graph:
    """A rank of a group whose all_reduce runs from here to there, after a product of 20 us."""
    return rank(
        Call("aten::mm", 0, 8), launch(2, 4, (5, 25), name="sgemm"), Call("c10d::allreduce_", 9, 13),
        all_reduce(10, 12, (start, end), **more),
    )  # fmt: skip


def unrecorded() -> Graph:
    """A rank that launches work of which the trace holds nothing."""
    return rank(Call("aten::mm", 0, 8), Runtime(2, 4), Call("c10d::allreduce_", 9, 13), Runtime(10, 12))


def three(third: Graph) -> StepReport:
    everyone = (0, 1, 2)
    return measure_step(job(meets(30, 90, ranks=everyone), meets(70, 90, ranks=everyone), third))


def test_the_waits_of_a_rank_of_whose_device_nothing_is_recorded_are_unknown() -> None:
    assert three(unrecorded()).by_rank("wait_ms") == {0: pytest.approx(0.04), 1: 0.0, 2: None}


def test_figures_of_devices_are_means_over_the_ranks_that_have_one() -> None:
    report, pair = three(unrecorded()), measure_step(job(meets(30, 90), meets(70, 90)))
    assert report.device_active_ms == pytest.approx(0.06) == pair.device_active_ms
    assert report.exposed_communication_ms == pair.exposed_communication_ms == pytest.approx(0.04)
    assert report.queue_depth == pair.queue_depth
    for table in ("by_op", "by_family", "by_phase"):
        got, expected = (
            {row.name: row.device_ms for row in getattr(each, table) if row.device_ms} for each in (report, pair)
        )
        assert got == pytest.approx(expected), table
    assert {row.name for row in report.by_family} == {row.name for row in pair.by_family}, "ops stand for no kernels"


def test_ranks_of_whose_devices_nothing_is_recorded_are_a_caution_where_they_launch() -> None:
    (note,) = cautions(three(unrecorded()).notes)
    assert note.endswith("no launch of rank 2 has a kernel in the trace; devices are those of the others")
    report = three(rank(Call("aten::mm", 0, 8)))
    assert not cautions(report.notes)
    assert "no device work of rank 2 is recorded; devices are those of the others" in report.notes


def test_of_many_ranks_a_note_names_the_first() -> None:
    report = measure_step(job(meets(30, 90), *(unrecorded() for _ in range(20))))
    assert any("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 12 more has" in note for note in report.notes)


def test_a_rank_that_meets_others_and_matches_none_of_them_has_waits_that_nobody_knows() -> None:
    """The others show an all_reduce with it; of it, only one that overlaps with none of theirs is left."""
    both = (0, 1)
    graphs = [meets(30, 90, ranks=both), meets(9000, 9100, ranks=both, kind="all_gather")]
    found, (note,) = collective_times(job(*graphs).graphs)
    assert found == [] and "those in all traces are matched" in note
    report = measure_step(job(*graphs))
    assert report.by_rank("wait_ms") == {0: None, 1: None} and report.collectives == []
    assert [one.communication.exposed_wait_ms for one in report.ranks] == [None, None]


def test_a_rank_that_others_meet_and_that_shows_no_collective_has_unknown_waits() -> None:
    report = three(rank(Call("aten::mm", 0, 8), launch(2, 4, (5, 25))))
    assert report.by_rank("wait_ms") == {0: pytest.approx(0.04), 1: 0.0, 2: None}


def test_a_rank_that_nobody_meets_waits_for_nobody() -> None:
    both = (0, 1)
    lonely = rank(Call("aten::mm", 0, 8), launch(2, 4, (5, 25)))
    report = measure_step(job(meets(30, 90, ranks=both), meets(70, 90, ranks=both), lonely))
    assert report.by_rank("wait_ms") == {0: pytest.approx(0.04), 1: 0.0, 2: 0.0}


def test_a_group_of_one_rank_is_not_said_to_lack_the_others() -> None:
    alone = meets(30, 90, ranks=(0,))
    alone.world = 8
    report = measure_step(alone)
    assert report.by_rank("wait_ms") == {0: 0.0} and [row.wait_ms for row in report.collectives] == [0.0]
    assert not any("no other member" in note for note in report.notes)
