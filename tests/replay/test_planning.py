"""From a graph to the plan of its benchmark."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.graph import Content, ForetraceError, Graph, KernelTable, Op, OpTable, Storage, Tensor, Timings
from foretrace.graph.tables import Names
from foretrace.replay.generate.choices import Selection
from foretrace.replay.generate.plan import Input, Memory, Name, PlanCall
from foretrace.replay.generate.planning import WAIT, Variables, plan_of, with_waits


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
    graph = Graph(OpTable.of(ops()), unprofiled=Timings((10.0, 15.0, 21.0, 11.0, 18.0)))
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
    assert "0.010 ms of device time belong to no call: that part is not replayed" in plan.notes
    assert plan_of(graph, Selection(phase="forward")).unowned_us == 0.0


def test_what_a_mask_picks_out_is_sized_by_data() -> None:
    places = [tensor(1, dtype="bool"), tensor(1, dtype="int64")]
    picked = [Op("aten::index", (tensor(0), [place]), outputs=(tensor(2),), overload="Tensor") for place in places]
    assert [plan_of(Graph(OpTable.of([op]))).calls[0].sized_by_data for op in picked] == [True, False]


def view(number: int, storage: int, offset: int = 0, size: int = 4) -> Tensor:
    return Tensor((size,), "float32", "cpu", (1,), offset=offset, id=number, storage=storage)


def test_what_nobody_made_was_there_before() -> None:
    variables = Variables({0: Storage(0, 64, "cpu", -1, -1)}, {})
    name, maker = variables.read(view(0, 0))
    assert maker is None and [given.name for given in variables.inputs] == [name]
    assert variables.memories[0].nbytes == 64


def test_the_same_view_under_another_number_is_the_same_variable() -> None:
    variables = Variables({}, {})
    made = variables.make(view(1, 1))
    assert variables.read(view(7, 1)) == (made, None) and variables.inputs == []


def test_another_view_of_what_was_made_is_taken_of_it() -> None:
    variables = Variables({}, {})
    base = variables.make(view(1, 1, size=8))
    name, maker = variables.read(view(2, 1, offset=4))
    assert maker is not None and maker.name == "aten::as_strided" and maker.args == (base, [4], [1], 4)
    assert maker.results == (name,) and variables.inputs == []


def test_a_result_in_place_makes_no_variable() -> None:
    variables = Variables({}, {})
    given, _ = variables.read(view(0, 0))
    assert variables.make(view(0, 0)) is None and variables.read(view(0, 0))[0] == given


def test_a_storage_that_dies_takes_its_variables_with_it() -> None:
    variables = Variables({}, {})
    first, second = variables.make(view(1, 1)), variables.make(view(2, 1, offset=4))
    assert variables.free([1]) == [first, second]
    name, _ = variables.read(view(1, 1))
    assert name not in (first, second)  # the number is another tensor's by now


def test_a_resized_storage_keeps_its_variables() -> None:
    variables = Variables({}, {})
    made = variables.make(view(1, 1))
    assert variables.resized(1, 9) == made and variables.read(view(1, 9))[0] == made


def test_what_gets_another_storage_does_not_end_with_the_one_it_had() -> None:
    variables = Variables({}, {})
    made = variables.make(view(1, 1))
    assert variables.make(view(1, 2)) is None and variables.free([1]) == []
    assert variables.read(view(1, 2)) == (made, None) and variables.free([2]) == [made]


def test_a_part_of_a_sparse_input_that_a_call_makes_gets_a_twin() -> None:
    ids, rows = Tensor((1, 4), "int64", "cpu", (4, 1), id=1, storage=1), view(2, 2)
    gradient = Tensor((9, 4), "float32", "cpu", id=3, layout="sparse_coo")
    variables = Variables({}, {3: (ids, rows)})
    made = variables.make(ids)
    variables.read(gradient)
    parts = next(given.parts for given in variables.inputs if given.parts)
    names = {given.name: given for given in variables.inputs}
    assert made not in parts and all(part in names for part in parts)
    assert len({given.memory.name for given in names.values() if given.memory}) == 2


def test_memory_that_the_step_gives_its_size_has_the_one_it_begins_with() -> None:
    before, after = Storage(0, 0, "cpu", -1, 3), Storage(1, 64, "cpu", 3, -1)
    variables = Variables({0: before, 1: after}, {})
    variables.resized(0, 1)
    weight, _ = variables.read(view(7, 1, size=16))
    assert variables.memories[1].nbytes == 0
    assert [given.memory is variables.memories[1] for given in variables.inputs] == [True, True]
    assert weight == variables.inputs[1].name


GIVEN = Tensor((4,), "float32", "cpu", (1,), id=0, storage=7)
T0, T1, W0, W1 = Name("t0"), Name("t1"), Name("w0"), Name("w1")
INPUT = Input(T0, GIVEN, Memory(Name("m0"), 16, "cpu"), Content("unknown"))


def reduced(number: int, work: Name) -> PlanCall:
    return PlanCall(number, "c10d::allreduce_", args=([T0],), results=([None], work))


def names(calls: list[PlanCall]) -> list[str]:
    return [call.name.partition("::")[2] for call in calls]


def test_a_work_is_waited_for_where_the_original_waited() -> None:
    calls = [
        reduced(0, W0),
        PlanCall(1, "aten::ones"),
        PlanCall(2, WAIT, args=(W0,)),
        PlanCall(3, "aten::relu", args=(T0,)),
    ]
    settled = with_waits(calls, [INPUT])
    assert names(settled) == ["allreduce_", "ones", "wait", "relu"]
    assert settled[-1].frees == (W0,), "a work that is done keeps no memory"


def test_a_work_that_nobody_was_seen_waiting_for_is_done_before_its_result_is_touched() -> None:
    view = PlanCall(1, "aten::view", args=(T0,), results=(T1,), made={T1: GIVEN})
    calls = [view, reduced(2, W0), PlanCall(3, "aten::ones"), PlanCall(4, "aten::relu", args=(T1,))]
    assert names(with_waits(calls, [INPUT])) == ["view", "allreduce_", "ones", "wait", "relu"]


def test_a_work_that_nobody_needs_is_waited_for_at_the_end() -> None:
    assert names(with_waits([reduced(0, W0), PlanCall(1, "aten::ones")], [INPUT])) == ["allreduce_", "ones", "wait"]


def test_a_wait_for_a_work_of_another_part_of_the_step_is_left_out() -> None:
    calls = [PlanCall(0, WAIT, args=(W1,), frees=(T1,)), PlanCall(1, "aten::ones")]
    settled = with_waits(calls, [INPUT])
    assert names(settled) == ["ones"] and settled[0].frees == (T1,)
