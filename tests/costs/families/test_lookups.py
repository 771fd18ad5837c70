from foretrace.costs.families import FAMILIES, Facts, family_of
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
