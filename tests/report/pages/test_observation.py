from __future__ import annotations

from foretrace.forecast.observe import observe
from foretrace.graph import Graph, Job, Op, OpTable
from foretrace.report.pages.observation import observation_page
from tests.report.steps import HOSTILE, rank


def test_each_rank_has_a_bar_of_what_its_device_did():
    chart = observation_page(observe(Job([rank(0, 100.0), rank(1, 50.0)]))).charts["ranks"]
    assert chart["rows"] == ["rank 0", "rank 1"]
    by_part = dict(zip(chart["parts"], chart["ms"]))
    assert by_part["waits for other ranks"] == [0.0, 0.05] and by_part["transfers"] == [0.05, 0.05]


def test_one_rank_needs_no_such_bar():
    assert observation_page(observe(rank(0, 50.0, world=1))).charts["ranks"] is None


def test_a_graph_without_times_still_has_a_page():
    page = observation_page(observe(Graph(OpTable.of([Op(HOSTILE)]), source=HOSTILE)))
    assert page.charts["timeline"] is None and HOSTILE not in page.html()


def test_a_step_that_launches_nothing_has_no_time_before_its_launches():
    graph = Graph(OpTable.of([Op("aten::mm", phase="forward", start_us=0.0, end_us=9.0)]))
    text = observation_page(observe(graph)).html()
    assert "inside ops" in text and "op start to first launch" not in text
    assert "device ms" not in text and "What the device holds" not in text
