"""What got slower."""

import json

import numpy as np
import pytest
from pytest import approx

from foretrace.analysis.compare import compare_steps
from foretrace.analysis.measure import measure_step
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job, Names, Op, OpTable
from foretrace.graph.tables import ANNOTATION, ActivityTable
from tests.analysis.builders import Call, Runtime, all_reduce, job, launch, rank


def step(mm_us: float, *others: Call | Runtime) -> Graph:
    return rank(Call("aten::mm", 0, 10), launch(2, 4, (5, 5 + mm_us), name="sgemm"), *others)


def test_the_largest_slow_down_comes_first() -> None:
    before = measure_step(job(step(1000, Call("aten::relu", 20, 90))))
    after = measure_step(job(step(3000, Call("aten::relu", 20, 30))))
    found = compare_steps(before, after)
    assert [row.name for row in found.by_op] == ["aten::mm", "aten::relu"]
    assert found.by_op[0].device_ms == (1.0, 3.0)
    assert round(found.by_op[1].change_ms, 6) == -0.06


def test_ops_that_came_and_went_are_named() -> None:
    before, after = (
        measure_step(job(step(10, Call("aten::relu", 20, 30)))),
        measure_step(job(step(10, Call("aten::gelu", 20, 30)))),
    )
    found = compare_steps(before, after)
    assert (found.new, found.gone) == (["aten::gelu"], ["aten::relu"])


def test_families_and_phases_are_compared_too() -> None:
    found = compare_steps(measure_step(job(step(1000))), measure_step(job(step(1500))))
    assert found.by_family[0].name == "matrix product" and found.by_family[0].change_ms == 0.5
    assert found.by_phase[0].name == "forward"


def test_a_difference_is_plain_data() -> None:
    json.dumps(compare_steps(measure_step(job(step(1))), measure_step(job(step(2)))).to_dict(), allow_nan=False)


def two_ranks(late_us: float, transfer_us: float, hidden: bool) -> Job:
    """The second rank comes later to an all_reduce, by so much; where ``hidden``, a product runs beside all of it."""
    ranks = []
    for late in (0.0, late_us):
        start, end = 100 + late, 100 + late_us + transfer_us
        events: list[Call | Runtime] = [
            Call("aten::mm", 0, 10),
            launch(2, 4, (5, end if hidden else 90 + late), name="sgemm"),
        ]
        ranks.append(rank(*events, Call("c10d::allreduce_", 20, 30), all_reduce(22, 24, (start, end), nbytes=4096)))
    return job(*ranks)


def test_waits_are_told_from_transfers_and_hidden_from_exposed_communication() -> None:
    before, after = measure_step(two_ranks(400, 300, False)), measure_step(two_ranks(100, 300, False))
    found = compare_steps(before, after)
    changes = {row.what: row.ms for row in found.communication}
    assert changes["exposed transfer"] == approx((0.3, 0.3)) and changes["hidden"] == (0, 0)
    assert changes["exposed wait"] == approx((0.2, 0.05))  # the mean of a rank that waits and one that does not
    (row,) = found.collectives
    assert (row.kind, row.count, row.nbytes) == ("all_reduce", (1, 1), (4096, 4096))
    assert row.transfer_ms == approx((0.3, 0.3)) and row.wait_ms == approx((0.2, 0.05))
    assert row.change_ms == approx(-0.15)

    behind = {row.what: row.ms for row in compare_steps(before, measure_step(two_ranks(400, 300, True))).communication}
    assert behind["hidden"] == approx((0.0, 0.5)) and behind["exposed wait"][1] == behind["exposed transfer"][1] == 0


def test_of_one_rank_alone_nobody_knows_what_of_its_communication_is_waiting() -> None:
    alone = measure_step(job(two_ranks(400, 300, False).graphs[0]))
    changes = {row.what: row.ms for row in compare_steps(alone, alone).communication}
    assert changes == {"exposed wait and transfer": approx((0.7, 0.7)), "hidden": (0, 0)}


def test_where_the_waits_of_some_rank_are_unknown_wait_and_transfer_are_one() -> None:
    known = two_ranks(400, 300, False)
    late = two_ranks(400, 300, False)
    late.graphs[1].collectives[0].kind, late.graphs[1].collectives[0].nbytes = "all_gather", 64
    changes = {row.what for row in compare_steps(measure_step(known), measure_step(late)).communication}
    assert "exposed wait and transfer" in changes


def test_a_step_without_times_is_not_compared() -> None:
    untimed = measure_step(Job([Graph(OpTable.of([Op("aten::mm")]))], source="et.json"))
    with pytest.raises(ForetraceError, match=r"et\.json has no times"):
        compare_steps(measure_step(job(step(10))), untimed)


def test_what_makes_a_step_doubtful_is_said_with_its_source() -> None:
    unseen = measure_step(Job([rank(Call("aten::mm", 0, 50), Runtime(10, 20))], source="cpu.json"))
    found = compare_steps(measure_step(job(step(10))), unseen)
    assert found.cautions == ["cpu.json: its 1 launches have no kernels in the trace"]
    assert found.device_active_ms == (0.01, None)


def test_what_the_device_does_is_not_compared_with_a_step_of_which_that_is_unknown() -> None:
    unseen = measure_step(Job([rank(Call("aten::mm", 0, 50), Runtime(10, 20))], source="cpu.json"))
    for found in (
        compare_steps(unseen, measure_step(job(step(2000)))),
        compare_steps(measure_step(job(step(9))), unseen),
    ):
        told = found.to_dict()
        assert [row["device_ms"] for row in (*told["by_op"], *told["by_family"])] == [[None, None]] * 2
        assert abs(found.by_op[0].change_ms) == approx(0.04), "host time alone"
        assert not (found.idle or found.critical_path or found.communication or found.collectives)
        json.dumps(told, allow_nan=False)


def test_idle_time_is_compared_by_its_cause() -> None:
    def loading(us: float) -> Graph:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        graph = step(10, Call("aten::relu", 30 + us, 50 + us), launch(40 + us, 42 + us, (45 + us, 50 + us)))
        graph.activities = ActivityTable(
            np.zeros(1, np.int32), np.array([20.0]), np.array([20 + us]), np.ones(1, np.int32),
            np.full(1, ANNOTATION, np.int8), Names([name]),
        )  # fmt: skip
        return graph

    found = compare_steps(measure_step(job(loading(5000))), measure_step(job(loading(1000))))
    change = {row.what: row.change_ms for row in found.idle}
    assert change["data loading"] == approx(-4.0)
