"""The step around the tables: its tables, its dense part, and the job that a plan makes of it."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import dlrm
from foretrace.api import predict
from foretrace.graph import ForetraceError, Graph, Indices, Op, OpTable, Storage, Tensor
from foretrace.platform.platform import Platform
from foretrace.platform.registry import load_platform
from foretrace.prediction.rank_models import PricedRank
from foretrace.record.sketch.sketch import sketch
from foretrace.sharding.lookups import Fused, Single
from foretrace.sharding.plan import Placement
from foretrace.sharding.planner import shard
from foretrace.sharding.training_step import (
    _lookup_times,
    _with_lookups,
    batch_of_graph,
    dense_bytes,
    dense_us,
    simulate_plan,
    steps_of_ranks,
    tables_of_graph,
)
from foretrace.transforms.parallel.hybrid import tables_on_ranks
from tests.narrowing import present
from tests.sharding.simple import costing


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


torch = pytest.importorskip("torch")

BATCH, WIDTH, DIM, POOLING = 64, 256, 32, 5


def made(rows, sparse, optimizer):
    """A step with a table of so many rows and a dense layer."""
    table = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=sparse)
    model = torch.nn.Sequential(table, torch.nn.Linear(DIM, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
    update = optimizer(model.parameters())
    ids = torch.randint(rows, (BATCH, POOLING))

    def step():
        update.zero_grad()
        model(ids).sum().backward()
        update.step()

    return step


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1)


@pytest.mark.parametrize(("sparse", "optimizer"), [(True, sgd), (False, sgd), (False, adam)])
def test_tables_their_gradients_and_what_is_kept_of_them_are_no_part_of_it(sparse, optimizer):
    few, many = (present(dense_bytes(sketch(partial(made, rows, sparse, optimizer)))) for rows in (1000, 100_000))
    weights = (DIM + 2) * WIDTH * 4
    assert few == many
    assert few > weights * (4 if optimizer is adam else 2)
    assert few < weights * 4 + 10 * BATCH * WIDTH * 4


def test_states_of_sparse_adam_are_those_of_the_tables():
    def build(dense):
        table = torch.nn.EmbeddingBag(1000, DIM, mode="sum", sparse=True)
        model = torch.nn.Sequential(table, torch.nn.Linear(DIM, WIDTH), torch.nn.Linear(WIDTH, 1)).cuda()
        updates = [torch.optim.Adam(model[1:].parameters()), torch.optim.SparseAdam(table.parameters())][: 2 - dense]
        ids = torch.randint(1000, (BATCH, POOLING), device="cuda")

        def step():
            model(ids).sum().backward()
            for update in updates:
                update.step()
                update.zero_grad()

        return step

    with_updates, without = (sketch(partial(build, dense), device="cuda") for dense in (False, True))
    assert [table.optimizer for table in tables_of_graph(with_updates)] == ["adam"]
    where = load_platform("h200")
    assert dense_us(with_updates, where) < 1.1 * dense_us(without, where)


def test_a_step_that_says_nothing_of_memory_has_none_that_is_known():
    assert dense_bytes(Graph(OpTable.of([]))) is None


TINY_DIM, TINY_BATCH = 16, 128


@pytest.fixture(scope="module")
def tiny() -> Graph:
    return sketch(lambda: dlrm.make_step("tiny", device="cuda"), device="cuda")


def costs(tiny, world=2, kernels=Single, **ranks):
    return costing(tables_of_graph(tiny), world=world, batch=batch_of_graph(tiny), kernels=kernels, **ranks)


def whole(*owners):
    return tuple(Placement("table_wise", (owner,)) for owner in owners)


def exchanged(graph):
    return [(c.kind, c.group, c.nbytes) for c in graph.collectives if c.group != "data"]


def lookups(graph):
    return [op for op in graph.ops if op.name == "aten::_embedding_bag"]


def test_each_rank_looks_up_its_own_tables_for_everybody(tiny):
    ranks = steps_of_ranks(tiny, costs(tiny), whole(0, 1, 1, 1))
    assert [len(lookups(rank.graph)) for rank in ranks] == [1, 3]
    assert {op.produced[0].shape for rank in ranks for op in lookups(rank.graph)} == {(2 * TINY_BATCH, TINY_DIM)}
    assert [[len(rows) for rows in rank.lookups] for rank in ranks] == [[1, 2], [3, 6]]


def test_tables_in_one_tensor_are_one_call(tiny):
    (first, _) = steps_of_ranks(tiny, costs(tiny, kernels=Fused), whole(0, 0, 0, 1))
    (call,) = lookups(first.graph)
    assert call.tensors[0].shape == (30_000, TINY_DIM)


def test_nothing_else_of_the_step_is_lost(tiny):
    made = steps_of_ranks(tiny, costs(tiny), whole(0, 1, 0, 1))[0].graph
    for name in ("aten::addmm", "aten::bmm", "aten::relu", "aten::mse_loss"):
        assert Counter(op.name for op in made.ops)[name] == Counter(op.name for op in tiny.ops)[name]
    tables = {op.tensors[0].storage for op in lookups(tiny)}
    assert not any(tables & {t.storage for t in op.tensors} for op in made.ops)


def test_embeddings_go_out_and_their_gradients_come_back(tiny):
    ranks = steps_of_ranks(tiny, costs(tiny), whole(0, 1, 1, 1))
    kinds = [[kind for kind, _, _ in exchanged(rank.graph)] for rank in ranks]
    assert kinds == [["all_to_all"] * 3] * 2
    sent = [[nbytes for _, group, nbytes in exchanged(rank.graph) if group == "tables"] for rank in ranks]
    assert sent == [[2 * TINY_BATCH * TINY_DIM * 4] * 2, [3 * 2 * TINY_BATCH * TINY_DIM * 4] * 2]


def test_other_ways_exchange_sums_and_gradients_of_copies(tiny):
    plan = (Placement("row_wise", (0, 1)), Placement("data_parallel", (0, 1)), *whole(0, 1))
    (first, _) = steps_of_ranks(tiny, costs(tiny), plan)
    found = [(kind, nbytes) for kind, group, nbytes in exchanged(first.graph) if group == "tables"]
    out = 2 * TINY_BATCH * TINY_DIM * 4
    assert found == [
        ("all_to_all", out), ("reduce_scatter", out), ("all_to_all", out), ("all_gather", out),
        ("all_reduce", 10_000 * TINY_DIM * 4),
    ]  # fmt: skip


def test_sums_of_a_node_are_ready_before_they_cross_nodes(tiny):
    plan = (Placement("table_row_wise", (0, 1)), *whole(1, 2, 3))
    (first, *_) = steps_of_ranks(tiny, costs(tiny, world=4, per_node=2), plan)
    found = [(group, kind) for kind, group, _ in exchanged(first.graph) if "node" in group]
    node, across = "node 0", "across nodes 0"
    assert found == [(node, "reduce_scatter"), (across, "all_to_all"), (across, "all_to_all"), (node, "all_gather")]
    begun, crossed = (
        next(c.op for c in first.graph.collectives if (c.group, c.kind) == one) for one in (found[0], found[1])
    )
    assert "c10d::wait" in [op.name for op in list(first.graph.ops)[begun:crossed]]


def test_a_rank_without_tables_takes_part_in_all_exchanges(tiny):
    ranks = steps_of_ranks(tiny, costs(tiny, world=4), whole(0, 0, 1, 2))
    kinds = {tuple((c.kind, c.group) for c in rank.graph.collectives) for rank in ranks}
    assert len(kinds) == 1
    assert ranks[3].lookups == ([], [])


def test_what_is_sent_in_fewer_bytes_is_made_narrower_and_wide_again(tiny):
    (first, _) = steps_of_ranks(tiny, costs(tiny, sent_as="bf16"), whole(0, 1, 0, 1))
    sent = (2 * 2 * TINY_BATCH * TINY_DIM,)  # two tables, two batches
    copies = [op.produced[0] for op in first.graph.ops if op.name == "aten::_to_copy"]
    assert [made.dtype for made in copies if made.shape == sent] == ["bfloat16", "float32"] * 2


def test_embeddings_are_waited_for_when_something_reads_them(tiny):
    (first, _) = steps_of_ranks(tiny, costs(tiny), whole(0, 1, 0, 1))
    ops = [op.name for op in first.graph.ops]
    out = next(c.op for c in first.graph.collectives if c.group == "tables")
    assert "aten::stack" not in ops[: ops.index("c10d::wait", out)]
    assert ops.index("c10d::wait", out) < ops.index("aten::stack")


def test_a_step_that_trains_no_tables_is_refused(tiny):
    forward = Graph(OpTable.of([op for op in tiny.ops if op.phase == "forward"]), source="half")
    with pytest.raises(ForetraceError, match="half does not train its tables"):
        steps_of_ranks(forward, costs(tiny), whole(0, 1, 0, 1))


def test_a_step_of_several_ranks_is_refused(tiny):
    ops = [*tiny.ops, Op("c10d::allreduce_")]
    with pytest.raises(ForetraceError, match="distributed already"):
        steps_of_ranks(Graph(OpTable.of(ops), world=2), costs(tiny), whole(0, 1, 0, 1))


@pytest.fixture(scope="module")
def step() -> Graph:
    return sketch(lambda: dlrm.make_step("default", batch=4096, device="cuda"), device="cuda")


def test_a_plan_of_whole_tables_takes_what_the_parallel_step_takes(step):
    """They call the same kernels; the edit also sorts ids and vectors on the device, by a few copies."""
    owners = [0, 1] * 4
    cost = costs(step, kernels=Single)
    found = simulate_plan(step, cost, whole(*owners))
    platform = Platform.named("h200").having(fabric=cost.communication.fabric)
    other = predict(tables_on_ranks(step, 2, owners), platform, kernels="model")
    assert found.step_ms == pytest.approx(other.step_ms_back_to_back, rel=0.1)
    assert found.low_ms < found.step_ms < found.high_ms


def test_lookups_take_what_the_search_says(step):
    cost, plan = costs(step, kernels=Fused), whole(*[0, 0, 0, 0, 0, 0, 1, 1])
    lookups, estimate = _lookup_times(cost, plan), cost.estimate(plan)
    platform = Platform.named("h200").having(fabric=cost.communication.fabric)
    for number, made in enumerate(steps_of_ranks(step, cost, plan)):
        priced = PricedRank.of(made.graph, None, platform, "model")
        rank = _with_lookups(priced, made, lookups, number, platform.device)
        row = rank.dispatched.rows[rank.step.work.call]
        us = [rank.step.work.typical[np.isin(row, rows)].sum() for rows in made.lookups]
        assert us == pytest.approx([estimate.forward[number], estimate.backward[number]])


def test_an_uneven_plan_takes_longer(step):
    cost = costs(step, kernels=Fused)
    even, uneven = (simulate_plan(step, cost, whole(*[0] * zeros + [1] * (8 - zeros))) for zeros in (4, 7))
    more = cost.estimate(whole(*[0] * 7 + [1])).slowest - cost.estimate(whole(*[0] * 4 + [1] * 4)).slowest
    assert uneven.step_ms - even.step_ms == pytest.approx(more / 1e3, rel=0.25)


def test_the_answer_is_that_of_the_whole_job(step):
    found = shard(step, world=2, seconds=2)
    words = found.to_dict()
    assert found.simulated is not None
    assert words["step_ms"] == found.simulated.step_ms != words["summed_ms"]
    assert words["low_ms"] < words["step_ms"] < words["high_ms"]
    assert any("simulated" in note for note in found.notes)


def test_what_can_not_be_simulated_is_added_up(step):
    forward = Graph(step.ops, source="half")
    forward.world = 2
    found = shard(forward, world=2, seconds=2)
    assert found.simulated is None
    assert found.step_ms == found.estimate.step / 1e3
    assert any("half is distributed already" in note for note in found.notes)
