"""Calls that wait for the device."""

import pytest

from foretrace.graph import Constant, Op, Tensor
from foretrace.graph.operators import waits_for_device

CPU, GPU = Tensor((4,), "float32", "cpu"), Tensor((4,), "float32", "cuda:0")
MASK = Tensor((4,), "bool", "cuda:0")


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Op("aten::_local_scalar_dense", (GPU,)), True),
        (Op("aten::_local_scalar_dense", (CPU,)), False),
        (Op("aten::nonzero", (GPU,)), True),
        (Op("aten::_to_copy", (GPU,), {"device": Constant("device", "cpu")}, (CPU,)), True),
        (Op("aten::_to_copy", (CPU,), {"non_blocking": True}, (GPU,)), False),
        (Op("aten::_to_copy", (GPU,), {"dtype": Constant("dtype", "bfloat16")}, (GPU,)), False),
        (Op("aten::copy_", (GPU, CPU)), True),
        (Op("aten::copy_", (GPU, CPU, True)), False),
        (Op("aten::copy_", (GPU, GPU)), False),
        (Op("aten::_to_copy", (Tensor((0,), "float32", "cpu"),), outputs=(GPU,)), False),
        (Op("aten::index", (GPU, [MASK])), True),
        (Op("aten::index", (MASK, [Tensor((2,), "int64", "cuda:0")])), False),
        (Op("aten::mm", (GPU, GPU)), False),
    ],
)
def test_calls_that_need_a_value_or_a_copy_wait_for_the_device(op: Op, expected: bool) -> None:
    assert waits_for_device(op) is expected
