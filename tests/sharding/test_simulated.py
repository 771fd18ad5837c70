"""A plan as a whole job, against other ways to say the same."""

import numpy as np
import pytest

import dlrm
from foretrace.forecast.jobs.rank import PricedRank
from foretrace.graph import Graph
from foretrace.platform.platform import Platform
from foretrace.predicting import predict
from foretrace.record.sketch import sketch
from foretrace.sharding.lookups import Fused, Single
from foretrace.sharding.planner import shard
from foretrace.sharding.training_step import _lookups, _with_lookups, simulate_plan, steps_of_ranks
from foretrace.transforms.parallel.hybrid import tables_on_ranks
from tests.sharding.test_hybrid import costs, whole


@pytest.fixture(scope="module")
def step() -> Graph:
    return sketch(lambda: dlrm.make_step("default", batch=4096, device="cuda"), device="cuda")


def test_a_plan_of_whole_tables_takes_what_the_parallel_step_takes(step):
    """They call the same kernels; the edit also sorts ids and vectors on the device, by a few copies."""
    owners = [0, 1] * 4
    cost = costs(step, kernels=Single)
    found = simulate_plan(step, cost, whole(*owners))
    platform = Platform.named("h200").having(fabric=cost.exchange.fabric)
    other = predict(tables_on_ranks(step, 2, owners), platform, kernels="model")
    assert found.step_ms == pytest.approx(other.step_ms_back_to_back, rel=0.1)
    assert found.low_ms < found.step_ms < found.high_ms


def test_lookups_take_what_the_search_says(step):
    cost, plan = costs(step, kernels=Fused), whole(*[0, 0, 0, 0, 0, 0, 1, 1])
    lookups, estimate = _lookups(cost, plan), cost.estimate(plan)
    platform = Platform.named("h200").having(fabric=cost.exchange.fabric)
    for number, made in enumerate(steps_of_ranks(step, cost, plan)):
        priced = PricedRank.of(made.graph, None, platform, "model")
        rank = _with_lookups(priced, made, lookups, number, platform.device)
        row = rank.flat.rows[rank.step.work.call]
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
