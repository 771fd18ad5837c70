"""Measured calls as a family sees them."""

from __future__ import annotations

from foretrace.cost_models.kernels.estimators.dataset import dataset_of
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
