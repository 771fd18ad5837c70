"""From a graph to a plan."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.graph import ForetraceError, Graph, KernelTable, Op, OpTable, Tensor, Timings
from foretrace.graph.tables import Names
from foretrace.replay.planning import plan_of
from foretrace.replay.selection import Selection


def tensor(number: int, **facts: object) -> Tensor:
    described = {"shape": (4, 4), "dtype": "float32", "device": "cpu", "stride": (4, 1), **facts}
    return Tensor(**described, id=number, storage=number)  # type: ignore[arg-type]


def ops() -> list[Op]:
    return [
        Op("aten::mm", (tensor(0), tensor(1)), outputs=(tensor(2),), overload="default", phase="forward"),
        Op("aten::mm", (tensor(2), tensor(1)), outputs=(tensor(3),), overload="default", phase="backward", thread=1),
        Op("aten::add_", (tensor(0), tensor(3)), outputs=(tensor(0),), overload="Tensor", phase="optimizer", thread=2),
    ]


def test_inputs_calls_and_threads_are_found() -> None:
    plan = plan_of(Graph(OpTable.of(ops())))
    assert [given.tensor.id for given in plan.inputs] == [0, 1]
    assert [call.name for call in plan.recorded] == ["aten::mm", "aten::mm", "aten::add_"]
    assert plan.threads == 2 and plan.whole  # two of the three threads multiply
    assert plan.calls[2].results == (None,)  # in place


def test_a_part_takes_what_came_before_as_inputs() -> None:
    plan = plan_of(Graph(OpTable.of(ops())), Selection(phase="optimizer"))
    assert not plan.whole and [given.tensor.id for given in plan.inputs] == [0, 3]


def test_a_trace_without_arguments_can_not_be_replayed() -> None:
    with pytest.raises(ForetraceError, match="does not hold its calls' arguments"):
        plan_of(Graph(OpTable.of([Op("aten::mm"), Op("aten::relu")])))


def test_a_busy_host_is_noted() -> None:
    graph = Graph(OpTable.of(ops()), plain=Timings((10.0, 15.0, 21.0, 11.0, 18.0)))
    assert any("busy" in note for note in plan_of(graph).notes)


def test_device_time_of_no_call_is_noted_and_is_not_covered() -> None:
    owned, count = np.array([0, -1], np.int32), 2
    numbers = {word: np.zeros(count, np.int64) for word in ("nbytes", "grid", "block")}
    kernels = KernelTable(
        name=np.zeros(count, np.int32), start=np.array([0.0, 40.0]), end=np.array([30.0, 50.0]), op=owned, call=owned,
        stream=np.zeros(count, np.int32), kind=np.zeros(count, np.int8), names=Names(["k"]), **numbers,
    )  # fmt: skip
    graph = Graph(OpTable.of(ops()), kernels=kernels)
    plan = plan_of(graph)
    assert plan.unowned_us == 10.0 and plan.calls[0].device_us == 30.0
    assert "0.010 ms of device time are of no call: that part is not replayed" in plan.notes
    assert plan_of(graph, Selection(phase="forward")).unowned_us == 0.0


def test_what_a_mask_picks_out_is_sized_by_data() -> None:
    places = [tensor(1, dtype="bool"), tensor(1, dtype="int64")]
    picked = [Op("aten::index", (tensor(0), [place]), outputs=(tensor(2),), overload="Tensor") for place in places]
    assert [plan_of(Graph(OpTable.of([op]))).calls[0].sized_by_data for op in picked] == [True, False]
