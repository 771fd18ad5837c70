"""Measured calls as a family sees them."""

from __future__ import annotations

import numpy as np

from foretrace.cost_models.kernels.estimators.dataset import Dataset, dataset_of
from foretrace.cost_models.kernels.families import FAMILIES
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import Measurement

H200 = Device.named("h200")


def product(rows: int, *kernels: tuple[str, float]) -> Measurement:
    """A product of so many rows that launched these kernels, whatever the cache held."""
    left, right = Tensor((rows, 64), "float32"), Tensor((64, 64), "float32")
    return Measurement(Case(Op("aten::mm", (left, right), overload="default")), [list(kernels)], [list(kernels)])


def test_a_call_that_launched_nothing_is_left_out() -> None:
    rows = dataset_of(FAMILIES["matrix"], [product(0), product(64, ("gemm", 3.0))], H200)
    assert rows.us.tolist() == [[3.0, 3.0]]
    assert rows.call.tolist() == [1]


def test_calls_that_are_much_alike_are_held_out_together() -> None:
    size = np.repeat(2.0 ** np.arange(40), 4) * np.tile([1.0, 1.001, 1.002, 1.003], 40)
    calls = Dataset(np.log2(size)[:, None], size, size, np.ones((160, 2)), [[]] * 160)
    for inside, outside in calls.folds():
        assert not set(inside // 4) & set(outside // 4)
        assert 30 < len(outside) < 80
