"""Tables from a step that was recorded or sketched."""

from dataclasses import replace

import pytest

from foretrace.graph import ForetraceError, Graph, Indices, Op, OpTable, Storage, Tensor
from foretrace.sharding.training_step import batch_of_graph, tables_of_graph


def lookup(storage, rows, dim, count, bags, module=""):
    table, ids, offsets = (
        Tensor((rows, dim), "float32", storage=storage),
        Tensor((count,), "int64"),
        Tensor((bags,), "int64"),
    )
    return Op("aten::_embedding_bag", (table, ids, offsets), module=module)


def test_each_table_is_found_once_with_its_pooling_and_name():
    ops = [lookup(1, 1000, 16, 640, 64, "DLRM.tables.0"), lookup(2, 50, 32, 64, 64, "DLRM.tables.1"), Op("aten::relu"),
           lookup(1, 1000, 16, 640, 64, "DLRM.tables.0")]  # fmt: skip
    graph = Graph(OpTable.of(ops))
    assert [(t.name, t.rows, t.dim, t.pooling) for t in tables_of_graph(graph)] == [
        ("DLRM.tables.0", 1000, 16, 10.0), ("DLRM.tables.1", 50, 32, 1.0)
    ]  # fmt: skip
    assert [table.features for table in tables_of_graph(graph)] == [2, 1]
    assert batch_of_graph(graph) == 64


def test_bags_of_several_features_are_counted_by_samples():
    ops = [lookup(1, 1000, 16, 640, 64), lookup(2, 50, 32, 64, 64), lookup(3, 50, 32, 384, 192)]
    shared = tables_of_graph(Graph(OpTable.of(ops)))[2]
    assert (shared.features, shared.pooling, shared.ids) == (3, 2.0, 6.0)


def test_lookups_made_again_in_the_backward_are_no_more_features():
    first = lookup(1, 1000, 16, 640, 64)
    (table,) = tables_of_graph(Graph(OpTable.of([first, replace(first, phase="backward")])))
    assert table.features == 1


def test_what_was_seen_of_ids_becomes_an_exponent():
    even = Indices(op=0, rows=10_000, count=5000, unique=3935, bags=100, reuse=(3000,))
    skewed = Indices(op=1, rows=10_000, count=5000, unique=900, bags=100, reuse=(500,))
    graph = Graph(
        OpTable.of([lookup(1, 10_000, 16, 5000, 100), lookup(2, 10_000, 16, 5000, 100)]), indices=[even, skewed]
    )
    first, second = tables_of_graph(graph)
    assert first.zipf == 0.0
    assert second.zipf > 0.8


def test_tables_of_one_module_get_names_of_their_own():
    names = [t.name for t in tables_of_graph(Graph(OpTable.of([lookup(n, 10, 4, 8, 8, "Model") for n in range(3)])))]
    assert len(set(names)) == 3


def test_a_step_without_lookups_is_refused():
    with pytest.raises(ForetraceError, match="looks up no embedding tables"):
        tables_of_graph(Graph(OpTable.of([Op("aten::relu")])))


def test_rows_that_nobody_adds_up_are_a_sequence():
    words, ids = Tensor((1000, 16), "float32", storage=1), Tensor((64, 20), "int64")
    rows = Op("aten::embedding", (words, ids), module="words")
    for ops in ([rows], [rows, lookup(2, 50, 32, 64, 64)]):
        graph = Graph(OpTable.of(ops))
        table = tables_of_graph(graph)[0]
        assert (table.pooling, table.sequence, batch_of_graph(graph)) == (20.0, True, 64)


@pytest.mark.parametrize(
    ("shapes", "optimizer"),
    [([], "sgd"), ([(1000,)], "rowwise_adagrad"), ([(1000, 16)], "adagrad"), ([(1000, 16)] * 2, "adam")],
)
def test_what_the_optimizer_keeps_of_a_table_tells_which_it_is(shapes, optimizer):
    look = lookup(1, 1000, 16, 640, 64)
    weight, gradient = look.tensors[0], Tensor((1000, 16), "float32", storage=2)
    kept = [Tensor(shape, "float32", storage=3 + place) for place, shape in enumerate(shapes)]
    others = [Tensor((16, 16), "float32", storage=10), Tensor((16, 16), "float32", storage=11)]
    lists = [[weight, others[0]], [gradient, others[1]], *([state, others[1]] for state in kept)]
    update = Op("aten::_foreach_add_", tuple(lists), phase="optimizer")
    born = {1: -1, 2: 0, 10: -1, 11: 0} | {state.storage: -1 for state in kept}
    storages = {number: Storage(number, 64, "cuda", birth) for number, birth in born.items()}
    (table,) = tables_of_graph(Graph(OpTable.of([look, update]), storages=storages))
    assert table.optimizer == optimizer
