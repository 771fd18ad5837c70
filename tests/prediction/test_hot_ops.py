"""The ops to look at first."""

from dataclasses import replace

import numpy as np

from foretrace.analysis.critical_path import hot_ops
from foretrace.analysis.report import HotOp
from foretrace.graph import Graph, Op, OpTable
from foretrace.prediction.priced_step import OWN_STREAM, PricedStep
from foretrace.prediction.priced_tasks import at_predicted_times
from foretrace.simulation.critical_path import critical_path
from tests.prediction.by_hand import Call, device, run, step


def look_at(calls: Graph, made: PricedStep) -> list[HotOp]:
    tasks, timeline = run(made, device())
    tasks = replace(tasks, rank=np.zeros(len(tasks), np.int32))
    graph, segments = at_predicted_times(calls, made, tasks, timeline)
    return hot_ops(critical_path(tasks, timeline), tasks, timeline, [graph], [segments])


def test_the_op_that_holds_the_path_longest_comes_first() -> None:
    ops = [Op("aten::view"), Op("aten::mm"), Op("aten::mm", phase="backward"), Op("aten::item")]
    made = step(Call(), Call([500.0]), Call([10.0]), Call([5.0], waits=OWN_STREAM))
    rows = look_at(Graph(OpTable.of(ops)), made)
    first = rows[0]
    assert (first.name, first.phase, first.mostly) == ("aten::mm", "other", "device")
    assert first.calls == 1 and first.launches == 1 and first.device_ms == 0.5
    assert sum(row.share for row in rows) <= 1.0001


def test_time_of_a_host_bound_op_is_the_hosts() -> None:
    made = step(*[Call([1.0])] * 5)
    (row,) = look_at(Graph(OpTable.of([Op("aten::add")] * 5)), made)
    assert row.mostly == "host" and row.calls == 5 and row.launches == 5


def test_at_most_ten_are_named() -> None:
    made = step(*[Call()] * 30)
    assert len(look_at(Graph(OpTable.of([Op(f"aten::op{n}") for n in range(30)])), made)) == 10
