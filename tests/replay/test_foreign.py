"""Others' traces: what they lose is filled in, and said."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.api import replay_step
from foretrace.graph import Collective, Constant, ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.graph.execution_traces import CompletedTrace, lacks_overloads
from foretrace.replay.generate.choices import Choices
from foretrace.replay.generate.planning import plan_of
from foretrace.replay.running import How

pytestmark = pytest.mark.usefixtures("warmed")

QUICK = How(iterations=1, pace=False)


def tensor(number: int, storage: int, shape: tuple[int, ...] = (4,), dtype: str = "float32") -> Tensor:
    return Tensor(shape, dtype, "cpu", id=number, storage=storage)


def test_a_number_that_is_used_again_stands_for_another_tensor() -> None:
    first = Op("aten::relu", (tensor(1, 1),), outputs=(tensor(2, 2),))
    again = Op("aten::relu", (tensor(2, 2),), outputs=(tensor(1, 3),))
    plan = plan_of(Graph(OpTable.of([first, again])))
    assert len(plan.inputs) == 1
    assert [call.results for call in plan.calls] == [("t1",), ("t2",)]
    assert plan.calls[1].args == ("t1",)


def test_a_collective_gets_the_arguments_of_todays_pytorch_and_a_group() -> None:
    opaque = Constant("group", ""), Constant("reduce_op", "")
    old = Op("c10d::allreduce_", ([tensor(1, 1)], *opaque, -1), outputs=([tensor(1, 1)], Constant("object", "Object")))
    graph = Graph(OpTable.of([old]), world=4, collectives=[Collective("all_reduce", "group 0", 16, -1, 0)])
    tidied = CompletedTrace(graph, [0])
    (op,) = tidied.ops
    assert op.overload == "default" and op.args[1:] == (
        Constant("group", "group 0"),
        Constant("reduce_op", "sum"),
        None,
    )
    assert op.outputs[-1] == Constant("work", "0") and tidied.groups == {"group 0": (0, 1, 2, 3)}
    assert any("reduce op" in note for note in tidied.notes)


def test_a_recording_is_not_foreign() -> None:
    assert not lacks_overloads([Op("aten::relu", overload="default"), Op("aten::add", overload="Tensor")])


def test_ids_stay_inside_their_table_after_arithmetic() -> None:
    ids, table = tensor(1, 1, (8,), "int64"), tensor(2, 2, (50, 4))
    shifted = tensor(3, 3, (8,), "int64")
    ops = [Op("aten::sub", (ids, 3), outputs=(shifted,)), Op("aten::embedding", (table, shifted))]
    contents = {entry.tensor.storage: entry.content for entry in plan_of(Graph(OpTable.of(ops))).inputs}
    assert contents[1].kind == "ids" and contents[1].facts["high"] == 49


@pytest.mark.slow
def test_a_trace_of_an_h200_replays_on_the_cpu(shared: Path) -> None:
    replayed = replay_step(shared / "traces" / "h200" / "dlrm_default_b512", how=How(1, "cpu", pace=False))
    assert replayed.coverage == {"calls": 1.0, "host": 1.0, "device": 1.0}
    assert replayed.original["launches"] == 116


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_published_job_replays_on_fewer_ranks(ranks: int, shared: Path) -> None:
    replayed = replay_step(shared / "public" / "dlrm_8xV100", Choices(ranks=ranks), How(1, "cpu", pace=False))
    assert replayed.world == ranks and replayed.failures == []
    missing = {name for name, (called, there) in replayed.ops.items() if called < there}
    assert missing and {name.partition("::")[0] for name in missing} == {"fbgemm"}, "no package brings these"
    assert replayed.ops["c10d::alltoall_base_"] == [5 * ranks, 5 * ranks]
    assert 0.98 < (replayed.coverage["calls"] or 0) < 1.0
    assert any("reduce op" in note for note in replayed.notes)


def test_a_profiler_s_trace_alone_is_refused() -> None:
    seen = Op("aten::relu", (Tensor((4,), "float32"),))
    with pytest.raises(ForetraceError, match="also has the execution trace"):
        plan_of(Graph(OpTable.of([seen]), source="kineto.json.gz"))
