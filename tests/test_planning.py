"""Sharding what a user has at hand."""

import pytest

from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.planning import shard

TABLE, IDS, OFFSETS = Tensor((10_000, 64), "float32", "cuda"), Tensor((4096,), "int64", "cuda"), Tensor((1024,), "int64")
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
