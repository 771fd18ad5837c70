"""Pipeline parallel: stages, transfers, accumulation and bubbles."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import gpt
from benchmarks.claims.accuracy.pipelines import LIMIT, equal_blocks, row, without_cost
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.analysis.memory import peak_memory
from foretrace.graph import ForetraceError, Graph, Job, Op
from foretrace.prediction.priced_step import step_waits
from foretrace.transforms.parallel.parallelize import parallelize
from foretrace.transforms.structure.depth import depth
from tests.transforms.agreement import sketched
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


@pytest.mark.parametrize(
    "ways",
    [{}, {"data": 2, "sharded": True}, {"schedule": "interleaved", "chunks": 2}, {"schedule": "zbv", "chunks": 2}],
)
def test_nothing_is_freed_before_its_last_use_or_before_it_is_sent(ways: dict[str, Any]) -> None:
    for graph in parallelize(sketched(gpt, layers=4, batch=8), pipeline=2, microbatches=4, **ways).graphs:
        freed: set[int] = set()
        for op in graph.ops:
            freed |= set(op.frees)
            assert freed.isdisjoint(t.storage for t in op.tensors), op.name
            freed -= {t.storage for t in op.produced}


def test_weights_are_gathered_while_a_stage_sends() -> None:
    ways: dict[str, Any] = {"data": 2, "pipeline": 2, "microbatches": 4, "schedule": "zbv", "zero1": True}
    graph = parallelize(sketched(gpt, layers=8, batch=8), **ways).graphs[0]
    step = dispatched_calls(graph)
    sends = {c.op for c in step.calls.collectives if c.kind == "send"}
    assert sends.isdisjoint(step_waits(graph, step).streams[:, 0].tolist())  # a gather that did would be a deadlock


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


def test_embedding_and_head_may_take_the_place_of_a_block_each() -> None:
    # As Llama 3.1 405B, whose 126 blocks are in 8 or 16 stages.
    stages, plain = (parallelize(equal_blocks(count, 64, 8), pipeline=3, microbatches=4).graphs for count in (4, 3))
    each = [work(list(graph.ops), "aten::mm") for graph in plain]
    assert each[1] > 0
    assert [work(list(graph.ops), "aten::mm") for graph in stages] == [each[0], 2 * each[1], each[2]]


@pytest.mark.parametrize("schedule, blocks", [("zb-h1", 2), ("zbv", 4)])
@pytest.mark.parametrize("recompute", [False, True])
def test_taken_apart_a_backward_does_what_it_did_in_one_piece(schedule: str, blocks: int, recompute: bool) -> None:
    step = gpt_step(recompute=recompute) if blocks == 2 else deeper(recompute)
    plain, apart = (parallelize(step, pipeline=2, microbatches=4, schedule=s) for s in ("1f1b", schedule))

    def done(job: Job) -> Counter[tuple[str, tuple[int, ...]]]:
        ops = (op for graph in job.graphs for op in graph.ops if op.phase != "optimizer")
        computing = (op for op in ops if op.produced and not op.name.startswith("c10d::") and op.name != "aten::empty")
        return Counter((op.name, op.produced[0].shape) for op in computing)

    assert done(plain) == done(apart)


def deeper(recompute: bool) -> Graph:
    return depth(gpt_step(recompute=recompute), 4)


def test_gradients_of_weights_follow_those_that_the_previous_stage_waits_for() -> None:
    graph = parallelize(gpt_step(), pipeline=2, microbatches=4, schedule="zb-h1").graphs[1]
    sent = next(row for row, op in enumerate(graph.ops) if op.name == "c10d::send")
    gemms = [op for op in list(graph.ops)[:sent] if op.name == "aten::mm" and op.phase == "backward"]
    samples = 2 * 32
    assert gemms and {op.produced[0].shape[0] for op in gemms} == {samples}  # none makes the gradient of a weight


def test_activations_wait_for_the_gradients_of_weights() -> None:
    plain, apart = (
        [peak_memory(graph) or 0 for graph in parallelize(gpt_step(), pipeline=2, microbatches=8, schedule=s).graphs]
        for s in ("1f1b", "zb-h1")
    )
    assert apart[0] <= plain[0] * 1.05  # the first stage has as many microbatches in flight
    assert plain[1] < apart[1] < plain[0] * 1.05  # the last one keeps one more for its weights


def test_the_stages_of_a_v_hand_over_to_themselves_at_its_turn() -> None:
    job = parallelize(deeper(False), pipeline=2, microbatches=4, schedule="zbv")
    groups = [{c.group for c in graph.collectives} - {"embeddings"} for graph in job.graphs]
    transfers = {"forward to chunk 1", "forward to chunk 3", "backward to chunk 0", "backward to chunk 2"}
    assert groups == [transfers, transfers]
    # The first stage has both ends of the model: tied embeddings need no reduction.
    assert not any(c.group == "embeddings" for graph in job.graphs for c in graph.collectives)
