"""Pipeline parallel: stages, transfers, accumulation and bubbles."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.claims.accuracy.pipelines import LIMIT, equal_blocks, row, without_cost
from foretrace.analysis.memory import peak_memory
from foretrace.graph import ForetraceError, Job, Op
from foretrace.transforms.parallel.parallelize import parallelize
from tests.transforms.parallel.steps import gpt_step


def work(ops: list[Op], name: str) -> int:
    return sum(op.name == name for op in ops)


@pytest.fixture(scope="module")
def job() -> Job:
    return parallelize(gpt_step(), pipeline=2, microbatches=4)


def test_stages_together_do_what_the_whole_did_once_a_part(job: Job) -> None:
    whole = list(gpt_step().ops)
    stages = [op for graph in job.graphs for op in graph.ops]
    for name in ("aten::addmm", "aten::mm", "aten::native_layer_norm_backward", "aten::embedding"):
        assert work(stages, name) == 4 * work(whole, name)


def test_each_send_has_its_recv(job: Job) -> None:
    ends = Counter((c.kind, c.group, c.nbytes, graph.rank, c.peer) for graph in job.graphs for c in graph.collectives)
    activation = 2 * 32 * 64 * 4
    forward, backward = ("forward to chunk 1", activation), ("backward to chunk 0", activation)
    assert ends["send", *forward, 0, 1] == ends["recv", *forward, 1, 0] == 4
    assert ends["send", *backward, 1, 0] == ends["recv", *backward, 0, 1] == 4


def test_gradients_are_added_up_over_the_parts(job: Job) -> None:
    adds = [op for op in job.graphs[1].ops if op.name == "aten::add_" and op.phase == "backward"]
    gradients = next(op for op in job.graphs[1].ops if op.name == "aten::_foreach_lerp_").args[1]
    assert len(adds) == 3 * len(gradients)  # type: ignore[arg-type]
    assert {op.tensors[0].storage for op in adds} == {t.storage for t in gradients}  # type: ignore[union-attr]


def test_stages_change_their_own_weights_and_share_the_tied_one(job: Job) -> None:
    shared = [c for graph in job.graphs for c in graph.collectives if c.group == "embeddings"]
    assert [(c.kind, c.nbytes, c.ranks) for c in shared] == [("all_reduce", 512 * 64 * 4, (0, 1))] * 2
    lengths = [
        len(op.args[0])  # type: ignore[arg-type]
        for graph in job.graphs
        for op in graph.ops
        if op.name == "aten::_foreach_lerp_"
    ]
    assert lengths == [2 + 12, 1 + 12 + 2]  # words and places; words again, and the last norm


def test_a_stage_takes_less_memory_than_the_whole(job: Job) -> None:
    whole = peak_memory(gpt_step()) or 0
    assert all((peak_memory(graph) or whole) < 0.7 * whole for graph in job.graphs)


def test_1f1b_keeps_fewer_activations_than_gpipe() -> None:
    first, other = (
        parallelize(gpt_step(), pipeline=2, microbatches=8, schedule=schedule).graphs[1]
        for schedule in ("1f1b", "gpipe")
    )
    assert (peak_memory(first) or 0) < (peak_memory(other) or 0)


def test_microbatches_on_one_rank_accumulate() -> None:
    (graph,) = parallelize(gpt_step(), microbatches=2).graphs
    assert not graph.collectives
    assert work(list(graph.ops), "aten::addmm") == 2 * work(list(gpt_step().ops), "aten::addmm")


@pytest.mark.parametrize("case", [("1f1b", 4, 8, 1), ("interleaved", 2, 4, 2)])
def test_the_bubble_of_equal_stages_is_the_closed_forms(case: tuple[str, int, int, int]) -> None:
    found = row(*case, without_cost())
    assert found["off_%"] < 100 * LIMIT  # type: ignore[operator]


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(ForetraceError, match=r"repeats 2 blocks: GPT.blocks.0, GPT.blocks.1, …, too few for 4 stages"):
        parallelize(gpt_step(), pipeline=4, microbatches=4)


def test_blocks_that_can_not_be_divided_evenly_are_refused() -> None:
    with pytest.raises(ForetraceError, match=r"3 blocks .* can't be divided evenly into 2 stages"):
        parallelize(equal_blocks(3, 64, 8), pipeline=2, microbatches=2)
