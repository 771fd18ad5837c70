from __future__ import annotations

import torch

from foretrace.graph import Op, Tensor
from foretrace.platform.measure.exact import measure_ops
from foretrace.platform.measurements import read_batches

CPU = torch.device("cpu")


def relu(size):
    return Op("aten::relu", (Tensor((size,), "float32", "cuda:0", id=size, storage=size),), overload="default")


def test_each_distinct_call_is_measured_once_also_over_several_runs(tmp_path):
    first = measure_ops([relu(8), relu(8), relu(16)], tmp_path, CPU, minutes=0.1)
    second = measure_ops([relu(16), relu(32)], tmp_path, CPU, minutes=0.1)
    assert (first.cases, second.cases) == (2, 1)
    found = [m for batch in read_batches(tmp_path / "exact.jsonl.gz") for m in batch.measurements]
    assert [m.case.op.tensors[0].shape for m in found] == [(8,), (16,), (32,)]
    assert all(m.us("warm") > 0 for m in found)


def test_a_call_that_cannot_be_made_here_is_counted_and_the_others_go_on(tmp_path):
    wrong = Op("aten::of_tomorrow", (), overload="default")
    done = measure_ops([wrong, relu(8)], tmp_path, CPU, minutes=0.1)
    assert (done.cases, done.failed) == (1, 1)


def test_when_the_time_is_up_the_rest_is_left_to_the_next_run(tmp_path):
    ops = [relu(size) for size in range(1, 9)]
    measured = measure_ops(ops, tmp_path, CPU, minutes=0.0).cases
    assert measured < len(ops)
    assert measured + measure_ops(ops, tmp_path, CPU, minutes=0.2).cases == len(ops)
