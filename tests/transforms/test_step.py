"""Flat steps."""

from __future__ import annotations

from foretrace.graph import Collective, Graph, Op, OpTable, Tensor
from foretrace.transforms.step import flatten


def test_a_collective_that_gloo_does_on_a_thread_of_its_own_stays_with_the_call_that_asks_for_it() -> None:
    room = Tensor((4,), "float32", "cpu", id=0, storage=0)
    ops = OpTable.of([Op("aten::relu", (room,)), Op("c10d::allreduce_", ([room],)), Op("gloo:all_reduce", thread=1)])
    step = Graph(ops, world=2, collectives=[Collective("all_reduce", "0", 16, kernel=-1, op=2, ranks=(0, 1))])
    flat = flatten(step)
    assert [op.name for op in flat.ops] == ["aten::relu", "c10d::allreduce_"]
    assert [collective.op for collective in flat.collectives] == [1]
