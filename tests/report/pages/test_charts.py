from __future__ import annotations

import numpy as np
import pytest

import foretrace as ft
from foretrace.analysis.compare import TimeChange
from foretrace.analysis.measure import measure_step
from foretrace.analysis.memory import MemoryCurve
from foretrace.analysis.report import RankReport, StepReport, TimeRow
from foretrace.report.pages import charts
from tests.narrowing import present
from tests.report.steps import rank, sketched


def row(name: str, device: float, host: float = 1.0) -> TimeRow:
    return TimeRow(name, device, host, 1, 0.5)


def test_the_parts_of_a_step_add_up_to_it():
    causes = {"T1": 1.0, "T2": 2.0, "T4": 0.0, "latency": 0.5}
    forecast = StepReport(
        step_ms=10.0,
        kernels=3,
        device_active_ms=6.5,
        exposed_communication_ms=2.0,
        idle_causes=causes,
        ranks=[RankReport(0, step_ms=10.0, wait_ms=1.5)],
    )
    parts = {part["name"]: part["ms"] for part in present(charts.parts(forecast))["parts"]}
    assert sum(parts.values()) == pytest.approx(10.0)
    assert parts["device computes"] == 4.5 and parts["waits for other ranks"] == 1.5 and "host launching" not in parts


def test_ranks_that_are_done_before_others_are_separate_from_latency():
    ranks = [RankReport(0, step_ms=10.0), RankReport(1, step_ms=5.0, start_ms=1.0)]
    forecast = StepReport(step_ms=10.0, kernels=3, device_active_ms=7.0, idle_causes={"latency": 3.0}, ranks=ranks)
    parts = {part["name"]: part["ms"] for part in present(charts.parts(forecast))["parts"]}
    assert parts == {"device computes": 7.0, "latency": 1.0, "done before others": 2.0}


def test_what_of_the_communication_is_waiting_is_shown_apart():
    families = [row("matrix product", 9.0), row("communication", 6.0)]
    report = StepReport(by_family=families, ranks=[RankReport(0, wait_ms=8.0), RankReport(1)])
    assert [one.get("wait_ms") for one in present(charts.views(report))["views"][0]["rows"]] == [None, 4.0]


def test_a_step_without_kernels_has_no_such_bar():
    assert charts.parts(StepReport(step_ms=1.0)) is None


def test_views_are_those_with_something_to_tell_apart():
    report = StepReport(by_phase=[row("forward", 1.0), row("backward", 2.0)], by_family=[row("copy", 1.0)])
    found = present(charts.views(report))["views"]
    assert [view["title"] for view in found] == ["phase"]
    assert [one["name"] for one in found[0]["rows"]] == ["backward", "forward"]


def test_the_distribution_holds_all_but_the_farthest_draws():
    draws = np.concatenate([np.random.default_rng(0).normal(50.0, 2.0, 999), [5000.0]])
    chart = present(charts.distribution([("forecast", draws, [{"name": "step", "ms": 50.0, "dashed": False}])]))
    assert chart["to"] < 100 and sum(chart["series"][0]["shares"]) > 0.99


def test_a_step_whose_draws_are_all_the_same_has_no_distribution():
    assert charts.distribution([("forecast", np.full(300, 7.0), []), ("none", np.zeros(0), [])]) is None


def test_memory_keeps_its_peak_however_few_points_are_drawn():
    nbytes = np.arange(10_000) % 777
    nbytes[4321] = 10**9
    chart = present(charts.memory([(0, MemoryCurve(np.arange(10_000.0), nbytes))], 0.0, 2 * 10**9))
    (series,) = chart["series"]
    assert len(series["ms"]) == charts.POINTS and max(series["bytes"]) == chart["peak"] == 10**9
    assert chart["band"] is None


def test_of_many_ranks_the_fullest_and_the_least_full_are_lines_and_all_of_them_a_band():
    curves = [(rank, MemoryCurve(np.array([0.0, 5.0]), np.array([rank, 10 * rank]))) for rank in range(1, 71)]
    chart = present(charts.memory(curves, 0.0, None))
    assert [one["name"] for one in chart["series"]] == ["rank 70, the fullest", "rank 1, the least full"]
    assert chart["band"]["name"] == "all 70 ranks"
    assert max(chart["band"]["high"]) == 700 and max(chart["band"]["low"]) == 10


def test_ranks_that_hold_the_same_have_one_line():
    curves = [(rank, MemoryCurve(np.array([0.0, 5.0]), np.array([7, 9]))) for rank in range(3)]
    assert [one["name"] for one in present(charts.memory(curves, 0.0, None))["series"]] == ["rank 0, the fullest"]


def changed(name: str, change_ms: float) -> TimeChange:
    return TimeChange(name, (0.0, 0.0), (0.0, 0.0), (1, 1), change_ms)


def test_changes_show_the_largest_and_leave_out_rounding():
    rows = [changed(str(i), (-1) ** i * i / 10) for i in range(60)]
    chart = present(charts.changes([*rows, changed("same", 0.0001)]))
    shown = chart["rows"]
    assert chart["of"] == 59
    assert len(shown) == charts.MAX_BARS and shown[0]["name"] == "58" and shown[-1]["name"] == "59"
    assert charts.changes([changed("same", 0.0)]) is None


def test_a_model_that_is_one_module_is_shown_as_what_is_inside():
    rows = [row(f"Net.layer.{i}.{part}", 1.0) for i in range(5) for part in ("mlp", "attention")]
    tree = charts.module_tree(rows)
    assert [branch["name"] for branch in tree] == [f"Net.layer.{i}" for i in range(5)]
    assert [child["name"] for child in tree[0]["children"]] == ["mlp", "attention"]


def test_a_module_keeps_its_own_time_apart_from_that_of_those_inside():
    tree = charts.module_tree([row("a", 9.0), row("a.b", 1.0), row("c", 40.0)])
    inside = next(branch for branch in tree if branch["name"] == "a")["children"]
    assert {one["name"]: one["value"] for one in inside} == {"b": 2.0, "(itself)": 10.0}


def test_the_hosts_part_of_a_module_is_that_of_all_inside():
    (branch,) = charts.module_tree([row("a.b.c", 5.0, 4.0)])
    assert (branch["name"], branch["value"], branch["host"]) == ("a.b.c", 9.0, 4.0)


def test_products_stand_right_of_additions_and_no_dot_above_its_roof():
    chart = present(charts.roofline(present(ft.predict(sketched(), on="h200").workings)))
    by_name = {op["name"]: op for op in chart["ops"]}
    assert by_name["aten::mm"]["intensity"] > 100 > by_name["aten::add"]["intensity"]
    assert by_name["aten::mm"]["count"] == 40 and by_name["aten::mm"]["shapes"] == "bfloat16 1024×1024, 1024×1024"
    for op in chart["ops"]:
        assert 0 < op["reached"] <= 1 and chart["from"] <= op["intensity"] <= chart["to"]


def test_only_rates_that_the_step_uses_are_drawn():
    rates = present(charts.roofline(present(ft.predict(sketched(), on="h200").workings)))["rates"]
    assert [rate["name"] for rate in rates] == ["bfloat16"]


def test_a_device_without_a_description_has_no_roofline():
    assert charts.roofline(present(measure_step(rank(0, 50.0, world=1)).workings)) is None


def test_the_device_time_of_each_family_is_split_by_how_it_is_known():
    forecast = ft.predict(sketched(), on="h200")
    chart = present(charts.sources(present(forecast.workings)))
    assert chart["parts"] == ["modelled", "by roofline"] and chart["rows"][0] == "matrix product"
    assert sum(sum(part) for part in chart["ms"]) == pytest.approx(forecast.kernel_ms, rel=0.01)
    assert sum(chart["ms"][1]) / forecast.kernel_ms == pytest.approx(forecast.coverage["fallback"], rel=0.05)


def test_of_a_measured_step_there_is_nothing_to_tell():
    assert charts.sources(present(measure_step(rank(0, 50.0, world=1)).workings)) is None
