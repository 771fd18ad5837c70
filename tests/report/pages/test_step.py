from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import foretrace as ft
from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import StepReport
from foretrace.graph import ForetraceError, Graph, Job, Op, OpTable, Timings
from foretrace.report.pages import write_page
from foretrace.report.pages.step import measured_with, step_page
from foretrace.whatif.what_if import WhatIf
from tests.narrowing import present
from tests.report.steps import HOSTILE, rank, sketched


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


@pytest.fixture(scope="module")
def forecast() -> StepReport:
    return ft.predict(sketched(), on="h200")


def test_a_page_loads_nothing_and_no_name_becomes_markup(forecast):
    text = step_page(forecast).html()
    tags = Tags()
    tags.feed(text)
    assert {"link", "img", "iframe"}.isdisjoint(tags.names) and tags.names.count("script") == 3
    assert all(address.startswith("#") for address in tags.addresses) and not tags.handlers
    assert HOSTILE not in text


def test_everything_in_the_prediction_is_drawn(forecast):
    charts = step_page(forecast).charts
    drawn = {name for name, chart in charts.items() if chart is not None}
    assert drawn == {"distribution", "parts", "views", "timeline", "roofline", "memory", "sources"}
    assert present(charts["memory"])["peak"] == forecast.peak_memory_bytes


def test_a_prediction_without_its_workings_has_a_page(forecast):
    page = step_page(replace(forecast, workings=None))
    assert page.charts["timeline"] is None and page.charts["views"] is not None
    assert page.html().startswith("<!doctype html>")


def test_a_measured_step_is_shown_with_its_prediction():
    measured = replace(rank(0, 50.0, world=1), device="NVIDIA H200", unprofiled=Timings(synced_ms=(0.2, 0.3)))
    forecast = ft.predict(measured, on="h200", kernels="measured")
    seen, check = present(measured_with(forecast))
    assert seen.step_ms > 0 and present(check).step_ms[1] == 0.25
    page = step_page(forecast, (seen, check))
    assert [one["title"] for one in present(page.charts["timeline"])["timelines"]] == ["predicted", "measured"]
    assert "Predicted and measured" in page.html()


def test_a_measurement_on_another_device_does_not_check_the_prediction():
    measured = replace(rank(0, 50.0, world=1), device="NVIDIA V100", unprofiled=Timings(synced_ms=(0.2, 0.3)))
    forecast = ft.predict(measured, on="h200", kernels="measured")
    seen, check = present(measured_with(forecast))
    drawn = present(step_page(forecast, (seen, check)).charts["timeline"])
    titles = [one["title"] for one in drawn["timelines"]]
    assert check is None and titles == ["predicted", "measured elsewhere"]


def test_a_page_and_a_notebook_say_of_how_many_ranks_a_job_is():
    job = StepReport(source="train.py", platform="h200", world=4, step_ms=2.0, coverage={"model": 1.0})
    assert ">on h200, 4 ranks<" in step_page(job).html() and "train.py on h200, 4 ranks" in job._repr_html_()


def test_of_a_sketch_nothing_was_measured(forecast):
    assert measured_with(forecast) is None


def test_pages_of_all_kinds_are_written(forecast, tmp_path):
    write_page(forecast, tmp_path / "new" / "forecast.html")
    write_page(WhatIf(["batch=2"], forecast, forecast), tmp_path / "both.html")
    write_page(measure_step(rank(0, 50.0, world=1)), tmp_path / "seen.html")
    for name in ("new/forecast.html", "both.html", "seen.html"):
        assert (tmp_path / name).read_text().endswith("</html>")


def test_a_file_that_cannot_be_written_is_named(forecast, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ForetraceError, match="can't be written"):
        write_page(forecast, tmp_path / "file" / "page.html")


def test_a_notebook_shows_a_summary_in_which_names_stay_text(forecast):
    text = forecast._repr_html_()
    assert f"{forecast.step_ms:.2f}"[:3] in text and "<script" not in text and HOSTILE not in text
    seen: Graph = rank(0, 50.0, world=1)
    assert "host-bound" in measure_step(seen)._repr_html_() or "device" in measure_step(seen)._repr_html_()


def test_ranks_that_are_left_out_of_a_picture_are_counted():
    job = Job([rank(number, 50.0, world=70) for number in range(70)])
    text = step_page(ft.predict(job, on="h200", kernels="measured")).html()
    assert "54 more ranks are left out of the picture" in text
    assert "the first 64 of 70 ranks" in text


def test_bars_of_shares_are_as_long_as_the_largest_allows(forecast):
    text = step_page(forecast).html()
    widths = [float(found) for found in re.findall(r'class="share"><span style="width: ([\d.]+)%', text)]
    assert widths.count(100.0) == 3 and all(0 <= width <= 100 for width in widths)  # one in each of three tables


def test_each_rank_has_a_bar_of_what_its_device_did():
    chart = present(step_page(measure_step(Job([rank(0, 100.0), rank(1, 50.0)]))).charts["ranks"])
    assert chart["rows"] == ["rank 0", "rank 1"]
    by_part = dict(zip(chart["parts"], chart["ms"]))
    assert by_part["waits for other ranks"] == [0.0, 0.05] and by_part["transfers"] == [0.05, 0.05]


def test_one_rank_needs_no_such_bar():
    assert step_page(measure_step(rank(0, 50.0, world=1))).charts["ranks"] is None


def test_a_graph_without_times_still_has_a_page():
    page = step_page(measure_step(Graph(OpTable.of([Op(HOSTILE)]), source=HOSTILE)))
    assert page.charts["timeline"] is None and HOSTILE not in page.html()


def test_a_step_that_launches_nothing_has_no_time_before_its_launches():
    graph = Graph(OpTable.of([Op("aten::mm", phase="forward", start_us=0.0, end_us=9.0)]))
    text = step_page(measure_step(graph)).html()
    assert "inside ops" in text and "op start to first launch" not in text
    assert "device ms" not in text and "What the device holds" not in text


def test_the_measured_step_stands_beside_its_prediction():
    page = ft.predict(Job([rank(0, 100.0), rank(1, 50.0)]), on=None, fabric="h100-8x")
    html = step_page(page, measured_with(page)).html()
    assert "<dt>measured</dt>" in html and "profiled, which slows the host; predicted" in html
    assert "<dt>measured</dt>" not in step_page(ft.predict(sketched(4), on="h200")).html()


def test_what_the_memory_is_for_adds_up_to_the_peak(forecast):
    memory = present(step_page(forecast).charts["memory"])
    assert sum(memory["at_peak"].values()) == memory["peak"] and "At the peak" in step_page(forecast).html()


def test_what_was_measured_on_cpus_is_not_said_to_be_of_the_gpu(tmp_path):
    job = Path(__file__).parents[3] / "examples" / "dlrm-4-ranks"
    write_page(ft.predict(job, on="h200"), tmp_path / "page.html")
    assert "on its CPUs, without a profiler" in (tmp_path / "page.html").read_text()


def test_the_bars_of_the_ranks_are_as_long_as_the_step_on_cpus_too():
    forecast = ft.predict(Path(__file__).parents[3] / "examples" / "dlrm-4-ranks", fabric="h200-8x")
    bars = present(step_page(forecast).charts["ranks"])
    assert bars["parts"] == ["computes", "transfers", "waits for other ranks", "idle"]
    for spent in zip(*bars["ms"]):
        assert sum(spent) == pytest.approx(forecast.step_ms, rel=1e-3) and spent[0] > spent[2]
