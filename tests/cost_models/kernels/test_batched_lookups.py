"""Times of FBGEMM's table-batched lookups."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.cost_models.kernels.batched_lookups import batched_lookup_us
from foretrace.cost_models.kernels.families.lookups import batched_sizes, index_statistics
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.cost_models.kernels.roofline import EXTRAPOLATED
from foretrace.graph import Graph, Indices, Op, OpTable, Tensor
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform

TABLES, EXAMPLES, DIM, ROWS, POOLING = 10, 4096, 128, 100_000, 3
FORWARD = "fbgemm::split_embedding_codegen_forward_unweighted_pt2_wrapper"
BACKWARD = "fbgemm::split_embedding_backward_codegen_{}_unweighted_pt2_wrapper"


def lookup(rows: int = ROWS) -> Op:
    """A lookup in all tables."""
    weights = Tensor((TABLES * rows * DIM,), "float32", "cuda:0", storage=1)
    ids = Tensor((TABLES * EXAMPLES * POOLING,), "int64", "cuda:0", storage=2)
    offsets = Tensor((TABLES * EXAMPLES + 1,), "int64", "cuda:0", storage=3)
    dims, cumulated = (Tensor((TABLES + 1,), dtype, "cuda:0", storage=4) for dtype in ("int32", "int64"))
    made = Tensor((EXAMPLES, TABLES * DIM), "float32", "cuda:0", storage=5)
    return Op(FORWARD, (weights, dims, TABLES * DIM, DIM, cumulated, ids, offsets, 0), outputs=(made,))


def backward(optimizer: str, rows: int = ROWS) -> Op:
    """Its backward."""
    (made,) = lookup(rows).produced
    return Op(BACKWARD.format(optimizer), (made, *lookup(rows).args))


def test_sizes_are_found_among_arguments_in_any_order():
    sizes = batched_sizes(lookup())
    assert sizes is not None and (sizes.rows, sizes.dim, sizes.ids.numel) == (
        TABLES * ROWS,
        DIM,
        TABLES * EXAMPLES * POOLING,
    )
    assert batched_sizes(backward("sgd")) == sizes
    assert batched_sizes(Op(FORWARD, (Tensor((4,), "float32"),))) is None


def test_a_lookup_takes_as_long_as_its_rows_and_not_as_its_tables():
    def us(rows: int) -> float:
        ops = [lookup(rows), backward("sgd", rows)]
        return float(
            price_kernels(Graph(OpTable.of(ops)), np.arange(2, dtype=np.int32), Platform.named("h200")).typical.sum()
        )

    assert us(10_000_000) < 1.2 * us(1_000_000)


def test_an_optimizer_with_state_takes_longer():
    statistics = index_statistics([lookup()], [])[0]
    sgd, rowwise, adam = (
        batched_lookup_us(backward(name), statistics, Device.named("h100")) or 0.0
        for name in ("sgd", "rowwise_adagrad", "adam")
    )
    assert sgd < rowwise < 1.1 * sgd < adam


def test_published_times_of_an_h100_are_met():
    # 1,048,570 ids of 350,280 rows, 128 numbers wide, not pooled: 0.345 ms, and 0.614 backward with SGD.
    count, rows = 1_048_570, 16_777_210
    weights = Tensor((rows * DIM,), "float32", "cuda:0", storage=1)
    ids, offsets = (Tensor((count + more,), "int64", "cuda:0", storage=2 + more) for more in (0, 1))
    made = Tensor((count, DIM), "float32", "cuda:0", storage=5)
    forward = Op(FORWARD.replace("embedding_", "embedding_nobag_"), (weights, ids, offsets), outputs=(made,))
    update = Op(BACKWARD.format("sgd").replace("embedding_", "embedding_nobag_"), (made, weights, ids, offsets))
    known = Indices(0, rows, count, 350_280, count, (200_000, 100_000, 50_280))
    us = [batched_lookup_us(op, known, Device.named("h100")) for op in (forward, update)]
    assert us == [pytest.approx(345, rel=0.02), pytest.approx(614, rel=0.02)]


def test_statistics_of_each_table_are_added_up():
    each = [Indices(0, ROWS, 100, 40, 50, (10, 30)) for _ in range(TABLES)]
    found = index_statistics([lookup(), backward("sgd")], each)
    assert found[0].unique == 40 * TABLES and found[1] == found[0]


def test_times_beyond_the_published_ones_are_marked_as_extrapolated():
    costs = price_kernels(Graph(OpTable.of([lookup()])), np.arange(1, dtype=np.int32), Platform.named("h200"))
    assert costs.source.tolist() == [EXTRAPOLATED] and costs.low[0] < costs.typical[0] < costs.high[0]
