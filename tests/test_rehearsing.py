"""Calls of a step timed in its order."""

import pytest
import torch

from foretrace.calibrating import cases_of
from foretrace.graph import ForetraceError, Graph, Op, OpTable
from foretrace.record.sketch import sketch
from foretrace.rehearsing import by_case, rehearse

LAYERS = 3


@pytest.fixture(scope="module")
def step() -> Graph:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(LAYERS)))
    given = torch.randn(8, 64)
    return sketch(lambda: model(given).sum().backward())


def test_each_call_of_a_sketch_is_timed_where_it_stands(step: Graph) -> None:
    times = rehearse(step, seconds=0.0)
    assert set(times) == {row for row, op in enumerate(step.ops) if not op.is_side_call}
    assert all(len(took) == 3 and min(took) > 0 for took in times.values())


def test_calls_that_are_alike_are_one_case_whose_mean_keeps_the_sum(step: Graph) -> None:
    times, cases = rehearse(step, seconds=0.0), cases_of(step, "cpu")
    found = {one.case.op.name: one for one in by_case(times, cases)}
    layers = [row for row in times if step.ops[row].name == "aten::addmm"]
    assert len(layers) == LAYERS
    (first,) = found["aten::addmm"].cold[0]
    assert first[1] * LAYERS == pytest.approx(sum(times[row][0] for row in layers), rel=1e-3)


def test_a_step_whose_arguments_nobody_knows_is_refused() -> None:
    with pytest.raises(ForetraceError, match="arguments"):
        rehearse(Graph(OpTable.of([Op("aten::relu", start_us=0.0, end_us=1.0)])), seconds=0.0)
