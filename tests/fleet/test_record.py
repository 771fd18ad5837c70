"""What is kept of a recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace.api import load, observe, predict
from foretrace.fleet.adding import reduce_recording
from foretrace.fleet.record import packed_call, unpacked_call
from foretrace.fleet.reduction import reduce_step
from foretrace.fleet.response import StepResponse
from foretrace.fleet.store import arrow, from_table, to_table
from foretrace.graph import Op, Tensor

RECORDING = Path(__file__).parents[1] / "data/h200/dlrm_default_b512"


@pytest.fixture(scope="module")
def record():
    return reduce_recording(str(RECORDING))


def test_device_time_by_group_adds_up_to_the_reports(record):
    report = observe(load(RECORDING))
    assert record.kernel_ms == pytest.approx(sum(row.device_ms for row in report.by_family), rel=1e-3)
    for row in report.by_family:
        mine = sum(group.ms for group in record.kernels if group.family == row.name)
        assert mine == pytest.approx(row.device_ms, abs=1e-3)


def test_a_record_is_small(record):
    pa = arrow()
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(to_table([record]), sink, compression="none")
    assert to_table([record]).nbytes < 20_000


def test_a_record_survives_the_index(record):
    assert from_table(to_table([record])) == [record]


def test_the_step_is_the_unprofiled_one_where_it_was_timed(record):
    report = observe(load(RECORDING))
    if report.unprofiled is None:
        assert not record.clean and record.step_ms == report.step_ms
    else:
        assert record.clean and record.step_ms == report.unprofiled.synced_ms


def test_its_response_has_the_length_of_its_step(record):
    assert StepResponse(np.array(record.response)).ms() == pytest.approx(record.step_ms, rel=1e-3)


def test_a_step_without_times_is_predicted_and_says_so():
    job = load(RECORDING)
    predicted = reduce_step(predict(job, "h200", kernels="model"), job)
    assert not predicted.measured and predicted.kernels and predicted.step_ms > 0


def test_whole_calls_are_kept_for_most_of_the_device_time_without_the_models_names(record):
    priced = [group for group in record.kernels if group.call]
    assert sum(group.ms for group in priced) > 0.8 * record.kernel_ms
    assert all(unpacked_call(group.call).name == group.op and "module" not in group.call for group in priced)


def test_a_packed_call_keeps_all_arguments():
    image = Tensor((8, 3, 32, 32), "bfloat16", "cuda:0", (3072, 1, 96, 3), id=4, storage=2)
    op = Op("aten::convolution", (image, image, None, [1, 1]), {"groups": 1}, overload="default", module="net.0")
    again = unpacked_call(packed_call(op))
    assert (again.name, again.overload, again.kwargs, again.args[2:]) == (
        op.name,
        "default",
        {"groups": 1},
        op.args[2:],
    )
    assert again.tensors[0].stride == image.stride and not again.module


def test_a_packed_call_does_not_say_where_in_the_users_code_it_was_made():
    assert "model.py" not in packed_call(Op("aten::mul", (Tensor((8,), "float32"), 2.0), line="/home/me/model.py:7"))


def test_a_sparse_tensor_of_a_call_keeps_its_layout_and_its_stored_elements():
    sparse = Tensor((1000, 64), "float32", "cuda:0", layout="sparse", stored=640)
    (found,) = unpacked_call(packed_call(Op("aten::mul", (sparse, 2.0)))).tensors
    assert (found.shape, found.layout, found.stored) == ((1000, 64), "sparse", 640)
