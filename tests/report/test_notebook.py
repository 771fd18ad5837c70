"""What was found, in a notebook: every answer shows itself, and names stay text."""

from __future__ import annotations

import pytest

import foretrace as ft
from foretrace.graph import ForetraceError
from foretrace.prediction.scaling import Scaling, ScalingRow
from foretrace.sharding.tables import Table
from foretrace.whatif.points import Point, Sweep, with_pareto_front
from tests.report.steps import HOSTILE, sketched


@pytest.fixture(scope="module")
def step():
    graph = sketched()
    graph.source = HOSTILE
    return graph


def assert_shown(text: str, *words: str) -> None:
    assert all(word in text for word in words), text
    assert "<script" not in text and HOSTILE not in text


def test_a_what_if_shows_both_times_and_what_changed_most(step):
    found = ft.what_if(step, dtype="fp32")
    largest = max(found.difference.by_op, key=lambda row: abs(row.change_ms))
    assert_shown(found._repr_html_(), "with dtype=fp32", "times as fast", "What changed most", largest.name)


def test_a_sweep_shows_the_best_point_and_the_front():
    points = [
        Point(["batch=8"], "h200", step_ms=2.0, next_ms=2.0, memory_bytes=100, fits=True, samples=8),
        Point(["batch=16"], "h200", step_ms=3.0, next_ms=3.0, memory_bytes=200, fits=True, samples=16),
        Point(["batch=32"], "h200", error="too large"),
    ]
    text = with_pareto_front(Sweep(HOSTILE, points), {})._repr_html_()
    assert_shown(text, ": 2 points", "batch=16 on h200: least time per sample", "The front", "batch=8 on h200", "188")


def test_a_curve_shows_its_ends_and_what_lies_between(step):
    assert_shown(
        ft.scaling(step, [1, 2, 8])._repr_html_(), "on 8 ranks", "the ranks do not communicate", "As the job grows"
    )


def test_of_a_long_curve_some_rows_are_left_out():
    rows = [ScalingRow(world, None, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0) for world in range(1, 101)]
    text = Scaling("run", "h200", rows)._repr_html_()
    assert text.count("<tr") == 14 and ">100</td>" in text and ">1</td>" in text


def test_a_plan_shows_its_slowest_ranks():
    tables = [Table(f"table {number}", 1000 * (number + 1), 64, 4.0) for number in range(6)]
    plan = ft.shard(tables, 2, on="h200", seconds=0.2)
    assert_shown(plan._repr_html_(), "6 tables on 2 ranks of h200", "The slowest ranks", "lookups ms")


def test_what_a_notebook_cannot_show_is_refused(step):
    with pytest.raises(ForetraceError, match="can't show a Graph"):
        ft.as_html(step)
