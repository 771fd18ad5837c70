"""What each rank does in a step under a plan."""

from collections import Counter

import pytest

import dlrm
from foretrace.graph import ForetraceError, Graph, Op, OpTable
from foretrace.record.sketch import sketch
from foretrace.sharding.lookups import Fused, Single
from foretrace.sharding.plan import Placement
from foretrace.sharding.training_step import batch_of_graph, steps_of_ranks, tables_of_graph
from tests.sharding.simple import costing

DIM, TABLES, BATCH = 16, 4, 128


@pytest.fixture(scope="module")
def step() -> Graph:
    return sketch(lambda: dlrm.make_step("tiny", device="cuda"), device="cuda")


def costs(step, world=2, kernels=Single, **ranks):
    return costing(tables_of_graph(step), world=world, batch=batch_of_graph(step), kernels=kernels, **ranks)


def whole(*owners):
    return tuple(Placement("table_wise", (owner,)) for owner in owners)


def exchanged(graph):
    return [(c.kind, c.group, c.nbytes) for c in graph.collectives if c.group != "data"]


def lookups(graph):
    return [op for op in graph.ops if op.name == "aten::_embedding_bag"]


def test_each_rank_looks_up_its_own_tables_for_everybody(step):
    ranks = steps_of_ranks(step, costs(step), whole(0, 1, 1, 1))
    assert [len(lookups(rank.graph)) for rank in ranks] == [1, 3]
    assert {op.produced[0].shape for rank in ranks for op in lookups(rank.graph)} == {(2 * BATCH, DIM)}
    assert [[len(rows) for rows in rank.lookups] for rank in ranks] == [[1, 2], [3, 6]]


def test_tables_in_one_tensor_are_one_call(step):
    (first, _) = steps_of_ranks(step, costs(step, kernels=Fused), whole(0, 0, 0, 1))
    (call,) = lookups(first.graph)
    assert call.tensors[0].shape == (30_000, DIM)


def test_nothing_else_of_the_step_is_lost(step):
    made = steps_of_ranks(step, costs(step), whole(0, 1, 0, 1))[0].graph
    for name in ("aten::addmm", "aten::bmm", "aten::relu", "aten::mse_loss"):
        assert Counter(op.name for op in made.ops)[name] == Counter(op.name for op in step.ops)[name]
    tables = {op.tensors[0].storage for op in lookups(step)}
    assert not any(tables & {t.storage for t in op.tensors} for op in made.ops)


def test_embeddings_go_out_and_their_gradients_come_back(step):
    ranks = steps_of_ranks(step, costs(step), whole(0, 1, 1, 1))
    kinds = [[kind for kind, _, _ in exchanged(rank.graph)] for rank in ranks]
    assert kinds == [["all_to_all"] * 3] * 2
    sent = [[nbytes for _, group, nbytes in exchanged(rank.graph) if group == "tables"] for rank in ranks]
    assert sent == [[2 * BATCH * DIM * 4] * 2, [3 * 2 * BATCH * DIM * 4] * 2]


def test_other_ways_exchange_sums_and_gradients_of_copies(step):
    plan = (Placement("row_wise", (0, 1)), Placement("data_parallel", (0, 1)), *whole(0, 1))
    (first, _) = steps_of_ranks(step, costs(step), plan)
    found = [(kind, nbytes) for kind, group, nbytes in exchanged(first.graph) if group == "tables"]
    out = 2 * BATCH * DIM * 4
    assert found == [
        ("all_to_all", out), ("reduce_scatter", out), ("all_to_all", out), ("all_gather", out),
        ("all_reduce", 10_000 * DIM * 4),
    ]  # fmt: skip


def test_sums_of_a_node_are_ready_before_they_cross_nodes(step):
    plan = (Placement("table_row_wise", (0, 1)), *whole(1, 2, 3))
    (first, *_) = steps_of_ranks(step, costs(step, world=4, per_node=2), plan)
    found = [(group, kind) for kind, group, _ in exchanged(first.graph) if "node" in group]
    node, across = "node 0", "across nodes 0"
    assert found == [(node, "reduce_scatter"), (across, "all_to_all"), (across, "all_to_all"), (node, "all_gather")]
    begun, crossed = (
        next(c.op for c in first.graph.collectives if (c.group, c.kind) == one) for one in (found[0], found[1])
    )
    assert "c10d::wait" in [op.name for op in list(first.graph.ops)[begun:crossed]]


def test_a_rank_without_tables_takes_part_in_all_exchanges(step):
    ranks = steps_of_ranks(step, costs(step, world=4), whole(0, 0, 1, 2))
    kinds = {tuple((c.kind, c.group) for c in rank.graph.collectives) for rank in ranks}
    assert len(kinds) == 1
    assert ranks[3].lookups == ([], [])


def test_what_is_sent_in_fewer_bytes_is_made_narrower_and_wide_again(step):
    (first, _) = steps_of_ranks(step, costs(step, sent_as="bf16"), whole(0, 1, 0, 1))
    sent = (2 * 2 * BATCH * DIM,)  # two tables, two batches
    copies = [op.produced[0] for op in first.graph.ops if op.name == "aten::_to_copy"]
    assert [made.dtype for made in copies if made.shape == sent] == ["bfloat16", "float32"] * 2


def test_embeddings_are_waited_for_when_something_reads_them(step):
    (first, _) = steps_of_ranks(step, costs(step), whole(0, 1, 0, 1))
    ops = [op.name for op in first.graph.ops]
    out = next(c.op for c in first.graph.collectives if c.group == "tables")
    assert "aten::stack" not in ops[: ops.index("c10d::wait", out)]
    assert ops.index("c10d::wait", out) < ops.index("aten::stack")


def test_a_step_that_trains_no_tables_is_refused(step):
    forward = Graph(OpTable.of([op for op in step.ops if op.phase == "forward"]), source="half")
    with pytest.raises(ForetraceError, match="half does not train its tables"):
        steps_of_ranks(forward, costs(step), whole(0, 1, 0, 1))


def test_a_step_of_several_ranks_is_refused(step):
    ops = [*step.ops, Op("c10d::allreduce_")]
    with pytest.raises(ForetraceError, match="distributed already"):
        steps_of_ranks(Graph(OpTable.of(ops), world=2), costs(step), whole(0, 1, 0, 1))
