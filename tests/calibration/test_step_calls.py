from __future__ import annotations

import pytest
import torch

from foretrace.calibration.step_calls import measure_cases, measurements_by_case, step_cases, time_replay
from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.platform.measurements.cases import recorded_cases
from foretrace.platform.measurements.kernels import read_batches
from foretrace.record.sketch.sketch import sketch

CPU = torch.device("cpu")


def relu(size):
    return Op("aten::relu", (Tensor((size,), "float32", "cuda:0", id=size, storage=size),), overload="default")


def test_each_distinct_call_is_measured_once_also_over_several_runs(tmp_path):
    first = measure_cases(recorded_cases([relu(8), relu(8), relu(16)]), tmp_path, CPU, minutes=0.1)
    second = measure_cases(recorded_cases([relu(16), relu(32)]), tmp_path, CPU, minutes=0.1)
    assert (first.cases, second.cases) == (2, 1)
    found = [m for batch in read_batches(tmp_path / "exact.jsonl.gz") for m in batch.measurements]
    assert [m.case.op.tensors[0].shape for m in found] == [(8,), (16,), (32,)]
    assert all(m.us("warm") > 0 for m in found)


def test_a_call_that_cannot_be_made_here_is_counted_and_the_others_go_on(tmp_path):
    wrong = Op("aten::of_tomorrow", (), overload="default")
    done = measure_cases(recorded_cases([wrong, relu(8)]), tmp_path, CPU, minutes=0.1)
    assert (done.cases, done.failed) == (1, 1)


def test_when_the_time_is_up_the_rest_is_left_to_the_next_run(tmp_path):
    ops = [relu(size) for size in range(1, 9)]
    measured = measure_cases(recorded_cases(ops), tmp_path, CPU, minutes=0.0).cases
    assert measured < len(ops)
    assert measured + measure_cases(recorded_cases(ops), tmp_path, CPU, minutes=0.2).cases == len(ops)


LAYERS = 3


@pytest.fixture(scope="module")
def step() -> Graph:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(LAYERS)))
    given = torch.randn(8, 64)
    return sketch(lambda: model(given).sum().backward())


def test_each_call_of_a_sketch_is_timed_where_it_stands(step: Graph) -> None:
    times = time_replay(step, seconds=0.0)
    assert set(times) == {row for row, op in enumerate(step.ops) if not op.is_side_call}
    assert all(len(took) == 3 and min(took) > 0 for took in times.values())


def test_calls_that_are_alike_are_one_case_whose_mean_keeps_the_sum(step: Graph) -> None:
    times, cases = time_replay(step, seconds=0.0), step_cases(step, "cpu")
    found = {one.case.op.name: one for one in measurements_by_case(times, cases)}
    layers = [row for row in times if step.ops[row].name == "aten::addmm"]
    assert len(layers) == LAYERS
    (first,) = found["aten::addmm"].cold[0]
    assert first[1] * LAYERS == pytest.approx(sum(times[row][0] for row in layers), rel=1e-3)


def test_a_step_whose_arguments_nobody_knows_is_refused() -> None:
    with pytest.raises(ForetraceError, match="arguments"):
        time_replay(Graph(OpTable.of([Op("aten::relu", start_us=0.0, end_us=1.0)])), seconds=0.0)
