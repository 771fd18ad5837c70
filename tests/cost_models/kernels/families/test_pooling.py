from foretrace.cost_models.kernels.families import FAMILIES, CallContext
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device

POOLING = FAMILIES["pooling"]
FACTS = CallContext(Device.named("h200"))
IMAGE = Tensor((8, 64, 112, 112), "float32")


def width_after(op: Op) -> float:
    return POOLING.describe(op, FACTS).features[POOLING.columns.index("out_width")]


def test_results_are_as_wide_as_windows_fit():
    assert width_after(Op("aten::max_pool2d_with_indices", (IMAGE, [3, 3], [2, 2], [1, 1]))) == 56
    assert width_after(Op("aten::avg_pool2d", (IMAGE, [2, 2]))) == 56
    assert width_after(Op("aten::_adaptive_avg_pool2d", (IMAGE, [7, 7]))) == 7


def test_a_plane_to_one_number_waits_for_a_thread_that_reads_it_alone():
    one, many = (POOLING.describe(Op("aten::_adaptive_avg_pool2d", (IMAGE, [n, n])), FACTS).work for n in (1, 28))
    assert one.round_trips > 10 * many.round_trips


def test_gradients_know_the_plane_they_fill():
    op = Op("aten::_adaptive_avg_pool2d_backward", (Tensor((8, 64, 1, 1), "float32"), IMAGE))
    assert POOLING.describe(op, FACTS).work.bytes >= 2 * IMAGE.nbytes
