"""Advice: a search for the best ways to train a step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import gpt
import resnet
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job, OpTable
from foretrace.whatif.advise import advise
from foretrace.whatif.plan_lines import lines, torchtitan_settings
from foretrace.whatif.plan_simulator import Simulator
from foretrace.whatif.plans import Choice, Plan, batches_of, settings
from foretrace.whatif.points import Point
from tests.transforms.agreement import sketched


def test_the_best_plan_comes_first_and_says_how() -> None:
    found = advise(sketched(gpt), "h200", world=2, top=5)
    times = [plan.sample_us for plan in found.plans]
    assert times == sorted(times) and 3 <= len(times) <= 5
    assert found.given is not None and times[0] <= found.given.sample_us
    assert found.plans[0].low_ms is not None and found.plans[0].why and found.plans[0].apply
    assert found.simulated < found.space
    assert found.to_dict()["plans"][0]["changes"] == found.plans[0].changes


def test_plans_stay_within_the_memory() -> None:
    free = advise(sketched(gpt, batch=256), "h200", world=1)
    limit = min(plan.reserved_bytes or 0 for plan in free.plans)
    limited = advise(sketched(gpt, batch=256), "h200", world=1, memory_limit=limit)
    assert all((plan.reserved_bytes or 0) <= limit for plan in limited.plans)
    with pytest.raises(ForetraceError, match=r"no plan fits: the smallest needs .* of which weights"):
        advise(sketched(gpt), "h200", world=1, memory_limit=1)


def test_the_fewest_gpus_for_a_target_are_found_or_the_nearest_named() -> None:
    alone = advise(sketched(gpt), "h200", world=1, samples=8).plans[0].step_ms
    found = advise(sketched(gpt), "h200", world=2, goal="fewest", target_ms=alone * 1.5)
    assert found.plans[0].ranks == 1 and found.plans[0].samples == 8
    never = advise(sketched(gpt), "h200", world=1, goal="fewest", target_ms=1e-6)
    assert "no plan reaches" in never.notes[0] and "device work" in never.notes[0] and never.plans


def test_ranks_with_a_batch_each_do_more_in_a_step_also_where_its_size_does_not_show() -> None:
    step = sketched(gpt, batch=1)
    assert batches_of(Job([step])) == (None, 1)
    found = advise(step, "h200", world=4, fixed=["checkpoint=*"])
    assert found.plans[0].replicas == 4 and "does not show how many samples" in " ".join(found.notes)
    with pytest.raises(ForetraceError, match="does not show how many samples"):
        advise(step, "h200", world=4, goal="fewest", target_ms=100.0)


def test_what_is_fixed_stays_and_the_samples_of_a_step_too() -> None:
    found = advise(sketched(gpt), "h200", world=2, samples=16, fixed=["sharded=on"])
    assert all("sharded=on" in plan.changes and plan.samples == 16 for plan in found.plans)


def test_a_world_that_no_plan_divides_is_said_with_the_nearest_that_does() -> None:
    with pytest.raises(ForetraceError, match=r"no plan divides 8 samples between 3 GPUs with tensor=1.*\b[24] GPUs"):
        advise(sketched(gpt), "h200", world=3, samples=8, fixed=["tensor=1"])


def test_goals_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ForetraceError, match="no goal 'best'"):
        advise(sketched(gpt), goal="best")
    with pytest.raises(ForetraceError, match="needs a target"):
        advise(sketched(gpt), goal="fewest")
    with pytest.raises(ForetraceError, match="sharded and zero1 exclude one another"):
        advise(Job([sketched(gpt)]), world=4, fixed=["zero1=on", "sharded=on"])
    with pytest.raises(ForetraceError, match="no optimizer"):
        advise(Graph(OpTable.of([])), world=2)


def plan(*changes: str, ranks: int = 8) -> Plan:
    return Plan(list(changes), ranks, 1.0, 1.0, 8, 1.0, 1, 1, True)


def test_layers_are_split_as_parallelize_splits_them() -> None:
    found = "\n".join(lines(plan("data=4", "tensor=2", "sharded=on"), Job([sketched(gpt)]), "train.py"))
    assert '"attention.qkv": ColwiseParallel(), "attention.out": RowwiseParallel()' in found
    assert '"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()' in found
    assert 'init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))' in found
    assert 'for block in model.blocks: fully_shard(block, mesh=mesh["dp"])' in found


def test_lines_are_of_the_own_optimizer_and_model() -> None:
    changes = plan("optimizer=fused", "checkpoint=1/2", "fuse=elementwise", "batch=8", ranks=1)
    with_sgd = sketched(resnet)
    found = lines(changes, Job([with_sgd]), "train.py")
    assert any(line.startswith("optimizer = torch.optim.SGD(model.parameters(), fused=True)") for line in found)
    assert any("for n, block in enumerate(model.stages)" in line for line in found)
    assert not any("torchtitan" in line for line in found)
    alone = lines(plan("fuse=elementwise", ranks=1), Job([with_sgd]), "train.py")
    assert alone == ["model.compile()"]


def test_lines_of_code_can_be_compiled() -> None:
    every = plan(
        "dtype=bf16", "optimizer=fused", "batch=16", "checkpoint=1/2", "fuse=elementwise", "data=2", "tensor=2",
        "pipeline=2", "microbatches=4", "sharded=on", "mixed=on", "schedule=interleaved", "chunks=2",
    )  # fmt: skip
    first, *rest = lines(every, Job([sketched(gpt)]), "train.py", gpus_per_node=4)
    assert first == "torchrun --nnodes 2 --nproc-per-node 4 train.py"
    for line in rest:
        compile(line, "line", "exec")


def test_torchtitan_settings_have_its_names() -> None:
    found = torchtitan_settings(settings([
        "batch=16", "checkpoint=selective", "data=4", "pipeline=2", "microbatches=8", "schedule=interleaved",
        "sharded=on",
    ]))  # fmt: skip
    assert found == [
        '[parallelism] data_parallel_shard_degree = 4, pipeline_parallel_degree = 2, pipeline_parallel_schedule = '
        '"Interleaved1F1B", pipeline_parallel_microbatch_size = 2',
        "[training] local_batch_size = 16",
        '[activation_checkpoint] mode = "selective", selective_ac_option = "op"',
    ]  # fmt: skip


def test_accumulated_gradients_are_microbatches_of_torchtitan_and_one_backward_each() -> None:
    every = plan("batch=16", "data=4", "microbatches=8", "sharded=on", ranks=4)
    every.samples = 64
    *_, backward, sharding, training = lines(every, Job([sketched(gpt)]), "train.py")
    assert "(loss_fn(model, part) / 8).backward()  # 8 of 2" in backward and "data_parallel_shard" in sharding
    assert training == "# torchtitan: [training] local_batch_size = 2, global_batch_size = 64"


def test_overlapping_tensor_parallel_ranks_need_the_compiler() -> None:
    found = torchtitan_settings(settings(["data=2", "tensor=2", "sequence=on", "sharded=on", "overlap=on"]))
    assert found[0].endswith("tensor_parallel_degree = 2, enable_async_tensor_parallel = true")
    assert found[1] == "[compile] enable = true"
    (remark,) = (line for line in torchtitan_settings(settings(["tensor=2"])) if line.startswith("#"))
    assert "sequence=on" in remark


def test_lines_count_the_blocks_of_the_whole_model() -> None:
    every = plan("batch=32", "pipeline=2", "microbatches=4", "chunks=5", "schedule=interleaved", ranks=16)
    found = lines(every, Job([sketched(gpt)]), "train.py", blocks=80)
    assert "rdzv-endpoint" in found[1] and any("80 blocks in 10 stages, 5 of them on each rank" in one for one in found)
    assert "pipeline_parallel_layers_per_stage = 8" in "\n".join(found)


def test_torchtitan_has_no_zero_1_and_is_not_said_to() -> None:
    first, *_, last = torchtitan_settings(settings(["data=4", "zero1=on"]))
    assert first == "[parallelism] data_parallel_replicate_degree = 4, data_parallel_shard_degree = 1"
    assert last.startswith("# torchtitan has no ZeRO-1")


def test_interrupted_it_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Choice] = []
    simulated = Simulator.points

    def points(self: Simulator, plans: Sequence[Choice], whole: bool) -> list[Point]:
        if len(seen) >= 6:
            raise KeyboardInterrupt
        seen.extend(plans)
        return simulated(self, plans, whole)

    monkeypatch.setattr(Simulator, "points", points)
    found = advise(Job([sketched(gpt)]), world=4)
    assert found.plans and found.simulated == 6 and "interrupted: these are the best so far" in found.notes
