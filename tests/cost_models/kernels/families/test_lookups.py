from __future__ import annotations

from foretrace.cost_models.kernels.families import FAMILIES, CallContext, family_of
from foretrace.cost_models.kernels.families.lookups import index_statistics
from foretrace.graph import Indices, Op, Tensor
from foretrace.platform.device import Device

LOOKUPS = FAMILIES["lookups"]
H200 = Device.named("h200")
TABLE, IDS, OFFSETS = Tensor((1_000_000, 128), "float32"), Tensor((65536,), "int64"), Tensor((2048,), "int64")
BAG = Op("aten::_embedding_bag", (TABLE, IDS, OFFSETS, False, 0, True, None))


def column(op: Op, name: str, indices: Indices | None = None) -> float:
    return LOOKUPS.describe(op, CallContext(H200, indices)).features[LOOKUPS.columns.index(name)]


def test_ids_that_are_all_the_same_need_one_row_from_memory():
    same = Indices(op=-1, rows=1_000_000, count=65536, unique=1, bags=2048, reuse=(0,) * 16 + (1,))
    known, unknown = (LOOKUPS.describe(BAG, CallContext(H200, indices)).work for indices in (same, None))
    assert unknown.bytes > 10 * known.bytes


def test_pooling_is_ids_by_bag():
    assert column(BAG, "pooling") == 32


def test_a_dense_gradient_is_cleared_first_and_a_sparse_one_is_not():
    grad = Tensor((2048, 128), "float32")

    def gradient(sparse: bool) -> Op:
        args = (grad, IDS, OFFSETS, IDS, OFFSETS, OFFSETS, 1_000_000, False, 0, sparse, None)
        return Op("aten::_embedding_bag_backward", args)

    cleared, stored = (LOOKUPS.describe(gradient(sparse), CallContext(H200)).work.bytes for sparse in (False, True))
    assert cleared - stored == TABLE.nbytes


def test_an_addition_is_a_lookup_only_where_its_gradient_is_sparse():
    sparse = Tensor((1_000_000, 128), "float32", layout="sparse_coo")
    assert family_of(Op("aten::add_", (TABLE, sparse))) is LOOKUPS
    assert family_of(Op("aten::add_", (TABLE, TABLE))) is FAMILIES["elementwise"]


def test_rows_of_whole_sixteen_bytes_are_read_wide():
    assert column(BAG, "wide") == 1
    odd = Op("aten::embedding", (Tensor((1000, 17), "float32"), IDS))
    assert column(odd, "wide") == 0


def _sparse_gradient(bags: int, dim: int = 128, step: int = 128, ids: int = 65536) -> Op:
    grad, each, every = (
        Tensor((bags, dim), "float32", stride=(step, 1)),
        Tensor((ids,), "int64"),
        Tensor((bags,), "int64"),
    )
    args = (grad, each, every, each, every, every, 1_000_000, False, 0, True, None)
    return Op("aten::_embedding_bag_backward", args)


def test_a_sparse_gradient_takes_the_same_whichever_rows_the_ids_hit():
    same = Indices(op=-1, rows=1_000_000, count=65536, unique=1, bags=2048, reuse=(0,) * 16 + (1,))
    even = Indices(op=-1, rows=1_000_000, count=65536, unique=65536, bags=2048, reuse=(65536,))
    known = [LOOKUPS.describe(_sparse_gradient(2048), CallContext(H200, indices)) for indices in (same, even, None)]
    assert known[0] == known[1] == known[2]


def test_rows_are_copied_by_another_kernel_where_ids_are_few_or_rows_begin_anywhere():
    ops = (BAG, _sparse_gradient(8, ids=16), _sparse_gradient(8, ids=17), _sparse_gradient(8, step=130))
    assert [column(op, "kernel") for op in ops] == [0, 1, 2, 3]
    assert column(_sparse_gradient(8, step=256), "kernel") == 2, "further apart, and still aligned"


def test_a_few_ids_are_copied_one_after_the_other():
    one, many = (LOOKUPS.describe(_sparse_gradient(1, ids=ids), CallContext(H200)).work.round_trips for ids in (1, 16))
    assert many == 16 * one


def test_adding_to_one_row_takes_longer_than_to_many():
    table, grad = Tensor((1000, 64), "float32"), Tensor((1000, 64), "float32", layout="sparse_coo")
    update = Op("aten::add_", (table, grad))
    one = Indices(op=-1, rows=1000, count=50_000, unique=1, bags=50_000, reuse=(0,) * 15 + (1,))
    even = Indices(op=-1, rows=1000, count=50_000, unique=1000, bags=50_000, reuse=(0,) * 5 + (1000,))
    hot, spread = (LOOKUPS.describe(update, CallContext(H200, indices)).work.round_trips for indices in (one, even))
    assert hot > 5 * spread


SMALL_TABLE = Tensor((1000, 16), "float32", storage=1)
FEW_IDS, FEW_OFFSETS = Tensor((400,), "int64", storage=2), Tensor((100,), "int64", storage=3)
LOOKUP = Op("aten::_embedding_bag", (SMALL_TABLE, FEW_IDS, FEW_OFFSETS, False, 0, True, None))
GRADIENT = Op("aten::_embedding_bag_backward", (Tensor((100, 16), "float32"), FEW_IDS, FEW_OFFSETS))
UPDATE = Op("aten::add_", (SMALL_TABLE, Tensor((1000, 16), "float32", layout="sparse_coo")), {"alpha": -0.1})


def test_gradient_and_update_have_the_ids_of_their_lookup():
    seen = Indices(op=0, rows=1000, count=400, unique=20, bags=100, reuse=(0, 0, 0, 0, 20))
    assert index_statistics([LOOKUP, GRADIENT, UPDATE], [seen]) == {0: seen, 1: seen, 2: seen}


def test_ids_without_statistics_are_taken_to_be_uniform():
    found = index_statistics([LOOKUP, GRADIENT], [])
    assert (found[0].count, found[0].rows) == (400, 1000)
    assert 320 < found[0].unique < 340  # 1000 (1 - exp(-0.4))
    assert found[1] is found[0]


def test_an_update_of_another_table_has_none():
    other = Tensor((50, 16), "float32", storage=7)
    assert 1 not in index_statistics([LOOKUP, Op("aten::add_", (other, other))], [])


def test_without_storages_a_table_is_known_by_its_shape():
    table, ids = Tensor((1000, 16), "float32"), Tensor((400,), "int64")
    update = Op("aten::add_", (table, Tensor((1000, 16), "float32", layout="sparse_coo")))
    found = index_statistics([Op("aten::_embedding_bag", (table, ids)), update], [])
    assert found[1] is found[0] and found[1].count == 400
