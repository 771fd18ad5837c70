"""All kinds of parallelism combined."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import foretrace as ft
from foretrace.graph import ForetraceError, Job
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.parallel.parallelize import RankMesh, parallelize
from tests.transforms.parallel.steps import gpt_step, told
from tests.transforms.parallel.test_tensor import Block


@pytest.fixture(scope="module")
def job() -> Job:
    return parallelize(gpt_step(), data=4, tensor=2, pipeline=2, microbatches=4)


def test_every_rank_has_a_graph_or_is_like_one_that_has(job: Job) -> None:
    assert job.world == 16
    assert [graph.rank for graph in job.graphs] == [0, 8]
    assert not job.missing
    assert {rank: job.alike[rank] for rank in (1, 7, 9, 15)} == {1: 0, 7: 0, 9: 8, 15: 8}


def test_ranks_are_numbered_as_megatron_numbers_them(job: Job) -> None:
    groups = [{c.group: c.ranks for c in graph.collectives} for graph in job.graphs]
    assert [g["tensor"] for g in groups] == [(0, 1), (8, 9)]
    assert [g["data"] for g in groups] == [(0, 2, 4, 6), (8, 10, 12, 14)]
    assert groups[0]["forward to chunk 1"] == (0, 8)


def test_tensor_ranks_sum_the_activations_of_a_part_of_the_batch(job: Job) -> None:
    part = 2 * 32 * 64 * 4
    sums = {c.nbytes for graph in job.graphs for c in graph.collectives if c.group == "tensor"}
    assert sums == {part, part // 64}  # those of the loss have one number a word


def test_parts_of_a_batch_and_of_its_sequences_go_together() -> None:
    job = parallelize(gpt_step(), data=2, tensor=2, pipeline=2, microbatches=4, sequence=True, overlap=True)
    part = 2 * 32 * 64 * 4
    for graph in job.graphs:
        sizes = {(c.kind, c.nbytes) for c in graph.collectives}
        assert {("all_gather", part), ("reduce_scatter", part)} <= sizes
        assert sum(c.group == "tensor" and graph.ops[c.op].phase == "optimizer" for c in graph.collectives) == 1


def test_gradients_are_shared_after_the_last_part_of_the_batch(job: Job) -> None:
    for graph in job.graphs:
        shared = [c.op for c in graph.collectives if c.group == "data"]
        last_forward = max(row for row, op in enumerate(graph.ops) if op.name == "aten::gelu")
        assert min(shared) > last_forward


def test_no_two_parts_of_the_batch_share_a_tensor(job: Job) -> None:
    """What is put in for data parallel ranks must not be taken for a part of the batch either."""
    for graph in job.graphs:
        shapes: dict[int, set[int]] = {}
        for op in graph.ops:
            for tensor in op.produced:
                shapes.setdefault(tensor.id, set()).add(tensor.storage)
        assert all(len(storages) == 1 for storages in shapes.values())
        buckets = {
            t.storage for op in graph.ops if op.name == "c10d::allreduce_" for t in op.tensors if len(t.shape) == 1
        }
        computed = {t.storage for op in graph.ops if op.name == "aten::addmm" for t in op.produced}
        assert not buckets & computed


def test_all_kinds_of_parallelism_together_can_be_predicted(job: Job) -> None:
    forecast = ft.predict(job, on="h200")
    assert forecast.world == 16
    assert [row.stands_for for row in forecast.ranks] == [8, 8]
    assert forecast.step_ms > 0


def test_more_data_parallel_ranks_take_no_less_time() -> None:
    one, many = (ft.predict(parallelize(gpt_step(), data=n), on="h200").step_ms for n in (2, 64))
    assert many >= 0.98 * one


def test_a_note_says_that_the_job_was_made_from_one_rank(job: Job) -> None:
    assert "made from the step of one rank" in job.graphs[0].notes[-1]


@pytest.mark.parametrize(
    "ways, message",
    [
        ({"data": 0}, "data can't be 0"),
        ({"sharded": True}, "can't be sharded on one rank"),
        ({"data": 2, "sharded": ["nowhere"], "pipeline": 2}, "there is no module 'nowhere'"),
        ({"data": 2, "mixed": True}, "mixed needs sharded weights"),
        ({"data": 2, "overlap": True}, "overlap needs tensor parallel ranks"),
        ({"chunks": 0}, "chunks can't be 0"),
        ({"data": 99_999_999_999}, "data can't be 99999999999"),
        ({"data": 2**19, "tensor": 4}, "a job can't have 2,097,152 ranks"),
        ({"schedule": "zigzag"}, "there is no schedule 'zigzag'"),
        ({"data": 2, "bucket_mb": 0.0}, "bucket_mb can't be 0"),
        ({"data": 4, "experts": 3}, "into groups of 3 for experts"),
        ({"tables": True}, "tables can't be distributed on one rank"),
        ({"data": 2, "tables": True, "tensor": 2}, "can be combined with data parallel only"),
        ({"tensor": 3}, "not divisible by 3"),
        ({"pipeline": 2, "microbatches": 3}, "a batch of 8 can't be split into 3 microbatches"),
    ],
)
def test_what_can_not_be_done_is_refused(ways: dict[str, Any], message: str) -> None:
    with pytest.raises(ForetraceError, match=message):
        parallelize(gpt_step(), **ways)


COUNTS = st.integers(-1, 9)


@settings(max_examples=40)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "data": COUNTS,
            "tensor": COUNTS,
            "pipeline": COUNTS,
            "microbatches": COUNTS,
            "experts": COUNTS,
            "chunks": COUNTS,
            "sharded": st.booleans() | st.just(["GPT.blocks.1"]) | st.just(["nowhere"]),
            "mixed": st.booleans(),
            "zero1": st.booleans(),
            "overlap": st.booleans(),
            "sequence": st.booleans(),
            "tables": st.booleans(),
            "schedule": st.sampled_from(["1f1b", "gpipe", "interleaved", "zigzag"]),
            "bucket_mb": st.sampled_from([25.0, 0.01, math.inf, math.nan, -1.0]),
        },
    )
)
def test_any_wish_is_fulfilled_or_refused_with_advice(ways: dict[str, Any]) -> None:
    try:
        job = parallelize(gpt_step(), **ways)
    except ForetraceError as error:
        assert error.advice
    else:
        assert job.world == ways.get("data", 1) * ways.get("tensor", 1) * ways.get("pipeline", 1)
        assert not job.missing
        for graph in job.graphs:
            assert all(c.nbytes > 0 and graph.rank in c.ranks for c in graph.collectives)


def test_a_group_of_neighbours_shares_tensors() -> None:
    ranks = RankMesh(tensor=4, data=2, pipeline=2)
    assert ranks.group("tensor", 1).ranks == (8, 9, 10, 11)
    assert ranks.group("data", 1).ranks == (8, 12)


def test_a_loaded_job_of_one_rank_is_shared_and_one_of_several_refused() -> None:
    step = gpt_step()
    assert parallelize(Job([step], "run"), data=2).world == 2
    with pytest.raises(ForetraceError, match="run has 2 ranks: it is parallel already"):
        parallelize(Job([step, step], "run"), data=2)


@pytest.mark.parametrize(
    "ways",
    [
        {"data": 4},
        {"data": 4, "sharded": True},
        {"tensor": 2, "sequence": True},
        {"pipeline": 2, "microbatches": 2},
        {"data": 2, "sharded": True, "tensor": 2, "pipeline": 2, "microbatches": 2},
    ],
)
def test_forward_and_backward_alone_are_shared_as_those_of_a_whole_step(ways: dict[str, Any]) -> None:
    def build(update: bool) -> Callable[[], None]:
        with torch.device("cuda"):
            model, batch = nn.Sequential(*(Block() for _ in range(4))), torch.randn(8, 32, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            if update:
                optimizer.step()

        return step

    alone, whole = (parallelize(sketch(partial(build, update), device="cuda"), **ways) for update in (False, True))
    for ours, theirs in zip(alone.graphs, whole.graphs, strict=True):
        calls = [
            [(op.name, [t.shape for t in op.tensors]) for op in graph.ops if op.phase in ("forward", "backward")]
            for graph in (ours, theirs)
        ]
        assert calls[0] == calls[1]
        assert [(c.kind, c.nbytes) for c in ours.collectives] == [(c.kind, c.nbytes) for c in theirs.collectives]
        assert not any(op.name.startswith("foretrace::") for op in ours.ops)


def accumulating(rounds: int, batch: int, updates: int = 1) -> Callable[[], None]:
    """A step that adds gradients up over several batches; or, with as many updates, does not."""
    with torch.device("cuda"):
        model = nn.Sequential(*(Block() for _ in range(4)))
        batches = [torch.randn(batch, 32, 64) for _ in range(rounds)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        for number, batch_of_round in enumerate(batches, 1):
            (model(batch_of_round).square().mean() / rounds).backward()
            if number * updates % rounds == 0:
                optimizer.step()

    return step


@pytest.mark.parametrize(
    "ways", [{}, {"pipeline": 2}, {"pipeline": 2, "schedule": "zb-h1"}, {"pipeline": 2, "data": 2, "tensor": 2}]
)
def test_rounds_of_gradient_accumulation_are_microbatches(ways: dict[str, Any]) -> None:
    twice = parallelize(sketch(partial(accumulating, 2, 4), device="cuda"), microbatches=2, **ways)
    once = parallelize(sketch(partial(accumulating, 1, 8), device="cuda"), microbatches=4, **ways)
    for ours, theirs in zip(twice.graphs, once.graphs, strict=True):
        assert told(ours) == told(theirs)
        assert [(c.kind, c.nbytes) for c in ours.collectives] == [(c.kind, c.nbytes) for c in theirs.collectives]
    assert "2 microbatches in each of its 2 rounds of gradient accumulation" in " ".join(twice.graphs[0].notes)
    assert ft.predict(twice, on="h200").step_ms > 0


def test_a_step_of_several_updates_has_no_microbatches() -> None:
    step = sketch(partial(accumulating, 2, 4, 2), device="cuda")
    with pytest.raises(ForetraceError, match="goes forward and backward 2 times, and updates weights in between"):
        parallelize(step, pipeline=2, microbatches=2)
