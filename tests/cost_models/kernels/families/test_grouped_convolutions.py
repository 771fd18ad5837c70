import pytest

from foretrace.cost_models.kernels.families import case_number, family_of
from foretrace.graph import Op, Tensor
from tests.narrowing import instance, present


def convolution(groups: int, dilation: int = 1, channels: int = 64) -> Op:
    x, w = Tensor((2, channels, 16, 16), "float32"), Tensor((channels, channels // groups, 3, 3), "float32")
    return Op("aten::convolution", (x, w, None, [1, 1], [1, 1], [dilation, dilation], False, [0, 0], groups))


@pytest.mark.parametrize(
    ("op", "family"),
    [
        (convolution(1), "convolutions"),
        (convolution(64), "convolutions"),  # depthwise
        (convolution(4), "grouped_convolutions"),
        (convolution(1, dilation=2), "grouped_convolutions"),
    ],
)
def test_grouped_and_dilated_convolutions_have_a_family_of_their_own(op: Op, family: str):
    assert present(family_of(op)).name == family


def test_cases_have_wide_groups_and_dilated_windows():
    ops = [case_number("grouped_convolutions", n, 2**26, "cuda").op for n in range(200)]
    groups = {op.args[8 + op.name.endswith("backward")] for op in ops}
    dilations = {instance(list, op.args[5 + op.name.endswith("backward")])[0] for op in ops}
    assert {1, 2, 32} < groups and {1, 2, 12} < dilations
    assert all(present(family_of(op)).name == "grouped_convolutions" for op in ops)
