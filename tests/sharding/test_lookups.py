"""What lookups cost as the calls that PyTorch makes of them."""

import numpy as np
import pytest

from foretrace.platform.platform import Platform
from foretrace.sharding.linear_models import price_tbe
from foretrace.sharding.lookups import lookup_calls, lookup_graph, price_lookups
from foretrace.sharding.options import SHARDING_TYPES, Ranks
from foretrace.sharding.shards import Shards
from foretrace.sharding.tables import Table

RANKS = Ranks(world=2, batch=2048)


def shards(kind="table_wise", **told):
    table = Table(**{"name": "t", "rows": 100_000, "dim": 64, "pooling": 8, **told})
    return Shards.of([SHARDING_TYPES[kind].shard(table, RANKS, 1 if kind == "table_wise" else 2)])


@pytest.mark.parametrize(
    ("kind", "sequence", "calls"),
    [
        ("table_wise", False, ["_embedding_bag", "_embedding_bag_backward", "add_"]),
        ("data_parallel", False, ["_embedding_bag", "_embedding_bag_backward"]),
        ("table_wise", True, ["embedding", "add_"]),
        ("data_parallel", True, ["embedding", "embedding_dense_backward"]),
    ],
)
def test_sums_and_rows_are_looked_up_by_calls_of_their_own(kind, sequence, calls):
    some = shards(kind, sequence=sequence)
    assert [op.name.removeprefix("aten::") for op in lookup_calls(some, 0)] == calls
    assert (price_lookups(some, Platform.named("h200")).typical > 0).all()


def test_an_update_depends_on_the_rows_that_were_hit_not_on_those_there_are():
    few, many = (
        price_lookups(shards(rows=rows, optimizer="rowwise_adagrad"), Platform.named("h200")).typical.sum()
        for rows in (1_000_000, 100_000_000)
    )
    assert many < 2 * few


def test_calls_of_all_pieces_come_phase_by_phase_with_what_is_known_of_their_ids():
    one = shards()
    both = one.fused(np.array([0]), 1).select(np.array([0, 0]))
    graph, owner, phase = lookup_graph(both)
    assert [op.name for op in graph.ops][::2] == ["aten::_embedding_bag", "aten::_embedding_bag_backward", "aten::add_"]
    assert owner.tolist() == [0, 1] * 3
    assert phase.tolist() == [0, 0, 1, 1, 1, 1]
    assert {known.count for known in graph.indices} == {8 * 2 * 2048}


@pytest.mark.parametrize(
    ("optimizer", "priced", "times"),
    [
        ("rowwise_adagrad", price_lookups, 4),
        ("adam", price_lookups, 4),
        ("sgd", price_lookups, 1),
        ("adam", price_tbe, 1),
    ],
)
def test_a_row_that_is_hit_often_holds_up_what_adds_up_gradients_before_the_update(optimizer, priced, times):
    where = Platform.named("h200")
    even, skewed = (
        priced(shards(optimizer=optimizer, zipf=zipf), where.device if priced is price_tbe else where).typical[0, 1]
        for zipf in (0.0, 1.1)
    )
    assert skewed > times * even if times > 1 else skewed < 1.2 * even
