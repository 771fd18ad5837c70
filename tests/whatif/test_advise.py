"""Advice: a search for the best ways to train a step."""

from __future__ import annotations

import pytest

import gpt
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job, OpTable
from foretrace.whatif.advise import advise, factors_of
from foretrace.whatif.changes import JobChanges
from foretrace.whatif.grammar import read_changes
from tests.transforms.agreement import sketched


def test_layouts_multiply_to_the_world() -> None:
    layouts = factors_of(Job([sketched(gpt)]), 8)[0].choices
    for layout in layouts:
        shared = JobChanges.of(read_changes(layout)).parallelism
        assert shared.get("data", 1) * shared.get("tensor", 1) * shared.get("pipeline", 1) == 8
    assert layouts[0] == ("data=8",) and len(set(layouts)) == len(layouts)


def test_an_empty_step_has_no_batch_and_no_blocks_to_choose() -> None:
    factors = {factor.name: factor.choices for factor in factors_of(Job([Graph(OpTable.of([]))]), 1)}
    assert factors == {"layout": [()], "batch": [()], "checkpoint": [()], "precision": [()], "optimizer": [()]}


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
    with pytest.raises(ForetraceError, match="no plan fits: the smallest needs"):
        advise(sketched(gpt), "h200", world=1, memory_limit=1)


def test_the_fewest_gpus_for_a_target_are_found_or_the_nearest_named() -> None:
    alone = advise(sketched(gpt), "h200", world=1).plans[0].step_ms
    found = advise(sketched(gpt), "h200", world=2, goal="fewest", target_ms=alone * 1.5)
    assert found.plans[0].ranks == 1
    never = advise(sketched(gpt), "h200", world=1, goal="fewest", target_ms=1e-6)
    assert "no plan reaches" in never.notes[0] and never.plans


def test_goals_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ForetraceError, match="no goal 'best'"):
        advise(sketched(gpt), goal="best")
    with pytest.raises(ForetraceError, match="needs a target"):
        advise(sketched(gpt), goal="fewest")
