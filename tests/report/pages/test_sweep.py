from __future__ import annotations

from typing import Any

from foretrace.report.pages.sweep import sweep_page
from tests.report.steps import HOSTILE


def point(batch: int, **figures: Any) -> dict[str, Any]:
    return {
        "changes": [f"batch={batch}"], "platform": "h200", "ranks": 1, "step_ms": 4.0, "next_ms": 4.0, "device_ms": 2.0,
        "memory_bytes": batch << 20, "fits": True, "samples": batch, "sample_us": 4e3 / batch, "cost": None,
        "front": False, "error": None, **figures,
    }  # fmt: skip


def swept(*points: dict[str, Any]) -> dict[str, Any]:
    return {"source": HOSTILE, "points": list(points), "best": points[0], "memory_limit": 2**33, "notes": [HOSTILE]}


def test_points_are_drawn_by_the_time_of_a_sample_and_the_best_is_marked():
    page = sweep_page(swept(point(64), point(8, fits=False)))
    chart = page.charts["points"]
    assert [(one["name"], one["best"]) for one in chart["points"]] == [
        ("batch=64 on h200", True),
        ("batch=8 on h200", False),
    ]
    assert chart["across"] == "sample_us" and [view["title"] for view in chart["views"]] == ["memory"]
    text = page.html()
    assert "fits in 8 GiB" in text and HOSTILE not in text and "$ a million" not in text


def test_prices_and_ranks_are_shown_where_there_are_any():
    page = sweep_page(swept(point(64, cost=0.5), point(8, ranks=16)))
    assert [view["word"] for view in page.charts["points"]["views"]] == ["memory_bytes", "cost"]
    text = page.html()
    assert "$ a million" in text and ">ranks</th>" in text


def test_without_batches_steps_are_compared():
    chart = sweep_page(swept(point(64, sample_us=None), point(8, sample_us=None))).charts["points"]
    assert chart["across"] == "step_ms"


def test_points_that_failed_say_why_and_where_none_fits_the_page_says_so():
    failed = point(3, step_ms=None, memory_bytes=None, error="batch can't be 3")
    page = sweep_page({**swept(failed), "best": None})
    assert page.charts["points"] is None
    assert "batch can&#39;t be 3" in page.html() and "No point fits" in page.html()


def test_points_that_failed_are_not_counted_and_those_for_one_reason_share_a_line():
    failed = [point(size, step_ms=None, memory_bytes=None, error="it is odd") for size in (3, 5)]
    text = sweep_page(swept(point(64), point(8), *failed)).html()
    assert ": 2 points" in text and "Left out: 2 points" in text and text.count("it is odd") == 1


def test_a_large_cost_is_written_out():
    assert ">12,346</td>" in sweep_page(swept(point(64, cost=12345.6), point(8))).html()
