"""Sharding what a user has at hand."""

import pytest

from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.planning import shard
from foretrace.sharding.tables import Table

TABLE = Tensor((10_000, 64), "float32", "cuda")
IDS, OFFSETS = (Tensor((count,), "int64", "cuda") for count in (4096, 1024))
WIDE, GIVEN, BIAS = (Tensor(shape, "float32", "cuda") for shape in ((1024, 1024), (8192, 1024), (1024,)))
LOOKUP = Op("aten::_embedding_bag", (TABLE, IDS, OFFSETS), outputs=(Tensor((1024, 64), "float32", "cuda"),))
PRODUCT = (BIAS, GIVEN, WIDE)


def test_calls_inside_others_are_counted_once():
    alone = [LOOKUP, Op("aten::addmm", PRODUCT, outputs=(GIVEN,))]
    nested = [
        LOOKUP,
        Op("aten::linear", (GIVEN, WIDE, BIAS), outputs=(GIVEN,)),
        Op("aten::addmm", PRODUCT, outputs=(GIVEN,), parent=1),
    ]
    one, other = (shard(Graph(OpTable.of(ops)), on="h200", world=2, seconds=0.2) for ops in (alone, nested))
    assert one.dense_ms > 0.1
    assert other.dense_ms == pytest.approx(one.dense_ms)


def test_a_search_that_ran_out_of_time_says_so():
    tables = [Table(f"t{n}", rows=10_000 * (n + 1), dim=64, pooling=1 + n % 7) for n in range(40)]
    hurried, patient = (shard(tables, on="h200", world=4, seconds=seconds) for seconds in (1e-9, 60.0))
    assert any("the time ran out" in note for note in hurried.notes)
    assert not any("the time ran out" in note for note in patient.notes)


def test_no_time_at_all_is_refused():
    with pytest.raises(ForetraceError, match="a search can't take nan seconds"):
        shard([Table("t", 100, 64)], world=2, seconds=float("nan"))


def test_ranks_send_the_sums_of_tables_by_rows():
    by_rows = Table("t", rows=10_000_000, dim=64, kinds=("row_wise",))
    found = shard([by_rows], on="h200", world=4, batch=1024)
    assert found.estimate.sent.min() == 4 * 1024 * 64 * 4
