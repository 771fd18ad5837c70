"""The search among plans: few are simulated, and the best is found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import gpt
from foretrace.graph import Job
from foretrace.platform.registry import load_platform
from foretrace.whatif.plan_search import MAX_SHARE, Search
from foretrace.whatif.plan_simulator import EXTRAPOLATED, Simulator, _extrapolated, rounds
from foretrace.whatif.plans import Choice, Factor, settings
from foretrace.whatif.points import Point
from foretrace.whatif.settings_model import SettingsModel
from tests.transforms.agreement import sketched

GIB = 2**30
FACTORS = [
    Factor("layout", [(f"data={16 // t}", *([f"tensor={t}"] if t > 1 else [])) for t in (1, 2, 4, 8, 16)]),
    Factor("shards", [(), ("buckets=100",), ("zero1=on",), ("sharded=on",)]),
    Factor("batch", [(), ("batch=2",), ("batch=4",), ("batch=16",), ("batch=32",)]),
    Factor("checkpoint", [(), ("checkpoint=1/2",), ("checkpoint=*",)]),
    Factor("precision", [(), ("autocast=bf16",)]),
    Factor("optimizer", [(), ("optimizer=fused",)]),
]


def made_up(plan: Choice) -> Point:
    """A cluster on paper, on which settings work together: shards need a large batch, tensor ranks a small one."""
    given = settings(plan)
    batch, tensor = int(given.get("batch", 8)), int(given.get("tensor", 1))
    work = batch * (1.3 if given.get("checkpoint") == "*" else 1.15 if "checkpoint" in given else 1.0)
    work *= 0.5 if "autocast" in given else 1.0
    ms = work / tensor + 0.4 * math.log2(tensor) * math.sqrt(batch) + (0.5 if "optimizer" in given else 1.0)
    ms += {"sharded": 3.0, "zero1": 2.2}.get(next((n for n in ("sharded", "zero1") if n in given), ""), 2.0) / tensor
    states = 60.0 / tensor / (8 if "sharded" in given else 3 if "zero1" in given else 1)
    kept = 3.0 * batch / tensor / (6 if given.get("checkpoint") == "*" else 1.7 if "checkpoint" in given else 1)
    size = round((states + kept) * GIB)
    return Point(list(plan), "h200", 16, None, ms, ms, ms, size, size, samples=batch * int(given["data"]))


def searched(
    simulate: Callable[[Choice], Point], limit: int | None = None, at_once: int = 1
) -> tuple[Search, list[Choice]]:
    tried: list[Choice] = []

    def points(plans: Sequence[Choice], whole: bool) -> list[Point]:
        tried.extend(plans)
        return [simulate(plan) for plan in plans]

    job = Job([sketched(gpt)])
    search = Search(job, load_platform("h200"), 16, points, limit, factors=FACTORS, at_once=at_once)
    search.run()
    return search, tried


@pytest.mark.parametrize("limit", [130 * GIB, 60 * GIB, 25 * GIB, 12 * GIB])
@pytest.mark.parametrize("at_once", [1, 4])
def test_the_best_plan_is_found_with_few_simulations(limit: int, at_once: int) -> None:
    search, tried = searched(made_up, limit, at_once)
    fitting = [made_up(plan) for plan in search.space]
    best = min(p.next_ms / p.samples for p in fitting if p.reserved_bytes <= limit)  # type: ignore[operator]
    found = made_up(search.ranked()[0])
    assert found.next_ms / found.samples <= best * 1.01  # type: ignore[operator]
    assert len(tried) == len(set(tried)) <= max(MAX_SHARE * len(search.space), 40) and len(search.space) > 1000


def test_a_setting_that_always_fails_is_given_up() -> None:
    def simulate(plan: Choice) -> Point:
        return Point(list(plan), "h200", error="no") if "autocast=bf16" in plan else made_up(plan)

    search, tried = searched(simulate)
    assert sum("autocast=bf16" in plan for plan in tried) <= 4 and search.ranked()


def test_a_search_whose_plans_all_fail_for_one_reason_ends() -> None:
    search, tried = searched(lambda plan: Point(list(plan), "h200", error="heads can't be split"))
    assert 2 <= len(tried) <= 8 and not search.ranked()
    search, tried = searched(lambda plan: Point(list(plan), "h200", error=f"no {settings(plan).get('batch')}"))
    assert len(tried) > 8


def test_a_setting_whose_first_plan_fails_because_of_another_one_is_tried_without_that() -> None:
    def simulate(plan: Choice) -> Point:
        return Point(list(plan), "h200", error="no") if "sharded=on" in plan else made_up(plan)

    factors = [factor for factor in FACTORS if factor.name != "shards"]
    factors[0] = Factor("layout", [("data=16",), ("data=8", "tensor=2", "sharded=on"), ("data=8", "tensor=2")])
    job = Job([sketched(gpt)])
    search = Search(job, load_platform("h200"), 16, lambda plans, _: [simulate(p) for p in plans], factors=factors)
    search.run()
    assert any("tensor=2" in plan and point.next_ms for plan, point in search.points.items())


def test_plans_whose_bound_is_above_the_best_are_never_tried() -> None:
    search, _ = searched(made_up)
    best = search._best_us()
    search._sample_us[:] = best * 2
    assert search._most_promising(5) == []


def test_no_plan_is_pruned_that_might_fit() -> None:
    search, _ = searched(made_up, limit=1)
    assert search.pruned == len(search.space) and search.ranked() == []


def test_few_blocks_tell_of_many() -> None:
    simulator = Simulator(Job([sketched(gpt, layers=16)]), "h200")
    for plan in [
        ("checkpoint=*", "data=4", "sharded=on"),
        ("data=2", "tensor=2"),
        ("data=2", "pipeline=2", "microbatches=4"),
    ]:
        assert simulator.depths(plan) is not None
        whole, guess = simulator.whole(plan), simulator.extrapolated(plan)
        assert guess.next_ms == pytest.approx(whole.next_ms, rel=0.02)
        assert guess.memory_bytes == pytest.approx(whole.memory_bytes, rel=0.02)


def test_few_blocks_tell_of_many_whose_gathered_weights_are_most_of_the_memory() -> None:
    simulator = Simulator(Job([sketched(gpt, layers=16, batch=2, seq=16, dim=1024)]), "h200")
    plan = ("data=64", "sharded=on", "checkpoint=*")
    whole, guess = simulator.whole(plan), simulator.extrapolated(plan)
    assert guess.memory_bytes == pytest.approx(whole.memory_bytes, rel=0.01)


@pytest.mark.parametrize(
    "plan",
    [
        ("batch=32", "data=2", "microbatches=16", "sharded=on"),
        ("batch=32", "data=2", "pipeline=2", "microbatches=16"),
        ("batch=32", "data=2", "pipeline=2", "microbatches=16", "chunks=2", "schedule=interleaved"),
        ("batch=32", "data=1", "pipeline=2", "microbatches=32", "chunks=2", "schedule=zbv"),
        ("batch=32", "data=1", "pipeline=4", "microbatches=32", "chunks=2", "schedule=interleaved"),
    ],
)
def test_few_microbatches_tell_of_many(plan: Choice) -> None:
    simulator = Simulator(Job([sketched(gpt, layers=8)]), "h200")
    every, guess = simulator._simulated(plan, 0), simulator.whole(plan)
    assert rounds(plan) is not None and guess.samples == every.samples and guess.changes == list(plan)
    assert guess.step_ms == pytest.approx(every.step_ms, rel=0.02)
    assert guess.next_ms == pytest.approx(every.next_ms, rel=0.02)
    assert guess.reserved_bytes == pytest.approx(every.reserved_bytes, rel=0.05)


def test_what_fragments_differently_with_each_depth_is_no_line() -> None:
    few, more = (
        Point(["data=2"], "h200", 2, None, ms, ms, ms, nbytes * GIB, (nbytes + lost) * GIB)
        for ms, nbytes, lost in ((1.0, 10, 1), (2.0, 12, 5))
    )
    made = _extrapolated(few, more, 11.0)
    assert made.next_ms == 12.0 and made.memory_bytes == 32 * GIB
    assert 37 * GIB <= (made.reserved_bytes or 0) <= 46 * GIB
    shrinking = _extrapolated(more, few, 11.0)
    assert (shrinking.next_ms, shrinking.memory_bytes, shrinking.reserved_bytes) == (1.0, 10 * GIB, 11 * GIB)


def test_a_plan_that_is_too_large_stays_extrapolated_and_its_point_says_so() -> None:
    simulator = Simulator(Job([sketched(gpt, layers=16)]), "h200")
    small, large = ("data=4",), ("batch=64", "data=2", "pipeline=2", "microbatches=64")
    simulator._calls *= 10
    assert not simulator.is_too_large(small) and simulator.is_too_large(large)
    assert [EXTRAPOLATED in point.notes for point in simulator.points([small, large], True)] == [False, True]


def test_the_model_knows_what_it_was_given_and_doubts_what_is_far() -> None:
    known = np.array([[1, 0, 0], [1, 1, 0]], np.int8)
    model = SettingsModel(known, np.array([1.0, 2.0]))
    means, spreads = model.predicted(np.array([[1, 1, 0], [1, 1, 1]], np.int8))
    assert means[0] == pytest.approx(2.0, abs=0.01) and spreads[0] < 0.02 < spreads[1]
