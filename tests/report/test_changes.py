from __future__ import annotations

import pytest

from foretrace.report.terminal import print_difference
from tests.report.samples import Told


def row(name, before, after):
    change = after - before
    return {"name": name, "device_ms": [before, after], "host_ms": [0.0, 0.0], "count": [1, 1], "change_ms": change}


@pytest.fixture
def difference():
    rows = [row("aten::mm", 1.0, 3.0), row("aten::same", 1.0, 1.0), row("aten::relu", 2.0, 1.5)]
    return {
        "before": "a.json",
        "after": "b.json",
        "step_ms": (10.0, 12.5),
        "device_active_ms": (4.0, 5.0),
        "by_op": rows,
        "by_family": [row("matrix product", 1.0, 3.0)],
        "by_phase": [],
        "new": ["aten::new"],
        "gone": [],
    }


def shown(difference, page, top=10):
    print_difference(Told(difference), top, page)
    return page.file.getvalue()


def test_the_step_before_and_after_comes_first(difference, page):
    lines = shown(difference, page).splitlines()
    assert lines[0] == "a.json → b.json"
    assert "10.0 → 12.5 ms (+25 %)" in lines[1]


def test_slower_and_faster_ops_are_told_apart_and_the_same_left_out(difference, page):
    text = shown(difference, page)
    slower, faster = text.split("Slower, by op")[1].split("Faster, by op")
    assert "aten::mm" in slower and "+2.00" in slower
    assert "aten::relu" in faster and "-0.500" in faster
    assert "aten::same" not in text


def test_two_equal_steps_are_called_equal(difference, page):
    difference["by_op"] = [row("aten::mm", 1.0, 1.0)]
    assert "No op got slower or faster" in shown(difference, page)


def test_new_ops_are_named(difference, page):
    assert "Only in the second: aten::new" in shown(difference, page)


def test_hostile_names_are_only_names(difference, page):
    difference["by_op"][0]["name"] = "[/]"
    difference["new"] = ["[red]\x1b[2J"]
    text = shown(difference, page)
    assert "[/]" in text and r"[red]\x1b[2J" in text
