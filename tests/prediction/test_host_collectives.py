"""Collectives that threads of the host do."""

from typing import Any

import numpy as np
import pytest

from foretrace.analysis.dependencies import with_host_collectives_as_kernels, without_host_collective_kernels
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.graph import Collective, Constant, Graph, Job, Op, OpTable, Tensor
from foretrace.graph.tables import ANNOTATION
from foretrace.platform.fabric import Curve, Fabric
from foretrace.prediction.predict import predict_on_own_machine, predict_on_platform
from tests.prediction.by_hand import device

TAKES = 100.0
MAIN, GLOO = 1, 2


@pytest.fixture
def fabric() -> Fabric:
    return Fabric("gloo", (Curve("all_reduce", 2, 1, TAKES, 1e6, 1.0, ((64.0, 1.0),), 0.05),), "made up")


def rank(number: int, late: float = 0.0, waits: str = "wait") -> Graph:
    """A product, an all_reduce that gloo does in 200 us, a product beside it, and one that needs its result.

    The second rank is late by so much; the first one waits for it.
    """
    data = Tensor((64,), "float32", "cpu", id=0, storage=0)
    other = Tensor((64,), "float32", "cpu", id=1, storage=1)
    at = 100.0 + (late if number else 0.0)
    done = 100.0 + late + 200.0
    work = Constant("work", "0")
    ops = [
        Op("aten::mm", (other,), start_us=0.0, end_us=at - 5, thread=MAIN),
        Op("c10d::allreduce_", ([data],), outputs=([data], work), start_us=at, end_us=at + 4, thread=MAIN),
        Op("gloo:all_reduce", start_us=at + 5, end_us=done, thread=GLOO),
        Op("aten::relu", (other,), start_us=at + 10, end_us=at + 60, thread=MAIN),
        Op("aten::add", (data if waits == "touch" else other,), start_us=done + 10, end_us=done + 40, thread=MAIN),
    ]
    if waits == "wait":
        ops.insert(4, Op("c10d::wait", (work,), start_us=at + 60, end_us=at + 60, thread=MAIN))
    collective = Collective("all_reduce", "0", 256, -1, 2, (0, 1))
    graph = Graph(OpTable.of(ops), rank=number, world=2, collectives=[collective])
    graph.ops.kind[2] = ANNOTATION
    return graph


@pytest.mark.parametrize("waits", ["wait", "touch"])
def test_only_who_waits_is_held_up_by_a_collective_of_the_host(fabric: Fabric, waits: str) -> None:
    forecast = predict_on_own_machine(Job([rank(0, waits=waits), rank(1, waits=waits)]), fabric)
    # Asked for at 104, 1 us later it goes; the result is there at 205, 10 us later the last call takes 30.
    assert forecast.step_ms == pytest.approx((105 + TAKES + 10 + 30) / 1e3, rel=0.01)
    assert not forecast.kernels and forecast.device_span_ms == 0.0


def test_what_calls_do_beside_a_collective_of_the_host_hides_it_and_the_rest_is_exposed(fabric: Fabric) -> None:
    forecast = predict_on_own_machine(Job([rank(0), rank(1)]), fabric)
    assert forecast.hidden_communication_ms == pytest.approx(0.05, rel=0.01)  # relu
    assert forecast.exposed_communication_ms == pytest.approx((TAKES - 50) / 1e3, rel=0.01)
    assert [row.bubble_ms for row in forecast.ranks] == [0.0, 0.0]


def test_a_rank_waits_for_the_one_that_asks_later(fabric: Fabric) -> None:
    forecast = predict_on_own_machine(Job([rank(0, late=300.0), rank(1, late=300.0)]), fabric)
    assert forecast.by_rank("wait_ms") == {0: pytest.approx(0.3, rel=0.01), 1: pytest.approx(0.0, abs=1e-6)}


def test_what_profiling_added_is_taken_off_the_host(fabric: Fabric) -> None:
    graphs = [rank(0), rank(1)]
    for graph in graphs:
        graph.profiling_overhead = 2.0
    forecast = predict_on_own_machine(Job(graphs), fabric)
    assert forecast.step_ms == pytest.approx((105 / 2 + TAKES + 40 / 2) / 1e3, rel=0.02)
    assert any("scaled to those of unprofiled steps" in note for note in forecast.notes)


def test_lanes_of_the_host_come_and_go() -> None:
    graph = rank(0)
    there = with_host_collectives_as_kernels(graph)
    assert len(there.kernels) == 1 and there.collectives[0].kernel == 0 and there.kernels.op[0] == 1
    back = without_host_collective_kernels(there)
    assert not len(back.kernels) and back.collectives[0].kernel == -1
    np.testing.assert_array_equal(back.ops.start, graph.ops.start)


def test_a_collective_of_the_host_belongs_to_the_call_that_asked_for_it() -> None:
    calls = dispatched_calls(rank(0)).calls
    assert calls.ops[calls.collectives[0].op].name == "c10d::allreduce_"


def test_on_a_platform_of_cpus_a_collective_runs_beside_its_host_until_somebody_waits(
    platform: Any, fabric: Fabric
) -> None:
    platform.device = device(kind="cpu")
    platform.fabric = fabric
    forecast = predict_on_platform(Job([rank(0), rank(1)]), platform)
    assert forecast.workings is not None
    ops = forecast.workings.graphs[0].ops
    kernels = forecast.workings.graphs[0].kernels
    collective = kernels.end[forecast.workings.graphs[0].collectives[0].kernel]
    names = [op.name for op in ops]
    assert ops.end[names.index("aten::relu")] < collective
    assert ops.start[names.index("aten::add")] >= collective
