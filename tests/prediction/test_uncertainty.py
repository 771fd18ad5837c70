"""The range of a forecast."""

import numpy as np

from foretrace.analysis.report import StepReport
from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.graph.op import AssumedSize
from foretrace.platform.platform import Platform
from foretrace.prediction.predict import predict_on_platform
from foretrace.prediction.priced_step import PricedStep
from foretrace.prediction.uncertainty import priced_uncertainty
from foretrace.simulation.task_graph import KERNEL, TaskGraph
from foretrace.simulation.uncertainty import sample_ends
from tests.prediction.by_hand import Call, device, run, step


def calls(count: int) -> Graph:
    return Graph(OpTable.of([Op("aten::mm")] * count))


def samples(graph: Graph, made: PricedStep, tasks: TaskGraph) -> np.ndarray:
    return sample_ends(tasks, priced_uncertainty(graph, made, tasks), 300)


def test_a_step_without_uncertainty_has_no_range() -> None:
    made = step(Call([10.0]), Call([20.0]))
    table, timeline = run(made, device())
    assert np.unique(samples(calls(2), made, table)).tolist() == [timeline.span]


def test_a_factor_that_the_whole_step_shares_widens_the_range_as_much() -> None:
    made = step(*[Call()] * 200, common=0.1)
    table, _ = run(made, device())
    low, high = np.percentile(samples(calls(200), made, table), [10, 90])
    assert 1.2 < high / low < 1.4  # exp(2 * 1.28 * 0.1) = 1.29


def test_what_each_call_has_of_its_own_averages_out() -> None:
    made = step(*[Call(spread=0.3)] * 200)
    table, _ = run(made, device())
    low, high = np.percentile(samples(calls(200), made, table), [10, 90])
    assert high / low < 1.1


def test_equal_kernels_are_off_together_and_different_ones_in_part() -> None:
    same, mixed = (
        step(Call([100.0] * 20, launch=0.1), error=0.2),
        step(Call([100.0 + n for n in range(20)], launch=0.1), error=0.2),
    )
    same.work.name[:] = ["gemm"] * 20
    spreads = []
    for made in (same, mixed):
        table, _ = run(made, device())
        spreads.append(np.log(samples(calls(1), made, table)).std())
    assert spreads[1] < 0.9 * spreads[0]
    assert 0.15 < spreads[0] < 0.25


def test_the_range_holds_the_step_with_the_least_and_the_most_elements_that_a_sketch_may_have_assumed() -> None:
    tensor = Tensor((1 << 24,), "float32", "cuda:0")

    def predicted(assumed: AssumedSize | None) -> StepReport:
        op = Op("aten::relu", (tensor,), outputs=(tensor,), overload="default", assumed=assumed)
        return predict_on_platform(Graph(OpTable.of([op] * 300)), Platform.named("h200"))

    known, unknown = predicted(None), predicted(AssumedSize(0.2, 1.8, 0.2, 1.8))
    assert known.step_ms == unknown.step_ms and unknown.coverage["assumed"] == 1.0 and "assumed" not in known.coverage
    assert unknown.low_ms is not None and unknown.low_ms < 0.3 * known.step_ms
    assert unknown.high_ms is not None and 1.6 * known.step_ms < unknown.high_ms < 2.3 * known.step_ms


def test_tasks_of_one_call_are_sampled_together() -> None:
    made = step(Call([10.0], spread=0.1), Call([10.0], spread=0.1))
    table, _ = run(made, device())
    unsure = priced_uncertainty(calls(2), made, table)
    host = table.kind != KERNEL
    for call in (0, 1):
        assert len(np.unique(unsure.group[host & (table.op == call)])) == 1
    assert len(np.unique(unsure.group[host])) == 2
