"""Calls that are made of others."""

import numpy as np

from foretrace.cost_models.kernels.decomposition import parts_of
from foretrace.cost_models.kernels.families import family_of
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.platform.platform import Platform

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
    assert [(copy.args[0].dtype, copy.args[0].stride, copy.args[1]) for copy in copies] == [
        ("float32", (768, 1), long),
        ("float32", (768, 1), short),
    ]
    assert list(parts_of(alike)) == [alike] and list(parts_of(mixed, "cpu")) == [mixed]
    whole, *each = _priced(mixed, *copies)
    assert whole == sum(each)


def test_halves_that_cannot_hold_each_other_become_whole_floats():
    joined = [Tensor((8,), "float16"), Tensor((8,), "bfloat16")]
    assert [copy.args[0].dtype for copy in parts_of(Op("aten::cat", (joined,)))] == ["float32", "float32"]


def test_a_call_without_tensors_is_left_as_it_is():
    unknown = Op("aten::_safe_softmax")
    assert list(parts_of(unknown)) == [unknown]
