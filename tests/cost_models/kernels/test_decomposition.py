"""Calls that are made of others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.cost_models.kernels.decomposition import attribute_kernels, parts_of
from foretrace.cost_models.kernels.estimators.dataset import Dataset, dataset_of
from foretrace.cost_models.kernels.families import FAMILIES, family_of
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.graph import Graph, Op, OpTable, Tensor, Value
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import Measurement
from foretrace.platform.platform import Platform
from tests.narrowing import instance, present

SCORES = Tensor((16, 8, 256, 256), "float32", device="cuda:0")
SAFE = Op("aten::_safe_softmax", (SCORES, -1), overload="default", outputs=(SCORES,))


def test_every_part_has_a_family():
    assert [part.name for part in parts_of(SAFE) if family_of(part) is None] == []


def test_a_call_of_parts_costs_more_than_its_first_part_and_launches_a_kernel_for_each():
    graph = Graph(ops=OpTable.of([SAFE, parts_of(SAFE)[0]]), device="cuda")
    costs = price_kernels(graph, np.arange(2, dtype=np.int32), Platform.named("h200"))
    composed, plain = (costs.op == row for row in (0, 1))
    assert composed.sum() >= 5 and plain.sum() == 1
    assert costs.typical[composed].sum() > 2 * costs.typical[plain].sum()


def _priced(*ops: Op) -> list[float]:
    """Microseconds of each call on the H200."""
    graph = Graph(ops=OpTable.of(ops), device="cuda")
    costs = price_kernels(graph, np.arange(len(ops), dtype=np.int32), Platform.named("h200"))
    return [float(costs.typical[costs.op == row].sum()) for row in range(len(ops))]


def _backward(*mask: bool) -> Op:
    x, w, grad = (
        Tensor(shape, "bfloat16", device="cuda:0") for shape in ((8, 64, 28, 28), (64, 64, 3, 3), (8, 64, 28, 28))
    )
    return Op("aten::convolution_backward", (grad, x, w, [64], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, list(mask)))


def test_the_gradients_of_a_convolution_cost_about_what_they_cost_alone():
    both, of_input, of_filter = _priced(
        _backward(True, True, False), _backward(True, False, False), _backward(False, True, False)
    )
    assert max(of_input, of_filter) < both
    assert 0.8 < both / (of_input + of_filter) < 1.2


def test_a_gradient_alone_is_left_as_it_is():
    alone = _backward(False, True, False)
    assert list(parts_of(alone)) == [alone]


def test_tensors_of_several_dtypes_are_copied_into_the_result_one_by_one():
    long, short = Tensor((4096, 512), "float32", device="cuda:0"), Tensor((4096, 256), "bfloat16", device="cuda:0")
    mixed, alike = Op("aten::cat", ([long, short], 1)), Op("aten::cat", ([long, long], 1))
    copies = parts_of(mixed)
    results = [instance(Tensor, copy.args[0]) for copy in copies]
    assert [(result.dtype, result.stride, copy.args[1]) for result, copy in zip(results, copies)] == [
        ("float32", (768, 1), long),
        ("float32", (768, 1), short),
    ]
    assert list(parts_of(alike)) == [alike] and list(parts_of(mixed, "cpu")) == [mixed]
    whole, *each = _priced(mixed, *copies)
    assert whole == sum(each)


def test_halves_that_cannot_hold_each_other_become_whole_floats():
    copies = parts_of(Op("aten::cat", ([Tensor((8,), "float16"), Tensor((8,), "bfloat16")],)))
    assert [instance(Tensor, copy.args[0]).dtype for copy in copies] == ["float32", "float32"]


@pytest.mark.parametrize(("name", "plain"), [("aten::baddbmm", "aten::bmm"), ("aten::addmm", "aten::mm")])
def test_a_product_whose_sum_counts_for_nothing_does_not_read_it(name: str, plain: str):
    shape = (4, 64, 64) if plain == "aten::bmm" else (64, 64)
    added, a, b = (Tensor(shape, "float16", "cuda:0") for _ in range(3))
    for op in (Op(name, (added, a, b), {"beta": 0.0, "alpha": 0.5}), Op(name, (added, a, b, 0, 1))):
        assert [(part.name, len(part.tensors)) for part in parts_of(op)] == [(plain, 2)]
    for op in (Op(name, (added, a, b)), Op(name, (added, a, b), {"beta": 0.5})):
        assert parts_of(op) == (op,)


def test_a_call_without_tensors_is_left_as_it_is():
    unknown = Op("aten::_safe_softmax")
    assert list(parts_of(unknown)) == [unknown]


X, W, GRAD = Tensor((8, 64, 28, 28), "float32"), Tensor((32, 64, 3, 3), "float32"), Tensor((8, 32, 28, 28), "float32")
H200 = Device.named("h200")
WINDOW: tuple[Value, ...] = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
TO_LAST, TO_FIRST = "void cudnn::ops::nchwToNhwcKernel<float>", "void cudnn::ops::nhwcToNchwKernel<float>"
DGRAD, WGRAD = "sm80_xmma_dgrad_implicit_gemm_tf32f32", "sm80_xmma_wgrad_implicit_gemm_tf32f32"
GEMM, SUM = "nvjet_sm90_tst_128x64", "void at::native::reduce_kernel<512, 1>"


def measured(*kernels: str, mask: tuple[bool, ...] = (True, True, False)) -> Measurement:
    """A backward call whose kernels take a microsecond, two, three, ... with a cold cache, and half with a warm one."""
    op = Op("aten::convolution_backward", (GRAD, X, W, [32], *WINDOW, [*mask]), overload="default")
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
    first, second = present(attribute_kernels(measured(*of_input, *of_filter), 2))
    assert [name for name, _ in first.kernels] == of_input
    assert [name for name, _ in second.kernels] == of_filter
    assert first.cold == pytest.approx(first.warm) == pytest.approx(1 - second.cold)


@pytest.mark.parametrize("more", [[], [SUM]])
def test_pytorch_itself_makes_the_gradient_of_the_filter_first(more):
    kernels = [
        "void at::native::conv_depthwise2d_grad_weight_kernel",
        "void at::native::conv_depthwise2d_backward_kernel",
    ]
    shares = present(attribute_kernels(measured(*kernels, *more, mask=(True, True, bool(more))), 2 + len(more)))
    assert [share.kernels[0][0] for share in shares] == [kernels[1], kernels[0], *more]
    assert shares[0].cold == pytest.approx(2 * shares[1].cold)


def test_the_bias_is_summed_last():
    shares = present(attribute_kernels(measured(DGRAD, WGRAD, "Memset (Device)", SUM, mask=(True, True, True)), 3))
    assert [len(share.kernels) for share in shares] == [1, 1, 2]
    assert [share.cold for share in shares] == pytest.approx([0.1, 0.2, 0.7])


def test_a_call_whose_kernels_do_not_tell_its_parts_is_left_out():
    found = measured("fft2d_r2c_32x32", GEMM, "fft2d_c2r_32x32", WGRAD)
    assert attribute_kernels(found, 2) is None
    assert len(dataset_of(FAMILIES["convolutions"], [found, measured(DGRAD, WGRAD)], H200)) == 2


def test_parts_add_up_to_the_call_and_stay_on_one_side_of_a_fold():
    one, two = measured(DGRAD, mask=(True, False, False)), measured(GEMM, SUM, mask=(True, False, True))
    calls = [measured(DGRAD, WGRAD), two, one]
    rows = dataset_of(FAMILIES["convolutions"], calls * 4, H200)
    assert len(rows) == 4 * (2 + 2 + 1)
    assert rows.per_call(rows.us).tolist() == [[call.us("cold"), call.us("warm")] for call in calls * 4]
    for inside, outside in rows.folds():
        assert not set(rows.call[inside]) & set(rows.call[outside])
        assert len(inside) + len(outside) == len(rows)


def test_rows_of_nothing_else_are_calls():
    us = np.array([[1.0, 2.0], [3.0, 4.0]])
    rows = Dataset(np.zeros((2, 1)), np.zeros(2), np.zeros(2), us, [])
    assert rows.per_call(rows.us).tolist() == us.tolist()


def test_a_cpu_makes_all_gradients_in_one_go():
    rows = dataset_of(FAMILIES["convolutions"], [measured("aten::convolution_backward")], replace(H200, kind="cpu"))
    assert len(rows) == 1
