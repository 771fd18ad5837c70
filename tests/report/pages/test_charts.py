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


def test_a_step_without_kernels_has_no_such_bar():
    assert charts.parts(Forecast(step_ms=1.0).to_dict()) is None


def test_views_are_those_with_something_to_tell_apart():
    words = Forecast(by_phase=[row("forward", 1.0), row("backward", 2.0)], by_family=[row("copy", 1.0)]).to_dict()
    found = charts.views(words)["views"]
    assert [view["title"] for view in found] == ["phase"]
    assert [one["name"] for one in found[0]["rows"]] == ["backward", "forward"]


def test_a_model_that_is_one_module_is_shown_as_what_is_inside():
    rows = [row(f"Net.layer.{i}.{part}", 1.0) for i in range(5) for part in ("mlp", "attention")]
    tree = charts.module_tree(rows)
    assert [branch["name"] for branch in tree] == [f"Net.layer.{i}" for i in range(5)]
    assert [child["name"] for child in tree[0]["children"]] == ["mlp", "attention"]


def test_a_module_keeps_its_own_time_apart_from_that_of_those_inside():
    tree = charts.module_tree([row("a", 9.0), row("a.b", 1.0), row("c", 40.0)])
    inside = next(branch for branch in tree if branch["name"] == "a")["children"]
    assert {one["name"]: one["value"] for one in inside} == {"b": 2.0, "(itself)": 10.0}


def test_the_distribution_holds_all_but_the_farthest_draws():
    draws = np.concatenate([np.random.default_rng(0).normal(50.0, 2.0, 999), [5000.0]])
    chart = charts.distribution([("forecast", draws, [{"name": "step", "ms": 50.0, "dashed": False}])])
    assert chart["to"] < 100 and sum(chart["series"][0]["shares"]) > 0.99


def test_a_step_whose_draws_are_all_the_same_has_no_distribution():
    assert charts.distribution([("forecast", np.full(300, 7.0), []), ("none", np.zeros(0), [])]) is None


def test_memory_keeps_its_peak_however_few_points_are_drawn():
    nbytes = np.arange(10_000) % 777
    nbytes[4321] = 10**9
    chart = charts.memory([("rank 0", Memory(np.arange(10_000.0), nbytes))], 0.0, 2 * 10**9)
    series = chart["series"][0]
    assert len(series["ms"]) == charts.POINTS and max(series["bytes"]) == chart["peak"] == 10**9


def test_changes_show_the_largest_and_leave_out_rounding():
    rows = [{"name": str(i), "change_ms": (-1) ** i * i / 10} for i in range(60)]
    shown = charts.changes([*rows, {"name": "same", "change_ms": 0.0001}])["rows"]
    assert len(shown) == charts.ROWS and shown[0]["name"] == "58" and shown[-1]["name"] == "59"
    assert charts.changes([{"name": "same", "change_ms": 0.0}]) is None
