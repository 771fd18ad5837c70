"""Plans: their space, and bounds that no simulation is below."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import nn

import gpt
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job, OpTable
from foretrace.platform.registry import load_platform
from foretrace.prediction.fabric_choice import choose_fabric
from foretrace.record.sketch.sketch import sketch
from foretrace.whatif.changes import JobChanges
from foretrace.whatif.grammar import read_changes
from foretrace.whatif.plan_bounds import PlanBounds
from foretrace.whatif.plan_simulator import Simulator
from foretrace.whatif.plans import (
    DEGREES,
    TOKENS_A_RANK,
    Factor,
    _layouts,
    _with_batches,
    factors_of,
    features_of,
    plans_of,
    settings,
)
from tests.transforms.agreement import sketched
from tests.transforms.parallel.steps import trained
from tests.transforms.parallel.test_experts import TOKENS, WIDTH, Mixture


def test_layouts_multiply_to_the_world() -> None:
    layouts = factors_of(Job([sketched(gpt)]), 8)[0].choices
    for layout in layouts:
        shared = JobChanges.of(read_changes(layout)).parallelism
        assert shared.get("data", 1) * shared.get("tensor", 1) * shared.get("pipeline", 1) == 8
    assert layouts[0] == ("data=8",) and len(set(layouts)) == len(layouts)


def test_an_empty_step_has_no_batch_and_no_blocks_to_choose() -> None:
    factors = {factor.name: factor.choices for factor in factors_of(Job([Graph(OpTable.of([]))]), 1)}
    assert set(factors) == {"layout", "batch", "checkpoint", "precision", "optimizer", "fusion"}
    assert all(choices == [()] for choices in factors.values())


def test_the_samples_of_a_step_divide_into_batches() -> None:
    layouts = factors_of(Job([sketched(gpt)]), 4, samples=8)[0].choices
    for given in map(settings, layouts):
        assert int(given["batch"]) * int(given["data"]) == 8
    assert not any(
        settings(layout)["data"] == "4" for layout in factors_of(Job([sketched(gpt)]), 4, samples=6)[0].choices
    )
    with pytest.raises(ForetraceError, match="does not show how many samples"):
        factors_of(Job([Graph(OpTable.of([]))]), 4, samples=6)


def test_a_batch_may_be_accumulated_over_microbatches_like_the_given_one() -> None:
    given = [settings(layout) for layout in factors_of(Job([sketched(gpt, batch=4)]), 2, samples=32)[0].choices]
    alone = {(one["batch"], one.get("microbatches", "1")) for one in given if one["data"] == "2" and len(one) < 4}
    assert alone == {("16", "1"), ("16", "2"), ("16", "4"), ("16", "8"), ("16", "16")}
    assert {"data": "1", "pipeline": "2", "microbatches": "32", "batch": "32"} in given


def test_tensor_parallel_ranks_may_overlap_their_reductions_and_others_have_none() -> None:
    plans = [settings(plan) for plan in plans_of(factors_of(Job([sketched(gpt)]), 4))]
    overlapping = [plan for plan in plans if "overlap" in plan]
    assert any("sharded" in plan and "sequence" in plan for plan in overlapping)
    assert all(int(plan["tensor"]) > 1 for plan in overlapping)


PUBLISHED = {
    "torchtitan, 70B on 256": (256, 80, 512, "data=32 tensor=8 sequence=on batch=16"),
    "torchtitan, 405B on 512": (
        512, 126, 256, "data=8 tensor=8 sequence=on pipeline=8 microbatches=32 schedule=interleaved chunks=2 batch=32"
    ),
    "Megatron, 8B on 8": (8, 32, 128, "data=4 context=2 microbatches=32 batch=32"),
    "Megatron, 70B on 64": (
        64, 80, 128,
        "data=2 tensor=4 context=2 sequence=on pipeline=4 microbatches=64 schedule=interleaved chunks=5 batch=64",
    ),
    "Megatron, 405B on 1024": (
        1024, 126, 1536,
        "data=8 tensor=8 context=2 sequence=on pipeline=8 microbatches=192 schedule=interleaved chunks=8 batch=192",
    ),
    "Megatron, 405B on 576": (
        576, 126, 252,
        "data=4 tensor=8 context=2 sequence=on pipeline=9 microbatches=63 schedule=interleaved chunks=7 batch=63",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts_of_llama_3_are_in_the_space(name: str) -> None:
    """Sequences of 8,192 tokens; microbatches of one or two samples."""
    world, blocks, samples, layout = PUBLISHED[name]
    given = [settings(found) for found in _with_batches(_layouts(world, blocks, 8192 // TOKENS_A_RANK), samples, 2)]
    assert settings(layout.split()) in given


def test_what_traces_the_step_anew_comes_before_what_it_would_undo() -> None:
    plans = plans_of([Factor("checkpoint", [("checkpoint=*",)]), Factor("precision", [("autocast=bf16",)])])
    assert plans == [("autocast=bf16", "checkpoint=*")]


def test_fixed_settings_are_part_of_every_plan() -> None:
    found = plans_of(factors_of(Job([sketched(gpt)]), 4), ["tensor=2", "seq=16"])
    assert {math.prod(int(settings(plan).get(name, 1)) for name in DEGREES) for plan in found} == {4}
    assert found and all("tensor=2" in plan and "seq=16" in plan for plan in found)


def test_experts_of_a_mixture_are_divided_between_ranks_where_there_are_some() -> None:
    step = trained(lambda: (nn.Sequential(Mixture(), Mixture()), torch.randn(TOKENS, WIDTH)))
    job = Job([sketch(step, device="cuda")])
    named = {factor.name: factor for factor in factors_of(job, 4)}
    assert ("experts=2",) in named["experts"].choices and ("experts=8",) not in named["experts"].choices
    plans = plans_of(list(named.values()))
    assert any({"experts=2", "data=4"} <= {*plan} for plan in plans)
    assert not any({"experts=4", "data=2"} <= {*plan} for plan in plans)
    point, bounds = Simulator(job, "h200").whole(("data=4", "experts=2")), PlanBounds(job, load_platform("h200"), None)
    assert point.memory_bytes and bounds.nbytes(("data=4", "experts=2")) < point.memory_bytes
    assert "experts" not in {factor.name for factor in factors_of(Job([sketched(gpt)]), 4)}


def test_many_blocks_are_checkpointed_by_quarters() -> None:
    def checkpointing(layers: int) -> list[str]:
        (found,) = (f for f in factors_of(Job([sketched(gpt, layers=layers)]), 4) if f.name == "checkpoint")
        return [text for choice in found.choices for text in choice]

    assert "checkpoint=3/4" in checkpointing(12) and "checkpoint=1/4" in checkpointing(12)
    assert "checkpoint=3/4" not in checkpointing(4) and "checkpoint=1/2" in checkpointing(4)


def test_features_tell_all_plans_apart() -> None:
    plans = plans_of(factors_of(Job([sketched(gpt)]), 4))
    features = features_of(plans)
    assert len({tuple(row) for row in features.tolist()}) == len(plans)


@pytest.mark.parametrize("shape", [{}, {"dim": 1024, "seq": 256, "batch": 16, "vocabulary": 4096}])
def test_no_simulated_plan_is_below_its_bounds(shape: dict[str, Any]) -> None:
    job, where = Job([sketched(gpt, **shape)]), load_platform("h200")
    fabric, _ = choose_fabric(None, None, where.device.matches, 4, None)
    bounds, simulator = PlanBounds(job, where, fabric), Simulator(job, "h200")
    seen = 0
    for plan in random.Random(7).sample(plans_of(factors_of(job, 4)), 24):
        point = simulator.whole(plan)
        if point.next_ms is None or point.samples is None or point.memory_bytes is None:
            continue
        seen += 1
        assert 0 < bounds.sample_us(plan) <= point.next_ms * 1e3 / point.samples, plan
        assert 0 < bounds.nbytes(plan) <= point.memory_bytes, plan
    assert seen >= 12


def test_recomputing_blocks_and_fewer_microbatches_raise_the_bound() -> None:
    job, where = Job([sketched(gpt)]), load_platform("h200")
    bounds = PlanBounds(job, where, None)
    assert bounds.sample_us(("data=4",)) < bounds.sample_us(("checkpoint=*", "data=4"))
    few, many = (bounds.sample_us(("data=2", "pipeline=2", f"microbatches={n}")) for n in (2, 64))
    assert bounds.sample_us(("data=4",)) < many < few
