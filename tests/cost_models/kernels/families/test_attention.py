from foretrace.cost_models.kernels.families import FAMILIES, CallContext
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
