from __future__ import annotations

from typing import Any

import foretrace as ft
from foretrace.analysis.report import PathRow, StepReport
from foretrace.report.pages.comparisons import comparison_page, sweep_page
from foretrace.whatif.points import Point, Sweep
from tests.narrowing import present
from tests.report.steps import HOSTILE, sketched


def test_both_predictions_are_drawn_on_one_clock_and_in_one_distribution():
    before, after = ft.predict(sketched(40), on="h200"), ft.predict(sketched(10), on="h200")
    page = comparison_page(before, after, ("forty", "ten"))
    assert [one["title"] for one in present(page.charts["timeline"])["timelines"]] == ["forty", "ten"]
    assert [one["name"] for one in present(page.charts["distribution"])["series"]] == ["forty", "ten"]
    assert all(row["change_ms"] < 0 for row in present(page.charts["by_op"])["rows"])
    assert HOSTILE not in page.html()


def test_better_and_worse_figures_are_marked():
    before = StepReport(step_ms=10.0, mfu=0.2, kernels=5, device_active_ms=3.0)
    after = StepReport(step_ms=8.0, mfu=0.25, kernels=4, device_active_ms=3.0)
    verdicts = {line.name: line.verdict for line in comparison_page(before, after).values["lines"]}
    assert verdicts == {"step": "good", "device active": "", "kernels": "", "of peak arithmetic (MFU)": "good"}


def test_predictions_read_from_json_are_compared_without_timelines():
    page = comparison_page(StepReport(step_ms=1.0), StepReport(step_ms=2.0))
    assert page.charts["timeline"] is None and "+100 %" in page.html()


def test_steps_of_other_batches_are_also_compared_by_the_sample():
    small, large = (StepReport(step_ms=step, step_ms_back_to_back=step, samples=n) for step, n in ((2.0, 8), (3.0, 16)))
    page = comparison_page(small, large)
    lines = {line.name: line for line in page.values["lines"]}
    assert lines["samples in a step"].verdict == "" and lines["for each sample"].verdict == "good"
    assert "for each of 8 → 16 samples 250 µs → 188 µs" in page.html()
    assert "sample" not in comparison_page(small, small).html().partition("<main>")[2].partition("<script")[0]


def point(batch: int, **figures: Any) -> Point:
    known = {"step_ms": 4.0, "memory_bytes": batch << 20, "fits": True, "sample_us": 4e3 / batch}
    return Point([f"batch={batch}"], "h200", next_ms=4.0, device_active_ms=2.0, samples=batch, **(known | figures))


def swept(*points: Point) -> Sweep:
    return Sweep(HOSTILE, list(points), memory_limit=2**33, notes=[HOSTILE])


def test_points_are_drawn_by_the_time_of_a_sample_and_the_best_is_marked():
    page = sweep_page(swept(point(64), point(8, fits=False)))
    chart = present(page.charts["points"])
    assert [(one["name"], one["best"]) for one in chart["points"]] == [
        ("batch=64 on h200", True),
        ("batch=8 on h200", False),
    ]
    assert chart["across"] == "sample_us" and [view["title"] for view in chart["views"]] == ["memory"]
    text = page.html()
    assert "of those that fit in 8 GiB" in text and HOSTILE not in text and "$ a million" not in text


def test_prices_and_ranks_are_shown_where_there_are_any():
    page = sweep_page(swept(point(64, cost=0.5), point(8, ranks=16)))
    assert [view["word"] for view in present(page.charts["points"])["views"]] == ["memory_bytes", "cost"]
    text = page.html()
    assert "$ a million" in text and ">ranks</th>" in text


def test_without_batches_steps_are_compared():
    chart = present(sweep_page(swept(point(64, sample_us=None), point(8, sample_us=None))).charts["points"])
    assert chart["across"] == "step_ms"


def test_points_that_failed_say_why_and_where_none_fits_the_page_says_so():
    failed = point(3, step_ms=None, memory_bytes=None, error="batch can't be 3")
    page = sweep_page(swept(failed))
    assert page.charts["points"] is None
    assert "batch can&#39;t be 3" in page.html() and "No point fits" in page.html()


def test_points_that_failed_are_not_counted_and_those_for_one_reason_share_a_line():
    failed = [point(size, step_ms=None, memory_bytes=None, error="it is odd") for size in (3, 5)]
    text = sweep_page(swept(point(64), point(8), *failed)).html()
    assert ": 2 points" in text and "Left out: 2 points" in text and text.count("it is odd") == 1


def test_a_large_cost_is_written_out():
    assert ">12,346</td>" in sweep_page(swept(point(64, cost=12345.6), point(8))).html()


def test_a_step_with_more_samples_is_not_called_worse_for_taking_longer():
    small, large = (StepReport(step_ms=step, samples=n, device_active_ms=step / 2) for step, n in ((2.0, 8), (3.0, 16)))
    verdicts = {line.name: line.verdict for line in comparison_page(small, large).values["lines"]}
    assert verdicts["step"] == verdicts["device active"] == "" and verdicts["for each sample"] == "good"


def test_the_critical_path_shows_where_the_change_comes_from():
    before, after = (
        StepReport(platform="h200", step_ms=ms, critical_path=[PathRow("T2", "aten::mm", 0, ms, 1.0)])
        for ms in (4.0, 2.5)
    )
    page = comparison_page(before, after)
    assert [(row["name"], row["change_ms"]) for row in present(page.charts["path"])["rows"]] == [
        ("host, op start to first launch", -1.5)
    ]
    assert "These changes add up to -1.50 ms, that of the step." in page.html()


def test_changes_of_critical_paths_that_are_not_that_of_the_step_are_not_called_so():
    before, after = (
        StepReport(platform="h200", step_ms=ms, critical_path=[PathRow("T2", "aten::mm", 0, path, 1.0)])
        for ms, path in ((4.0, 4.0), (2.5, 2.0))
    )
    said = "add up to -2.00 ms, that of the critical paths; the step changes by -1.50 ms."
    assert said in comparison_page(before, after).html()


def test_two_predictions_of_one_recording_are_named_by_their_platforms():
    reports = [StepReport("run", platform=name, step_ms=4.0, coverage={how: 1.0}) for name, how in SIDES]
    html = comparison_page(reports[0], reports[1], ("run", "run")).html()
    assert "run" in html and "h200 on h200" not in html
    assert [f'<th scope="col" class="n">{name}</th>' in html for name, _ in SIDES] == [True, True]
    assert "<td>kernel times</td>" in html and "by roofline" in html


SIDES = (("h200", "measured"), ("a100", "fallback"))


def test_a_difference_that_does_not_show_is_not_judged():
    before, after = (
        StepReport(platform="h200", step_ms=ms, peak_memory_bytes=n) for ms, n in ((9, 2684354560), (8, 2694354560))
    )
    (memory,) = [line for line in comparison_page(before, after).values["lines"] if line.name == "peak memory"]
    assert memory.verdict == ""


def test_a_distribution_is_drawn_only_where_both_steps_have_one():
    forecast = ft.predict(sketched(4), on="h200")
    assert comparison_page(forecast, StepReport(platform="h200", step_ms=1.0)).charts["distribution"] is None


def test_what_is_said_of_both_predictions_is_on_their_page():
    page = comparison_page(StepReport(step_ms=1.0), StepReport(step_ms=2.0, notes=["mine"]), notes=["of both"])
    assert page.values["notes"] == ["of both", "mine"]
