from __future__ import annotations

import numpy as np
import pytest

from foretrace.forecast.forecast import Forecast
from foretrace.forecast.workings import Memory
from foretrace.report.pages import charts


def row(name: str, device: float, host: float = 1.0) -> dict[str, object]:
    return {"name": name, "device_ms": device, "host_ms": host, "count": 1, "share": 0.5}


def test_the_parts_of_a_step_add_up_to_it():
    causes = {"T1": 1.0, "T2": 2.0, "T4": 0.0, "latency": 0.5}
    forecast = Forecast(
        step_ms=10.0,
        kernels=3,
        device_active_ms=6.5,
        exposed_communication_ms=2.0,
        idle_causes=causes,
        wait_ms={0: 1.5},
    )
    parts = {part["name"]: part["ms"] for part in charts.parts(forecast.to_dict())["parts"]}
    assert sum(parts.values()) == pytest.approx(10.0)
    assert parts["device computes"] == 4.5 and parts["waits for other ranks"] == 1.5 and "host launching" not in parts


def test_ranks_that_are_done_before_others_are_told_apart_from_latency():
    ranks = [{"start_ms": 0.0, "step_ms": 10.0}, {"start_ms": 1.0, "step_ms": 5.0}]
    forecast = Forecast(step_ms=10.0, kernels=3, device_active_ms=7.0, idle_causes={"latency": 3.0}, ranks=ranks)
    parts = {part["name"]: part["ms"] for part in charts.parts(forecast.to_dict())["parts"]}
    assert parts == {"device computes": 7.0, "latency": 1.0, "done before others": 2.0}


def test_what_of_the_communication_is_waiting_is_shown_apart():
    families = [row("matrix product", 9.0), row("communication", 6.0)]
    words = Forecast(by_family=families, wait_ms={0: 8.0, 1: 0.0}).to_dict()
    assert [one.get("wait_ms") for one in charts.views(words)["views"][0]["rows"]] == [None, 4.0]


def test_a_step_without_kernels_has_no_such_bar():
    assert charts.parts(Forecast(step_ms=1.0).to_dict()) is None


def test_views_are_those_with_something_to_tell_apart():
    words = Forecast(by_phase=[row("forward", 1.0), row("backward", 2.0)], by_family=[row("copy", 1.0)]).to_dict()
    found = charts.views(words)["views"]
    assert [view["title"] for view in found] == ["phase"]
    assert [one["name"] for one in found[0]["rows"]] == ["backward", "forward"]


def test_the_distribution_holds_all_but_the_farthest_draws():
    draws = np.concatenate([np.random.default_rng(0).normal(50.0, 2.0, 999), [5000.0]])
    chart = charts.distribution([("forecast", draws, [{"name": "step", "ms": 50.0, "dashed": False}])])
    assert chart["to"] < 100 and sum(chart["series"][0]["shares"]) > 0.99


def test_a_step_whose_draws_are_all_the_same_has_no_distribution():
    assert charts.distribution([("forecast", np.full(300, 7.0), []), ("none", np.zeros(0), [])]) is None


def test_memory_keeps_its_peak_however_few_points_are_drawn():
    nbytes = np.arange(10_000) % 777
    nbytes[4321] = 10**9
    chart = charts.memory([(0, Memory(np.arange(10_000.0), nbytes))], 0.0, 2 * 10**9)
    (series,) = chart["series"]
    assert len(series["ms"]) == charts.POINTS and max(series["bytes"]) == chart["peak"] == 10**9
    assert chart["band"] is None


def test_of_many_ranks_the_fullest_and_the_least_full_are_lines_and_all_of_them_a_band():
    curves = [(rank, Memory(np.array([0.0, 5.0]), np.array([rank, 10 * rank]))) for rank in range(1, 71)]
    chart = charts.memory(curves, 0.0, None)
    assert [one["name"] for one in chart["series"]] == ["rank 70, the fullest", "rank 1, the least full"]
    assert chart["band"]["name"] == "all 70 ranks"
    assert max(chart["band"]["high"]) == 700 and max(chart["band"]["low"]) == 10


def test_ranks_that_hold_the_same_have_one_line():
    curves = [(rank, Memory(np.array([0.0, 5.0]), np.array([7, 9]))) for rank in range(3)]
    assert [one["name"] for one in charts.memory(curves, 0.0, None)["series"]] == ["rank 0, the fullest"]


def test_changes_show_the_largest_and_leave_out_rounding():
    rows = [{"name": str(i), "change_ms": (-1) ** i * i / 10} for i in range(60)]
    chart = charts.changes([*rows, {"name": "same", "change_ms": 0.0001}])
    shown = chart["rows"]
    assert chart["of"] == 59
    assert len(shown) == charts.ROWS and shown[0]["name"] == "58" and shown[-1]["name"] == "59"
    assert charts.changes([{"name": "same", "change_ms": 0.0}]) is None
