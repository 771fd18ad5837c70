"""Screen, JSON and page agree with each other, in random results of every subcommand."""

from __future__ import annotations

import random

import pytest

from benchmarks.lib.consistency import KINDS, Case, check_case, random_cases

COUNT = 2
"""Results of each kind; `benchmarks.claims.usability.consistency` draws 1,000."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_figures_of_a_result_disagree(kind):
    for _, _, problems in random_cases(COUNT, seed=7, kinds=(kind,)):
        assert problems == []


@pytest.mark.parametrize(
    ("kind", "field"),
    [("predict", "step_ms"), ("predict", "peak_memory_bytes"), ("predict", "kernel_ms"), ("shard", "lookup_ms")],
)
def test_a_figure_that_differs_is_found(kind, field):
    case = Case(kind, KINDS[kind](random.Random(1)))
    case.json[field] *= 1.2
    assert check_case(case)
