import pytest

from foretrace.cost_models.kernels.families import case_number, family_of
from foretrace.graph import Op, Tensor


@pytest.mark.parametrize(
    ("queries", "keys", "family"), [(1, 4096, "decoding"), (16, 16, "attention"), (64, 4096, "attention")]
)
def test_few_queries_over_more_keys_are_decoding(queries: int, keys: int, family: str):
    query, key = (Tensor((4, 8, length, 64), "bfloat16") for length in (queries, keys))
    found = family_of(Op("aten::_scaled_dot_product_flash_attention", (query, key, key)))
    assert found is not None and found.name == family


def test_cases_share_heads_and_have_long_caches():
    ops = [case_number("decoding", n, 2**26, "cuda").op for n in range(100)]
    assert max(op.tensors[1].shape[2] for op in ops) > 8192
    assert any(op.tensors[0].shape[1] > op.tensors[1].shape[1] for op in ops)
    assert not any(op.name.endswith("backward") for op in ops)
