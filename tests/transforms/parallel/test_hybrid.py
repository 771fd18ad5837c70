from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import dlrm
import dlrm_distributed
from foretrace.graph import ForetraceError, Graph, Indices
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.parallel.hybrid import tables_on_ranks
from foretrace.transforms.parallel.parallelize import parallelize
from tests.transforms.parallel.steps import exchanged, gpt_step


@pytest.fixture(scope="module")
def step() -> Graph:
    return sketch(lambda: dlrm.make_step("tiny", device="cuda"), device="cuda")


def lookups(graph: Graph) -> list[tuple[str, list[tuple[int, ...]]]]:
    named = ("embedding_bag", "sparse_coo", "mm", "index")
    return [(op.name, [t.shape for t in op.tensors]) for op in graph.ops if any(name in op.name for name in named)]


def test_tables_on_ranks_exchange_what_the_distributed_dlrm_exchanges(step: Graph) -> None:
    """DDP also sends its buffers around, at the beginning: what is a buffer, the step of one rank does not tell."""
    ours = tables_on_ranks(step, 2).graphs[0]
    theirs = sketch(lambda: dlrm_distributed.make_step("tiny", device="cuda"), device="cuda", world=2)
    assert exchanged(ours) == [one for one in exchanged(theirs) if one[0] != "broadcast"]
    assert lookups(ours) == lookups(theirs)


def test_each_rank_keeps_and_changes_its_own_tables(step: Graph) -> None:
    job = tables_on_ranks(step, 2, owners=[0, 1, 1, 1])
    kept = [sum(op.name == "aten::_embedding_bag" for op in graph.ops) for graph in job.graphs]
    assert kept == [1, 3]
    changed = [
        sum(op.phase == "optimizer" and op.tensors[0].shape == (10_000, 16) for op in graph.ops) for graph in job.graphs
    ]
    assert changed == kept


def dense_tables() -> Callable[[], None]:
    """A step whose tables have dense gradients, one with as many rows as the batch has samples."""
    device, samples = "cuda" if torch.cuda.is_available() else "cpu", 8
    tables = nn.ModuleList(nn.EmbeddingBag(rows, 4, mode="sum") for rows in (samples, 50)).to(device)
    top = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD([*tables.parameters(), *top.parameters()], lr=0.1)
    ids, offsets = torch.zeros(16, dtype=torch.int64, device=device), torch.arange(0, 16, 2, device=device)

    def step() -> None:
        optimizer.zero_grad()
        top(sum(table(ids, offsets) for table in tables)).square().mean().backward()
        optimizer.step()

    return step


def test_dense_gradients_of_tables_are_shared_by_nobody() -> None:
    job = tables_on_ranks(sketch(dense_tables, device="cuda"), 2)
    weights = 4 * (4 + 1)
    assert [[c.nbytes for c in graph.collectives if c.kind == "all_reduce"] for graph in job.graphs] == [[weights]] * 2
    backward = [next(op for op in graph.ops if op.name == "aten::_embedding_bag_backward") for graph in job.graphs]
    assert [op.produced[0].shape for op in backward] == [(8, 4), (50, 4)]
    assert [op.tensors[0].shape for op in backward] == [(16, 4)] * 2


def test_what_ranks_send_follows_the_tables_they_keep(step: Graph) -> None:
    job = tables_on_ranks(step, 2, owners=[0, 1, 1, 1])
    vectors = [[c.nbytes for c in graph.collectives if c.kind == "all_to_all"][1] for graph in job.graphs]
    assert vectors == [1 * 256 * 16 * 4, 3 * 256 * 16 * 4]


def test_lookups_of_all_batches_hit_more_rows(step: Graph) -> None:
    known = replace(step, indices=[Indices(op=0, rows=10_000, count=512, unique=400, bags=128, reuse=(300, 100))])
    (found,) = tables_on_ranks(known, 2).graphs[0].indices
    assert (found.count, found.bags) == (1024, 256)
    assert 400 < found.unique <= 800


@pytest.mark.parametrize(
    "ways, owners, message",
    [
        (8, None, "4 tables are too few for 8 ranks"),
        (2, [0, 1], "4 tables need an owner each"),
        (2, [0, 1, 2, 0], "owner"),
    ],
)
def test_placements_that_make_no_sense_are_refused(
    step: Graph, ways: int, owners: list[int] | None, message: str
) -> None:
    with pytest.raises(ForetraceError, match=message):
        tables_on_ranks(step, ways, owners)


def test_a_model_without_tables_is_refused() -> None:
    with pytest.raises(ForetraceError, match="looks up no embedding bags"):
        tables_on_ranks(gpt_step(), 2)


@pytest.mark.parametrize("sharded", [False, True])
def test_sparse_gradients_of_data_parallel_ranks_are_refused_and_tables_advised(step: Graph, sharded: bool) -> None:
    with pytest.raises(ForetraceError, match=r"4 sparse gradients.*Add tables") as refused:
        parallelize(step, data=2, sharded=sharded)
    assert "sparse=False" in refused.value.advice
    assert parallelize(step, data=2, tables=True).world == 2
