"""Measured calls cut into what they are made of."""

from dataclasses import replace

import numpy as np
import pytest

from foretrace.cost_models.kernels.decomposition import cut
from foretrace.cost_models.kernels.estimators.dataset import Rows, rows_of
from foretrace.cost_models.kernels.estimators.forests import folds_of
from foretrace.cost_models.kernels.families import FAMILIES
from foretrace.graph import Op, Tensor
from foretrace.platform.cases import Case
from foretrace.platform.device import Device
from foretrace.platform.measurements import Measurement

X, W, GRAD = Tensor((8, 64, 28, 28), "float32"), Tensor((32, 64, 3, 3), "float32"), Tensor((8, 32, 28, 28), "float32")
H200 = Device.named("h200")
WINDOW = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
TO_LAST, TO_FIRST = "void cudnn::ops::nchwToNhwcKernel<float>", "void cudnn::ops::nhwcToNchwKernel<float>"
DGRAD, WGRAD = "sm80_xmma_dgrad_implicit_gemm_tf32f32", "sm80_xmma_wgrad_implicit_gemm_tf32f32"
GEMM, SUM = "nvjet_sm90_tst_128x64", "void at::native::reduce_kernel<512, 1>"


def measured(*kernels: str, mask: tuple[bool, ...] = (True, True, False)) -> Measurement:
    """A backward call whose kernels take a microsecond, two, three, ... with a cold cache, and half with a warm one."""
    op = Op("aten::convolution_backward", (GRAD, X, W, [32], *WINDOW, list(mask)), overload="default")
    cold = [(name, 1.0 + place) for place, name in enumerate(kernels)]
    return Measurement(Case(op), cold=[cold], warm=[[(name, us / 2) for name, us in cold]])


@pytest.mark.parametrize(
    ("of_input", "of_filter"),
    [
        ([DGRAD], [WGRAD]),
        ([GEMM], [GEMM, WGRAD]),
        ([GEMM, "splitKreduce_kernel"], [GEMM]),
        ([TO_LAST, TO_LAST, "Memset (Device)", DGRAD, TO_FIRST], [TO_LAST, TO_LAST, WGRAD, TO_FIRST]),
        ([TO_FIRST, DGRAD, TO_LAST], ["Memset (Device)", WGRAD]),
        ([DGRAD, DGRAD], [TO_LAST, TO_LAST, WGRAD, WGRAD]),
    ],
)
def test_each_gradient_has_its_own_kernels(of_input, of_filter):
    first, second = cut(measured(*of_input, *of_filter), 2)
    assert [name for name, _ in first.kernels] == of_input
    assert [name for name, _ in second.kernels] == of_filter
    assert first.cold == pytest.approx(first.warm) == pytest.approx(1 - second.cold)


@pytest.mark.parametrize("more", [[], [SUM]])
def test_pytorch_itself_makes_the_gradient_of_the_filter_first(more):
    kernels = [
        "void at::native::conv_depthwise2d_grad_weight_kernel",
        "void at::native::conv_depthwise2d_backward_kernel",
    ]
    shares = cut(measured(*kernels, *more, mask=(True, True, bool(more))), 2 + len(more))
    assert [share.kernels[0][0] for share in shares] == [kernels[1], kernels[0], *more]
    assert shares[0].cold == pytest.approx(2 * shares[1].cold)


def test_the_bias_is_summed_last():
    shares = cut(measured(DGRAD, WGRAD, "Memset (Device)", SUM, mask=(True, True, True)), 3)
    assert [len(share.kernels) for share in shares] == [1, 1, 2]
    assert [share.cold for share in shares] == pytest.approx([0.1, 0.2, 0.7])


def test_a_call_whose_kernels_do_not_tell_its_parts_is_left_out():
    found = measured("fft2d_r2c_32x32", GEMM, "fft2d_c2r_32x32", WGRAD)
    assert cut(found, 2) is None
    assert len(rows_of(FAMILIES["convolutions"], [found, measured(DGRAD, WGRAD)], H200)) == 2


def test_parts_add_up_to_the_call_and_stay_on_one_side_of_a_fold():
    one, two = measured(DGRAD, mask=(True, False, False)), measured(GEMM, SUM, mask=(True, False, True))
    calls = [measured(DGRAD, WGRAD), two, one]
    rows = rows_of(FAMILIES["convolutions"], calls * 4, H200)
    assert len(rows) == 4 * (2 + 2 + 1)
    assert rows.whole(rows.us).tolist() == [[call.us("cold"), call.us("warm")] for call in calls * 4]
    for inside, outside in folds_of(rows):
        assert not set(rows.call[inside]) & set(rows.call[outside])
        assert len(inside) + len(outside) == len(rows)


def test_rows_of_nothing_else_are_calls():
    us = np.array([[1.0, 2.0], [3.0, 4.0]])
    rows = Rows(np.zeros((2, 1)), np.zeros(2), np.zeros(2), us, [])
    assert rows.whole(rows.us).tolist() == us.tolist()


def test_a_cpu_makes_all_gradients_in_one_go():
    rows = rows_of(FAMILIES["convolutions"], [measured("aten::convolution_backward")], replace(H200, kind="cpu"))
    assert len(rows) == 1
