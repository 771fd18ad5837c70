from __future__ import annotations

import foretrace as ft
from foretrace.forecast.forecast import Forecast
from foretrace.report.pages.comparison import comparison_page
from tests.report.steps import HOSTILE, sketched


def test_both_forecasts_are_drawn_on_one_clock_and_in_one_distribution():
    before, after = ft.predict(sketched(40), on="h200"), ft.predict(sketched(10), on="h200")
    page = comparison_page(before, after, ("forty", "ten"))
    assert [one["title"] for one in page.charts["timeline"]["timelines"]] == ["forty", "ten"]
    assert [one["name"] for one in page.charts["distribution"]["series"]] == ["forty", "ten"]
    assert all(row["change_ms"] < 0 for row in page.charts["by_op"]["rows"])
    assert HOSTILE not in page.html()


def test_what_got_better_is_told_from_what_got_worse():
    before = Forecast(step_ms=10.0, mfu=0.2, kernels=5, device_active_ms=3.0)
    after = Forecast(step_ms=8.0, mfu=0.25, kernels=4, device_active_ms=3.0)
    verdicts = {line.name: line.verdict for line in comparison_page(before, after).words["lines"]}
    assert verdicts == {"step": "good", "device active": "", "kernels": "", "of peak arithmetic (MFU)": "good"}


def test_forecasts_that_were_only_kept_as_json_are_compared_without_timelines():
    page = comparison_page(Forecast(step_ms=1.0), Forecast(step_ms=2.0))
    assert page.charts["timeline"] is None and "+100 %" in page.html()


def test_steps_of_other_batches_are_also_compared_by_the_sample():
    small, large = (Forecast(step_ms=step, step_ms_back_to_back=step, samples=n) for step, n in ((2.0, 8), (3.0, 16)))
    page = comparison_page(small, large)
    lines = {line.name: line for line in page.words["lines"]}
    assert lines["samples in a step"].verdict == "" and lines["for each sample"].verdict == "good"
    assert "for each of 8 → 16 samples 250 µs → 188 µs" in page.html()
    assert "sample" not in comparison_page(small, small).html().partition("<main>")[2].partition("<script")[0]
