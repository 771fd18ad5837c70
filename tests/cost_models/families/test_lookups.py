from foretrace.cost_models.kernels.families import FAMILIES, Facts, family_of
from foretrace.graph import Indices, Op, Tensor
from foretrace.platform.device import Device

LOOKUPS = FAMILIES["lookups"]
H200 = Device.named("h200")
TABLE, IDS, OFFSETS = Tensor((1_000_000, 128), "float32"), Tensor((65536,), "int64"), Tensor((2048,), "int64")
BAG = Op("aten::_embedding_bag", (TABLE, IDS, OFFSETS, False, 0, True, None))


def column(op: Op, name: str, indices: Indices | None = None) -> float:
    return LOOKUPS.describe(op, Facts(H200, indices)).features[LOOKUPS.columns.index(name)]


def test_ids_that_are_all_the_same_need_one_row_from_memory():
    same = Indices(op=-1, rows=1_000_000, count=65536, unique=1, bags=2048, reuse=(0,) * 16 + (1,))
    known, unknown = (LOOKUPS.describe(BAG, Facts(H200, indices)).work for indices in (same, None))
    assert unknown.bytes > 10 * known.bytes


def test_pooling_is_ids_by_bag():
    assert column(BAG, "pooling") == 32


def test_a_dense_gradient_is_cleared_first_and_a_sparse_one_is_not():
    grad = Tensor((2048, 128), "float32")

    def gradient(sparse: bool) -> Op:
        args = (grad, IDS, OFFSETS, IDS, OFFSETS, OFFSETS, 1_000_000, False, 0, sparse, None)
        return Op("aten::_embedding_bag_backward", args)

    cleared, kept = (LOOKUPS.describe(gradient(sparse), Facts(H200)).work.bytes for sparse in (False, True))
    assert cleared - kept == TABLE.nbytes


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
    known = [LOOKUPS.describe(_sparse_gradient(2048), Facts(H200, indices)) for indices in (same, even, None)]
    assert known[0] == known[1] == known[2]


def test_rows_are_copied_by_another_kernel_where_ids_are_few_or_rows_begin_anywhere():
    ops = (BAG, _sparse_gradient(8, ids=16), _sparse_gradient(8, ids=17), _sparse_gradient(8, step=130))
    assert [column(op, "kernel") for op in ops] == [0, 1, 2, 3]
    assert column(_sparse_gradient(8, step=256), "kernel") == 2, "further apart, and still aligned"


def test_a_few_ids_are_copied_one_after_the_other():
    one, many = (LOOKUPS.describe(_sparse_gradient(1, ids=ids), Facts(H200)).work.trips for ids in (1, 16))
    assert many == 16 * one


def test_adding_to_one_row_takes_longer_than_to_many():
    table, grad = Tensor((1000, 64), "float32"), Tensor((1000, 64), "float32", layout="sparse_coo")
    update = Op("aten::add_", (table, grad))
    one = Indices(op=-1, rows=1000, count=50_000, unique=1, bags=50_000, reuse=(0,) * 15 + (1,))
    even = Indices(op=-1, rows=1000, count=50_000, unique=1000, bags=50_000, reuse=(0,) * 5 + (1000,))
    hot, spread = (LOOKUPS.describe(update, Facts(H200, indices)).work.trips for indices in (one, even))
    assert hot > 5 * spread
