"""Compiled programs and CUDA graphs of a step, as the host pays for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.api import predict
from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.graph.op import COMPILED_REGION, GRAPH_LAUNCH
from foretrace.platform.host import CompiledPrograms
from foretrace.platform.platform import Platform
from foretrace.prediction.predict import predict_on_platform

X, Y = (Tensor((64, 64), "float32", "cuda:0", (64, 1), id=n, storage=n) for n in range(2))
KERNEL = Op("triton_poi_fused_relu_0", (X, Y, 4096, 0), outputs=(Y,), phase="forward")
RELU = Op("aten::relu", (X,), outputs=(Y,), overload="default", phase="forward")


def host_ms(*ops: Op) -> float:
    """Of a step that the device is done with at once."""
    return predict(Graph(OpTable.of(list(ops)))).step_ms


def test_generated_kernels_of_a_program_cost_the_host_what_was_calibrated():
    costs = Platform.named("h200").host.compiled
    few, many = (host_ms(Op(COMPILED_REGION, (count, 3)), *[KERNEL] * count) for count in (40, 80))
    assert costs.measured and 1e3 * (many - few) / 40 == pytest.approx(costs.kernel, rel=0.05)


def test_a_program_costs_the_host_to_enter_it_and_more_with_more_arguments():
    few, many = (host_ms(Op(COMPILED_REGION, (1, count)), KERNEL) for count in (1, 1000))
    assert few > host_ms(KERNEL) and many > few + 0.1


def test_a_compiled_backward_costs_the_host_its_own_entry_whatever_its_arguments():
    known = Platform.named("h200")
    kernel = replace(KERNEL, phase="backward")

    def step_ms(backward_us: float, arguments: int) -> float:
        costs = replace(known.host.compiled, backward=backward_us)
        ops = [RELU, Op(COMPILED_REGION, (1, arguments), phase="backward"), kernel]
        return predict_on_platform(
            Graph(OpTable.of(ops)), known.having(host=replace(known.host, compiled=costs))
        ).step_ms

    assert step_ms(300.0, 1) - step_ms(100.0, 1) == pytest.approx(0.2, rel=1e-3)
    assert step_ms(100.0, 1000) == step_ms(100.0, 1)


def test_each_cuda_graph_is_launched_by_itself_and_the_calls_between_stay():
    graph = Op(GRAPH_LAUNCH, (20,))
    apart = host_ms(graph, *[RELU] * 20, *[RELU] * 20, graph, *[RELU] * 20)
    assert host_ms(graph, *[RELU] * 20) < host_ms(*[RELU] * 20) < apart < host_ms(*[RELU] * 60)


def test_the_notes_say_where_the_host_time_of_programs_is_estimated():
    graph = Graph(OpTable.of([Op(COMPILED_REGION, (1, 2)), KERNEL]))
    known = Platform.named("h200")
    guessed = known.having(host=replace(known.host, compiled=CompiledPrograms()))
    for platform, estimated in ((known, False), (guessed, True)):
        notes = predict_on_platform(graph, platform).notes
        assert any("host time of 1 compiled program is estimated" in note for note in notes) == estimated
