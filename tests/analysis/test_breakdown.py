"""Time by op, family, phase and module; active, idle and hidden device time."""

from typing import Any

import numpy as np
import pytest

from foretrace.analysis.breakdown import (
    EARLIER,
    NO_OP,
    active_and_idle,
    by_family,
    by_module,
    by_op,
    by_phase,
    communication,
    own_time,
    queue_depth,
)
from foretrace.analysis.collectives import collective_times
from foretrace.analysis.host_time import host_segments
from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import QueueDepth, TimeRow
from foretrace.graph import Graph
from foretrace.graph.tables import ANNOTATION, NODE
from tests.analysis.builders import Call, Orphan, all_reduce, job, launch, rank, sync


def named(rows: list[TimeRow], name: str) -> TimeRow:
    (row,) = [row for row in rows if row.name == name]
    return row


def summed(by: Any, *graphs: Graph) -> list[TimeRow]:
    rows: list[TimeRow] = by(list(graphs), [host_segments(graph) for graph in graphs])
    return rows


def linear() -> Graph:
    inner = Call("aten::addmm", 2, 8, module="net.0")
    return rank(Call("aten::linear", 0, 10, module="net.0"), inner, launch(4, 6, (7, 1007), name="sgemm"))


def test_device_time_goes_to_the_innermost_op_and_host_time_is_counted_once() -> None:
    rows = summed(by_op, linear())
    assert (named(rows, "aten::addmm").device_ms, named(rows, "aten::linear").device_ms) == (1.0, 0.0)
    assert (named(rows, "aten::addmm").host_ms, named(rows, "aten::linear").host_ms) == (0.006, 0.004)


def test_several_ranks_are_averaged() -> None:
    row = named(summed(by_op, linear(), linear()), "aten::addmm")
    assert (row.device_ms, row.count, row.share) == (1.0, 1, 1.0)


def test_kernels_of_a_trace_without_launches_were_not_launched_before_it() -> None:
    rows = summed(by_op, rank(Orphan(0, 100), Orphan(200, 300)))
    assert [row.name for row in rows] == [NO_OP]


def test_kernels_without_an_op_are_not_lost() -> None:
    rows = summed(by_op, rank(Orphan(0, 100), launch(200, 201, (202, 252))))
    assert named(rows, EARLIER).device_ms == 0.1
    assert named(rows, NO_OP).device_ms == 0.05


def test_a_node_that_launches_by_itself_owns_its_kernels_and_its_host_time_is_no_calls() -> None:
    row = named(
        summed(by_op, rank(Call("LayerNormFunction", 0, 10, kind=NODE), launch(2, 4, (5, 25)))), "LayerNormFunction"
    )
    assert (row.device_ms, row.host_ms, row.count) == (0.02, 0.0, 1)


def test_a_kernel_credited_to_a_call_that_launches_nothing_is_shown_by_its_own_name() -> None:
    quiet, loud = Call("aten::empty", 0, 5), Call("aten::empty", 5, 20)
    rows = summed(by_op, rank(quiet, loud, launch(10, 12, (30, 40), name="fused_softmax")))
    assert (named(rows, "fused_softmax").device_ms, named(rows, "fused_softmax").count) == (0.01, 1)
    assert (named(rows, "aten::empty").device_ms, named(rows, "aten::empty").count) == (0.0, 1)


def test_the_largest_comes_first() -> None:
    graph = rank(*(Call(n, t, t + 5) for n, t in (("a", 0), ("b", 10))), launch(1, 2, (3, 4)), launch(11, 12, (13, 90)))
    assert [row.name for row in summed(by_op, graph)] == ["b", "a"]


def test_a_family_has_the_time_of_its_kernels_and_their_launches() -> None:
    row = named(summed(by_family, linear()), "matrix product")
    assert (row.device_ms, row.host_ms, row.count) == (1.0, 0.002, 1)


def test_without_kernels_families_are_those_of_the_ops() -> None:
    rows = summed(by_family, rank(Call("aten::mm", 0, 30), Call("aten::relu", 30, 40)))
    assert [(row.name, row.share) for row in rows] == [("matrix product", 0.75), ("element-wise", 0.25)]


def test_time_before_a_call_belongs_to_the_phase_of_that_call() -> None:
    graph = rank(Call("aten::mm", 0, 10), Call("aten::add_", 30, 40, phase="optimizer"))
    rows = summed(by_phase, graph)
    assert (named(rows, "forward").host_ms, named(rows, "optimizer").host_ms) == (0.01, 0.03)


def test_time_is_found_by_module() -> None:
    row = named(summed(by_module, linear()), "net.0")
    assert (row.device_ms, row.host_ms, row.count) == (1.0, 0.01, 2)


@pytest.mark.parametrize("by", [by_op, by_phase, by_module])
def test_all_host_time_in_calls_is_found_again(by: Any) -> None:
    rows = summed(by, linear())
    assert sum(row.host_ms for row in rows) == pytest.approx(0.01)


def test_the_own_time_of_an_op_leaves_out_the_ops_inside_it() -> None:
    assert own_time(linear()).tolist() == [4.0, 6.0]


def test_ops_that_nobody_timed_are_counted() -> None:
    graph = linear()
    graph.ops.start[:] = graph.ops.end[:] = np.nan
    assert named(summed(by_op, graph), "aten::linear").count == 1


def test_kernels_that_run_at_once_are_active_once() -> None:
    graph = rank(launch(0, 1, (10, 30)), launch(1, 2, (20, 50), stream=9), launch(3, 4, (70, 80)))
    assert active_and_idle(graph) == (50.0, 20.0)


def test_a_rank_without_a_device_is_neither_active_nor_idle() -> None:
    assert active_and_idle(rank()) == (0.0, 0.0)
    assert queue_depth(rank()) == QueueDepth(0.0, 0)


def test_the_queue_holds_what_is_launched_and_not_done() -> None:
    graph = rank(*(launch(t, t + 1, (10 + 10 * t, 20 + 10 * t)) for t in range(4)))
    depth = queue_depth(graph)
    assert depth.max == 4
    assert depth.mean == pytest.approx(((20 - 1) + (30 - 2) + (40 - 3) + (50 - 4)) / (50 - 1))


def test_communication_behind_compute_is_hidden_and_the_rest_exposed() -> None:
    graph = rank(all_reduce(0, 1, (10, 50)), launch(2, 3, (0, 30)))
    found = communication(graph, 0, collective_times([graph])[0])
    assert (found.communication_ms, found.hidden_ms, found.exposed_ms) == pytest.approx((0.04, 0.02, 0.02))


def test_of_the_exposed_what_waits_for_others_is_told_apart() -> None:
    early, late = rank(all_reduce(0, 1, (10, 50)), launch(2, 3, (0, 15))), rank(all_reduce(0, 1, (40, 50)))
    met, _ = collective_times(job(early, late).graphs)
    assert communication(early, 0, met).exposed_wait_ms == pytest.approx(0.025)
    assert communication(late, 1, met).exposed_wait_ms == 0.0


def test_kernels_that_a_step_mark_alone_is_around_belong_to_no_op() -> None:
    graph = rank(
        Call("ProfilerStep#4", 0, 100, kind=ANNOTATION), launch(2, 4, (5, 45), name="triton_a"),
        Call("aten::mm", 10, 20), launch(12, 14, (50, 60), name="gemm"),
    )  # fmt: skip
    rows = {row.name: row.device_ms for row in measure_step(job(graph)).by_op}
    assert rows["(no op)"] == pytest.approx(0.04) and "ProfilerStep#4" not in rows


def test_host_time_of_an_op_is_without_its_waits_for_the_device() -> None:
    graph = rank(Call("aten::item", 0, 100), launch(5, 10, (20, 90)), sync(12, 92))
    (row,) = by_op([graph], [host_segments(graph)])
    assert row.host_ms == pytest.approx(0.02) and row.device_ms == pytest.approx(0.07)
