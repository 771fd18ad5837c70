"""Sharded weights: compared with FSDP2."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

import gpt
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.analysis.memory import peak_memory
from foretrace.api import as_job
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.prediction.priced_step import step_waits
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.numerics import dtype
from foretrace.transforms.parallel.fsdp import COMPUTE
from foretrace.transforms.parallel.parallelize import parallelize
from tests.transforms.parallel.steps import exchanged, fully_sharded_data_parallel, gpt_step, neighbours, precise, told


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_sharded_gpt_calls_what_fsdp2_calls(dtype: str) -> None:
    ours, theirs = fully_sharded_data_parallel(gpt_step(dtype=dtype), 8), gpt_step(8, fsdp=True, dtype=dtype)
    assert told(ours) == told(theirs)
    assert exchanged(ours) == exchanged(theirs)
    assert neighbours(ours) == neighbours(theirs)
    assert [ours.ops[c.op].stream for c in ours.collectives] == [theirs.ops[c.op].stream for c in theirs.collectives]


def test_parts_of_a_batch_gather_scatter_and_add_up_as_fsdp2_accumulates() -> None:
    ours = parallelize(gpt_step(), data=8, sharded=True, microbatches=2).graphs[0]
    theirs = gpt_step(8, fsdp=True, accumulate=2)
    batch = "aten::split"  # the script cuts its batch, and so do the queries, keys and values
    assert told(ours, batch) == told(theirs, batch)
    assert exchanged(ours) == exchanged(theirs)


def mixed_step(policy: MixedPrecisionPolicy | None) -> Callable[[], Callable[[], None]]:
    def build() -> Callable[[], None]:
        with torch.device("cuda"):
            model = gpt.GPT(gpt.PRESETS["tiny"], recompute=False)
            text = torch.randint(512, (8, 33))
        if policy is None:
            model.bfloat16()
        for part in (*model.blocks, model) if policy else ():
            fully_shard(part, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            cross_entropy(model(text[:, :-1]).float().flatten(0, 1), text[:, 1:].flatten()).backward()
            optimizer.step()

        return step

    return build


def test_mixed_precision_gathers_halves_of_float32_shards_as_fsdp2_does() -> None:
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    ours = fully_sharded_data_parallel(sketch(mixed_step(None), device="cuda"), 8, mixed=True)
    theirs = sketch(mixed_step(policy), device="cuda", world=8)
    assert precise(ours) == precise(theirs)
    assert exchanged(ours) == exchanged(theirs)
    assert {t.dtype for op in ours.ops if op.phase == "optimizer" for t in op.tensors} == {"float32"}


def test_mixed_precision_of_a_step_in_float32_is_refused() -> None:
    with pytest.raises(ForetraceError, match=r"needs a step in half precision, .* in float32 in GPT.words"):
        fully_sharded_data_parallel(gpt_step(), 8, mixed=True)


def test_weights_are_gathered_twice_and_gradients_scattered_once() -> None:
    kinds = [c.kind for c in fully_sharded_data_parallel(gpt_step(), 8).collectives]
    blocks, root = 2, 1
    assert kinds.count("all_gather") == 2 * blocks + root  # what is in no block stays from forward to backward
    assert kinds.count("reduce_scatter") == blocks + root


def test_communication_has_streams_of_its_own_and_the_copy_out_waits() -> None:
    graph = fully_sharded_data_parallel(gpt_step(), 8)
    streams = {c.kind: graph.ops[c.op].stream for c in graph.collectives}
    assert len({COMPUTE, *streams.values()}) == 3
    names = [op.name for op in graph.ops]
    assert names.index("c10d::wait") < names.index("fsdp::split_with_sizes_copy")


def waits_for_scattered(graph: Graph) -> list[str]:
    """The calls of the compute stream that wait for scattered gradients."""
    step = dispatched_calls(graph)
    scattered = {c.op for c in step.calls.collectives if c.kind == "reduce_scatter"}
    waiting = {after for before, after in step_waits(graph, step).streams.tolist() if before in scattered}
    ops = [step.calls.ops[row] for row in sorted(waiting)]
    return [op.name if op.phase != "optimizer" else op.phase for op in ops if op.stream == COMPUTE]


def test_a_unit_waits_for_the_scattered_gradients_before_it_whose_buffer_it_takes() -> None:
    ours, theirs = fully_sharded_data_parallel(gpt_step(), 8), gpt_step(8, fsdp=True)
    for graph in (ours, theirs):
        waiting = waits_for_scattered(graph)
        assert waiting[:2] == ["fsdp::chunk_cat"] * 2
        assert {*waiting[2:]} == {"optimizer"}


def test_a_shard_of_the_weights_takes_less_memory() -> None:
    whole, shards = gpt_step(), fully_sharded_data_parallel(gpt_step(), 8)
    kept = [sum(s.nbytes for s in graph.storages.values() if s.birth < 0) for graph in (whole, shards)]
    assert kept[1] < kept[0] / 4
    assert (peak_memory(shards) or 0) < (peak_memory(whole) or 0)


def test_the_optimizer_changes_shards() -> None:
    graph = fully_sharded_data_parallel(gpt_step(), 8)
    update = next(op for op in graph.ops if op.name == "aten::_foreach_lerp_")
    assert {t.shape for t in update.tensors} >= {(64, 64), (4, 64), (8,)}


@pytest.mark.parametrize("shards", ["sharded", "zero1"])
def test_gradients_are_clipped_in_shards(shards: str) -> None:
    whole = Job([as_job("python benchmarks/models/llama.py --preset tiny --layers 2 --batch 4", "cuda").graphs[0]])
    (shared,) = parallelize(whole, data=4, sharded=shards == "sharded", zero1=shards == "zero1").graphs
    for name in ("aten::_foreach_norm", "aten::_foreach_mul_"):  # of clip_grad_norm_
        (before,), (after,) = (
            [(row, op) for row, op in enumerate(graph.ops) if op.name == name and op.phase == "forward"]
            for graph in (*whole.graphs, shared)
        )
        parts = [sum(tensor.numel for tensor in op.tensors) for _, op in (before, after)]
        assert parts[1] == pytest.approx(parts[0] / 4, rel=0.01)
        ends = [shared.storages[tensor.storage].death for tensor in after[1].tensors]
        assert all(end < 0 or end > after[0] for end in ends)


def test_units_can_be_named() -> None:
    graph = fully_sharded_data_parallel(gpt_step(), 8, ["GPT.blocks.1"])
    assert [c.kind for c in graph.collectives].count("reduce_scatter") == 2


def test_a_unit_that_is_not_there_is_refused() -> None:
    with pytest.raises(ForetraceError, match=r"there is no module 'GPT.layers'"):
        fully_sharded_data_parallel(gpt_step(), 8, ["GPT.layers"])


def bytes_of(job: Job, kind: str) -> list[int]:
    """Of the data parallel ranks' collectives, for each stage."""
    return [sum(c.nbytes for c in g.collectives if c.kind == kind and c.group == "data") for g in job.graphs]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_stage_gathers_its_weights_once_a_step_and_scatters_their_gradients_once(schedule: str) -> None:
    job = parallelize(gpt_step(), 4, 1, 2, microbatches=4, schedule=schedule, sharded=True)
    whole = parallelize(gpt_step(), 4, 1, 2, microbatches=4, schedule=schedule, bucket_mb=math.inf)
    # As many bytes as the gradients that stages without shards sum, but for shards of equal size.
    for kind in ("all_gather", "reduce_scatter"):
        assert bytes_of(job, kind) == pytest.approx(bytes_of(whole, "all_reduce"), rel=0.001)
    kinds = [[c.kind for c in g.collectives if c.group == "data"] for g in job.graphs]
    assert kinds == [["all_gather"] * 2 + ["reduce_scatter"] * 2] * 2, "of a block, and of what is in none"


def test_zero1_gathers_and_scatters_once_a_step_whatever_the_microbatches() -> None:
    job = parallelize(gpt_step(), data=4, microbatches=4, zero1=True)
    whole = parallelize(gpt_step(), data=4, microbatches=4, bucket_mb=math.inf)
    for kind in ("all_gather", "reduce_scatter"):
        assert bytes_of(job, kind) == pytest.approx(bytes_of(whole, "all_reduce"), rel=0.001)
    shapes = {t.shape for op in job.graphs[0].ops if op.phase == "optimizer" for t in op.tensors}
    assert (256 // 4, 64) in shapes and (256, 64) not in shapes
    staged = parallelize(gpt_step(), 4, 1, 2, microbatches=4, zero1=True)
    same = parallelize(gpt_step(), 4, 1, 2, microbatches=4, sharded=True)
    assert [sorted(exchanged(graph)) for graph in staged.graphs] == [sorted(exchanged(graph)) for graph in same.graphs]


def test_microbatches_add_up_in_float32_and_in_gemms_with_zero1_and_mixed() -> None:
    half = dtype(gpt_step(), "bfloat16")
    graph = parallelize(half, data=4, microbatches=4, zero1=True, mixed=True).graphs[0]
    scattered = [graph.ops[one.op] for one in graph.collectives if one.kind == "reduce_scatter"]
    assert {t.dtype for op in scattered for t in op.tensors} == {"float32"}
    full = [op for op in graph.ops if op.name == "aten::mm" and op.produced[0].dtype == "float32"]
    assert full and len(full) % 4 == 0, "each microbatch adds to the sum in its GEMMs"
    added = parallelize(half, 4, 1, 2, microbatches=4, sharded=True, mixed=True).graphs[0]
    sums = [op for op in added.ops if op.name == "aten::add_" and op.node.endswith("AccumulateGrad")]
    assert {op.tensors[0].dtype for op in sums} == {"float32"}


def test_one_data_parallel_rank_has_float32_weights_with_zero1_and_mixed() -> None:
    half = dtype(gpt_step(), "bfloat16")
    graph = parallelize(half, data=1, tensor=2, microbatches=2, zero1=True, mixed=True).graphs[0]
    *update, copy = [op for op in graph.ops if op.phase == "optimizer"]
    assert {t.dtype for op in update for t in op.tensors if len(t.shape) == 2} == {"float32"}
    assert copy.name == "aten::_foreach_copy_" and copy.tensors[0].dtype == "bfloat16", "the weights of the next step"
    with pytest.raises(ForetraceError, match="can't be sharded on one rank"):
        parallelize(half, tensor=2, microbatches=2, zero1=True)


def test_casts_of_shards_are_freed_when_they_were_gathered() -> None:
    graph = parallelize(dtype(gpt_step(), "bfloat16"), data=4, sharded=True, mixed=True).graphs[0]
    casts = {op.tensors[0].storage for op in graph.ops if op.name == "aten::split_with_sizes"}
    assert casts and all(graph.storages[number].death >= 0 for number in casts)


def test_zero1_and_sharded_are_two_ways() -> None:
    with pytest.raises(ForetraceError, match="Leave out zero1"):
        parallelize(gpt_step(), data=4, zero1=True, sharded=True)


def test_stages_pass_on_the_same_whether_their_weights_are_in_shards_or_not() -> None:
    jobs = [parallelize(gpt_step(), 4, 2, 2, microbatches=4, sharded=some) for some in (False, True)]
    passed = [
        [(c.kind, c.nbytes, c.ranks) for g in job.graphs for c in g.collectives if c.group != "data"] for job in jobs
    ]
    assert passed[0] == passed[1]


def test_a_stage_changes_its_shards_of_its_own_weights() -> None:
    job = parallelize(gpt_step(), data=4, pipeline=2, microbatches=4, sharded=True)
    for graph in job.graphs:
        shapes = {t.shape for op in graph.ops if op.phase == "optimizer" for t in op.tensors}
        assert (256 // 4, 64) in shapes and (256, 64) not in shapes
    whole = parallelize(gpt_step(), data=4, pipeline=2, microbatches=4)
    held, more = (peak_memory(some.graphs[0]) for some in (job, whole))
    assert held is not None and more is not None and held < more
