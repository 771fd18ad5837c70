"""What lookups cost as the calls that PyTorch makes of them."""

import pytest

from foretrace.platform.platform import Platform
from foretrace.sharding.kinds import KINDS
from foretrace.sharding.lookups import calls_of, price
from foretrace.sharding.pieces import Pieces
from foretrace.sharding.ranks import Ranks
from foretrace.sharding.tables import Table

RANKS = Ranks(world=2, batch=2048)


def pieces(kind="table_wise", **told):
    table = Table(**{"name": "t", "rows": 100_000, "dim": 64, "pooling": 8, **told})
    return Pieces.of([KINDS[kind].piece(table, RANKS, 1 if kind == "table_wise" else 2)])


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
    some = pieces(kind, sequence=sequence)
    assert [op.name.removeprefix("aten::") for op in calls_of(some, 0)] == calls
    assert (price(some, Platform.named("h200")).typical > 0).all()


def test_an_update_depends_on_the_rows_that_were_hit_not_on_those_there_are():
    few, many = (
        price(pieces(rows=rows, optimizer="rowwise_adagrad"), Platform.named("h200")).typical.sum()
        for rows in (1_000_000, 100_000_000)
    )
    assert many < 2 * few
