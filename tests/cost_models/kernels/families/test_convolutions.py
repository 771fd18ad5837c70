from foretrace.cost_models.kernels.families import FAMILIES, CallContext
from foretrace.graph import Op, Tensor, Value
from foretrace.platform.device import Device

CONVOLUTIONS = FAMILIES["convolutions"]
FACTS = CallContext(Device.named("h200"))
IMAGE, FILTERS = Tensor((8, 64, 56, 56), "bfloat16"), Tensor((128, 64, 3, 3), "bfloat16")


def forward(stride: int = 1, groups: int = 1, x: Tensor = IMAGE, w: Tensor = FILTERS) -> Op:
    return Op("aten::convolution", (x, w, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], groups))


def backward(mask: list[bool]) -> Op:
    grad = Tensor((8, 128, 56, 56), "bfloat16")
    window: tuple[Value, ...] = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return Op("aten::convolution_backward", (grad, IMAGE, FILTERS, [128], *window, [*mask]))


def test_flops_are_those_of_the_implicit_gemm():
    assert CONVOLUTIONS.describe(forward(), FACTS).work.flops == 2 * 8 * 56 * 56 * 128 * 64 * 9
    assert CONVOLUTIONS.describe(forward(stride=2), FACTS).work.flops == 2 * 8 * 28 * 28 * 128 * 64 * 9


def test_both_gradients_take_twice_the_flops_of_one():
    one = CONVOLUTIONS.describe(backward([True, False, False]), FACTS).work.flops
    assert CONVOLUTIONS.describe(backward([True, True, False]), FACTS).work.flops == 2 * one


def test_tensors_that_are_not_channels_last_are_converted():
    last = Tensor(IMAGE.shape, "bfloat16", stride=(200704, 1, 3584, 64))
    turned = CONVOLUTIONS.describe(forward(), FACTS).work.bytes
    assert turned > 2 * CONVOLUTIONS.describe(forward(x=last), FACTS).work.bytes


def test_a_channel_alone_in_its_group_does_not_run_on_the_matrix_units():
    alone = forward(groups=64, w=Tensor((64, 1, 3, 3), "bfloat16"))
    assert CONVOLUTIONS.describe(alone, FACTS).work.rate == "float32"


def _column(op: Op, name: str) -> float:
    return CONVOLUTIONS.describe(op, FACTS).features[CONVOLUTIONS.columns.index(name)]


def test_what_lies_unlike_the_image_is_copied_first():
    last = Tensor(IMAGE.shape, "bfloat16", stride=(200704, 1, 3584, 64))
    filters_last = Tensor(FILTERS.shape, "bfloat16", stride=(576, 1, 192, 64))
    assert _column(forward(), "copied") == 0
    assert _column(forward(x=last, w=filters_last), "copied") == 0
    assert _column(forward(x=last), "copied") == _column(forward(x=last), "copied_filter") > 0
    assert _column(forward(w=filters_last), "innermost") and _column(forward(w=filters_last), "copied_x") > 0


def test_a_gradient_that_lies_unlike_the_image_is_copied_first():
    op = backward([True, True, False])
    grad = Tensor((8, 128, 56, 56), "bfloat16", stride=(401408, 1, 7168, 128))
    turned = Op(op.name, (grad, *op.args[1:]))
    assert _column(op, "copied_grad") == 0 < _column(turned, "copied_grad")
    assert _column(turned, "grad_says") and not _column(turned, "innermost")


def test_gradients_and_channels_alone_are_kinds_of_their_own():
    alone = forward(groups=64, w=Tensor((64, 1, 3, 3), "bfloat16"))
    masks = ([True, False, False], [False, True, False], [False, False, True])
    kinds = [_column(op, "op") for op in (forward(), alone, *map(backward, masks))]
    assert len(set(kinds)) == len(kinds)


def test_the_gradient_of_a_bias_is_the_sum_that_pytorch_plans():
    of_bias, of_filter = backward([False, False, True]), backward([False, True, False])
    assert _column(of_bias, "sum_along") == 1 and _column(of_bias, "sum_blocks") > 0
    assert all(_column(of_filter, name) == 0 for name in CONVOLUTIONS.columns if name.startswith("sum_"))
    last = Tensor((8, 128, 56, 56), "bfloat16", stride=(401408, 1, 7168, 128))
    assert _column(Op(of_bias.name, (last, *of_bias.args[1:])), "sum_along") == 0
