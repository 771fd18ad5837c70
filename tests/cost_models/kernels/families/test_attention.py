import pytest

from foretrace.cost_models.kernels.families import FAMILIES, CallContext
from foretrace.cost_models.kernels.families.attention import on_device
from foretrace.cost_models.kernels.features import log
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device

ATTENTION = FAMILIES["attention"]
FACTS = CallContext(Device.named("h200"))


def flash(queries: int, keys: int, causal: bool = False, heads: int = 16) -> Op:
    q, k = Tensor((8, heads, queries, 64), "bfloat16"), Tensor((8, heads, keys, 64), "bfloat16")
    return Op("aten::_scaled_dot_product_flash_attention", (q, k, k, 0.0, causal))


def flash_backward(queries: int, keys: int) -> Op:
    q, k = Tensor((1, 4, queries, 64), "bfloat16"), Tensor((1, 4, keys, 64), "bfloat16")
    args = (q, q, k, k, q, Tensor((1, 4, queries), "float32"), None, None, queries, keys, 0.0, False)
    return Op("aten::_scaled_dot_product_flash_attention_backward", args)


def us(op: Op) -> float:
    return ATTENTION.describe(op, FACTS).work.us(FACTS.device)


def test_causal_attention_takes_about_half():
    assert 0.5 < us(flash(4096, 4096, causal=True)) / us(flash(4096, 4096)) < 0.6


def test_one_block_that_passes_many_keys_alone_takes_as_long_as_many_that_do():
    assert us(flash(16, 65536, heads=1)) == us(flash(128, 65536, heads=1))


def test_backward_blocks_pass_all_queries():
    assert us(flash_backward(8192, 64)) > 5 * us(flash_backward(1024, 64))


def test_a_call_without_its_tensors_is_not_taken():
    assert not ATTENTION.accepts(Op("aten::_scaled_dot_product_flash_attention", (None, None, None)))


def cudnn(bias: Tensor | None = None, backward: bool = False) -> Op:
    q = Tensor((2, 8, 1024, 128), "bfloat16")
    sums = Tensor((2, 8, 1024, 1), "float32")
    if backward:
        args = (q, q, q, q, q, sums, sums, sums, bias, None, None, 1024, 1024, 0.1, True)
        return Op("aten::_scaled_dot_product_cudnn_attention_backward", args)
    return Op("aten::_scaled_dot_product_cudnn_attention", (q, q, q, bias, True, 0.1, True))


@pytest.mark.parametrize("backward", [False, True])
def test_a_device_without_cudnn_s_attention_has_its_own(backward: bool):
    given = cudnn(backward=backward)
    assert on_device(given, "cudnn") is given
    made = on_device(given, "flash")
    assert made.name == given.name.replace("cudnn", "flash")
    columns = dict(zip(ATTENTION.columns, ATTENTION.describe(made, FACTS).features))
    assert columns["causal"] and columns["dropout"] and columns["queries"] == log(1024)


def test_a_mask_takes_the_efficient_attention_where_cudnn_has_none():
    made = on_device(cudnn(Tensor((2, 1, 1024, 1024), "bfloat16")), "flash")
    assert made.name == "aten::_scaled_dot_product_efficient_attention"


def test_gpus_before_hopper_say_that_their_attention_is_another():
    assert [Device.named(name).attention for name in ("h100", "a100", "v100")] == ["cudnn", "flash", "efficient"]
