from foretrace.cost_models.kernels.families.lookups import spread_of_ids
from foretrace.graph import Indices, Op, Tensor

TABLE = Tensor((1000, 16), "float32", storage=1)
IDS, OFFSETS = Tensor((400,), "int64", storage=2), Tensor((100,), "int64", storage=3)
LOOKUP = Op("aten::_embedding_bag", (TABLE, IDS, OFFSETS, False, 0, True, None))
GRADIENT = Op("aten::_embedding_bag_backward", (Tensor((100, 16), "float32"), IDS, OFFSETS))
UPDATE = Op("aten::add_", (TABLE, Tensor((1000, 16), "float32", layout="sparse_coo")), {"alpha": -0.1})


def test_gradient_and_update_have_the_ids_of_their_lookup():
    seen = Indices(op=0, rows=1000, count=400, unique=20, bags=100, reuse=(0, 0, 0, 0, 20))
    assert spread_of_ids([LOOKUP, GRADIENT, UPDATE], [seen]) == {0: seen, 1: seen, 2: seen}


def test_ids_nobody_counted_are_spread_evenly():
    found = spread_of_ids([LOOKUP, GRADIENT], [])
    assert (found[0].count, found[0].rows) == (400, 1000)
    assert 320 < found[0].unique < 340  # 1000 (1 - exp(-0.4))
    assert found[1] is found[0]


def test_an_update_of_another_table_has_none():
    other = Tensor((50, 16), "float32", storage=7)
    assert 1 not in spread_of_ids([LOOKUP, Op("aten::add_", (other, other))], [])


def test_without_storages_a_table_is_known_by_its_shape():
    table, ids = Tensor((1000, 16), "float32"), Tensor((400,), "int64")
    update = Op("aten::add_", (table, Tensor((1000, 16), "float32", layout="sparse_coo")))
    found = spread_of_ids([Op("aten::_embedding_bag", (table, ids)), update], [])
    assert found[1] is found[0] and found[1].count == 400
