"""Costs of plans: the slowest rank, communication, memory."""

from dataclasses import replace

import numpy as np
import pytest

from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.sharding.costing import Communication
from foretrace.sharding.lookups import KERNELS, Single
from foretrace.sharding.options import SHARDING_TYPES, Ranks
from foretrace.sharding.plan import Placement
from foretrace.sharding.search.state import LOAD, RECEIVED, SENT, OptionCosts
from foretrace.sharding.shards import Shards
from foretrace.sharding.tables import Table
from tests.sharding.simple import costing, some_tables


def whole(*ranks):
    return tuple(Placement("table_wise", (rank,)) for rank in ranks)


def test_the_slowest_rank_decides():
    tables = [Table(f"t{n}", 1000, 64, pooling=pooling) for n, pooling in enumerate((1, 1, 4))]
    cost = costing(tables, world=2)
    uneven, even = cost.estimate(whole(0, 1, 1)), cost.estimate(whole(0, 0, 1))
    assert uneven.lookups.tolist() == pytest.approx([3 * 512 * 64 / 1e3, 3 * 5 * 512 * 64 / 1e3])
    assert even.lookups.max() < uneven.lookups.max()
    assert even.step < uneven.step


def test_a_range_lies_around_the_step():
    found = costing(some_tables(6), world=2).estimate(whole(0, 1, 0, 1, 0, 1))
    assert found.low < found.step < found.high


def test_what_is_sent_in_fewer_bytes_takes_less():
    tables = some_tables(8)
    plan = whole(*(n % 4 for n in range(8)))
    wide = costing(tables, batch=8192).estimate(plan)
    narrow = costing(tables, batch=8192, sent_as="bf16").estimate(plan)
    assert narrow.communication["pooled"] < wide.communication["pooled"]
    assert narrow.step < wide.step


@pytest.mark.parametrize("sent_as", ["fp32", "bf16", "int8"])
def test_lookups_and_exchange_add_up_to_the_step(sent_as):
    found = costing(some_tables(4), world=2, sent_as=sent_as).estimate(whole(0, 1, 0, 1))
    assert ("conversion" in found.communication) == (sent_as != "fp32")
    assert found.slowest + sum(found.communication.values()) == pytest.approx(found.step)


def test_each_way_exchanges_what_it_must():
    table = Table("t", 100_000, 64, pooling=4)
    said = {
        "table_wise": ((0,), {"ids", "pooled"}),
        "column_wise": ((0, 5), {"ids", "pooled"}),
        "row_wise": (tuple(range(16)), {"ids", "sums"}),
        "table_row_wise": (tuple(range(8, 16)), {"ids", "node sums", "across nodes"}),
        "data_parallel": (tuple(range(16)), {"copies"}),
    }
    cost = costing([table], world=16)
    for kind, (ranks, exchanged) in said.items():
        assert set(cost.estimate((Placement(kind, ranks),)).communication) == exchanged, kind


def test_one_rank_exchanges_nothing():
    found = costing([Table("t", 1000, 64)], world=1, sent_as="bf16").estimate(whole(0))
    assert found.communication == {}
    assert found.sent.tolist() == [0.0]


def test_what_a_rank_makes_for_its_own_samples_does_not_leave_it():
    cost = costing([Table("t", 100_000, 64)], world=16, batch=256)
    made = 16 * 256 * 64 * 4
    for kind, ranks in (("table_wise", (3,)), ("row_wise", range(16)), ("table_row_wise", range(8, 16))):
        sent = cost.estimate((Placement(kind, tuple(ranks)),)).sent
        assert sent.max() == made * 15 / 16, kind
        assert np.count_nonzero(sent) == len(ranks)


@pytest.mark.parametrize("kind", ["table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel"])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_table_of_three_features_is_three_tables_that_share_their_rows(kind, sequence):
    one = Table("t", 100_000, 64, pooling=4, sequence=sequence)
    ranks = {"table_wise": (0,), "column_wise": (0, 5), "table_row_wise": tuple(range(8))}.get(kind, tuple(range(16)))
    shared = costing([replace(one, features=3)], world=16)
    alike = costing([replace(one, name=f"t{n}") for n in range(3)], world=16)
    found, apart = shared.estimate((Placement(kind, ranks),)), alike.estimate((Placement(kind, ranks),) * 3)
    assert found.lookups == pytest.approx(apart.lookups)
    assert found.sent == pytest.approx(apart.sent)
    for what in {*found.communication} - {"copies"}:
        assert found.communication[what] == pytest.approx(apart.communication[what]), what
    weights = (
        SHARDING_TYPES[kind].shard(one, shared.ranks, len(ranks)).rows * 64 * 4 / (2 if kind == "column_wise" else 1)
    )
    less = 2 * weights * (2 if kind == "data_parallel" else 1)
    assert apart.memory[0] - found.memory[0] == pytest.approx(less)


def test_sums_of_costs_count_features_as_the_models_do():
    tables = [Table("t", 100_000, 64, pooling=4, features=3), Table("u", 100_000, 64, pooling=4)]
    options = OptionCosts.of(costing(tables, world=4), hbm_budget=1e12, every=True)
    whole_ones = options.added[:2]
    for column in (LOAD, SENT, RECEIVED):
        assert whole_ones[0, column] == pytest.approx(3 * whole_ones[1, column])
    by_rows = {
        option.table: row for row, option in enumerate(options.options) if option.option.sharding_type == "row_wise"
    }
    assert options.shared[by_rows[0]] == pytest.approx(3 * options.shared[by_rows[1]])


def test_memory_holds_weights_state_and_what_a_step_makes():
    plain, adam = Table("t", 10**6, 64), Table("t", 10**6, 64, optimizer="adam")
    less, more = (costing([table], world=1).estimate(whole(0)).memory[0] for table in (plain, adam))
    assert less > plain.nbytes
    assert more - less == pytest.approx(2 * plain.nbytes)


def test_ids_hide_behind_the_dense_part():
    tables = some_tables(4)
    cost = costing(tables, world=2)
    hidden = type(cost)(tables, cost.ranks, cost.kernels, cost.communication, dense_us=1e4)
    plan = whole(0, 1, 0, 1)
    assert "ids" in cost.estimate(plan).communication
    assert "ids" not in hidden.estimate(plan).communication


@pytest.mark.parametrize("kernels", KERNELS)
def test_all_kernels_price_more_work_higher(kernels):
    light = [Table("a", 100_000, 64, pooling=2), Table("b", 100_000, 128, pooling=2)]
    heavy = [Table("a", 100_000, 64, pooling=40), Table("b", 100_000, 128, pooling=40)]
    less, more = (
        costing(t, world=2, batch=4096, kernels=KERNELS[kernels]).estimate(whole(0, 1)) for t in (light, heavy)
    )
    assert np.all(less.lookups < more.lookups)
    assert less.low < less.step < less.high


def test_tables_with_rows_as_long_cost_less_together_than_alone():
    tables = [Table(f"t{n}", 50_000, 64, pooling=2) for n in range(16)]
    fused = costing(tables, world=1, kernels=KERNELS["fused"]).estimate(whole(*[0] * 16))
    single = costing(tables, world=1, kernels=KERNELS["single"]).estimate(whole(*[0] * 16))
    assert fused.lookups[0] < 0.5 * single.lookups[0]


def test_a_cpu_does_its_calls_and_its_kernels_one_after_the_other():
    h200 = Platform.named("h200")
    cpu = replace(h200, device=replace(h200.device, kind="cpu"))
    shards = Shards.of([SHARDING_TYPES["table_wise"].shard(Table("t", 50_000, 64, pooling=20), Ranks(2), 1)])
    gpu_us, cpu_us = (Single(where).marginal(shards, 0.0) for where in (h200, cpu))
    alone = Single(h200).separate(shards).typical
    assert np.all(gpu_us >= alone)
    assert np.all(cpu_us > gpu_us)
    held = Single(cpu).of_ranks(shards, cpu_us, np.zeros(1, np.int64), 1)
    assert held.typical == pytest.approx(cpu_us)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_all_optimizers_and_dtypes_have_a_price(optimizer, dtype):
    tables = [Table("t", 100_000, 64, pooling=10, dtype=dtype, optimizer=optimizer)]
    for kind, ranks in (("table_wise", (0,)), ("data_parallel", (0, 1))):
        found = costing(tables, world=2, kernels=KERNELS["fused"]).estimate((Placement(kind, ranks),))
        assert found.lookups.max() > 1


def test_ranks_are_counted_by_node():
    assert list(Ranks(12, per_node=8).of_node(1)) == [8, 9, 10, 11]


def in_a_node(dim, batch=1024):
    """A table of so many columns by the rows of the second of two nodes."""
    cost = costing([Table("t", 100_000, dim, pooling=4)], world=16, batch=batch)
    return cost.estimate((Placement("table_row_wise", tuple(range(8, 16))),))


def test_longer_rows_take_longer_inside_and_across_nodes():
    short, long = in_a_node(64, batch=65536), in_a_node(256, batch=65536)
    assert short.communication["node sums"] < long.communication["node sums"]
    assert short.communication["across nodes"] < long.communication["across nodes"]
    assert short.step < long.step


def test_the_ranks_of_the_other_node_look_up_nothing():
    lookups = in_a_node(64).lookups
    assert np.all(lookups[:8] == 0)
    assert np.all(lookups[8:] > 0)


def test_sums_inside_a_node_are_the_sums_of_a_job_of_one_node():
    node = costing([Table("t", 100_000, 64, pooling=4)], world=8, batch=2048)
    alone = node.estimate((Placement("row_wise", tuple(range(8))),))
    assert in_a_node(64).communication["node sums"] == pytest.approx(alone.communication["sums"])


def test_a_sequence_sends_a_row_for_each_id():
    sums, rows = (Table("t", 100_000, 64, pooling=4, sequence=sequence) for sequence in (False, True))
    less, more = (costing([table], world=2).estimate(whole(0)) for table in (sums, rows))
    assert more.sent[0] == 4 * less.sent[0]


def test_rows_of_a_sequence_go_straight_to_their_samples():
    cost = costing([Table("t", 100_000, 64, pooling=4, sequence=True)], world=16)
    for kind, ranks in (("row_wise", range(16)), ("table_row_wise", range(8))):
        found = cost.estimate((Placement(kind, tuple(ranks)),))
        assert set(found.communication) == {"ids", "pooled"}
        assert found.sent.sum() == 15 / 16 * 16 * 256 * 4 * 64 * 4


def test_sequences_are_not_looked_up_together_with_sums():
    tables = [Table(f"t{n}", 50_000, 64, pooling=4, sequence=n == 1) for n in range(2)]
    shards, _ = costing(tables, world=1).shards_of(whole(0, 0))
    assert len(set(shards.call_key.tolist())) == 2


H100 = Fabric.named("h100-8x")


def test_sizes_in_between_are_near_the_fabrics_own_prices():
    communication = Communication(H100, Ranks(8))
    for size in (3_000, 5_000_000, 300_000_000):
        assert communication.us("ids", float(size))[1] == pytest.approx(
            price_collective(H100, "all_to_all", size, range(8)).typical, rel=0.1
        )


def test_embeddings_go_out_and_gradients_come_back():
    communication = Communication(H100, Ranks(8))
    assert communication.us("pooled", 2.0**24) == pytest.approx(2 * communication.us("ids", 2.0**24))


def test_nothing_takes_no_time():
    assert Communication(H100, Ranks(8)).us("pooled", 0.0).tolist() == [0.0, 0.0, 0.0]
    assert Communication(H100, Ranks(1)).us("pooled", 2.0**24).tolist() == [0.0, 0.0, 0.0]


def test_a_line_follows_the_times_near_a_size():
    communication = Communication(H100, Ranks(8))
    line = communication.linear("pooled", 2.0**26)
    sizes = np.array([0.8, 1.0, 1.25]) * 2.0**26
    assert line.fixed + line.per_byte * sizes == pytest.approx(communication.us("pooled", sizes)[1], rel=0.05)
