from __future__ import annotations

import foretrace as ft
from foretrace.forecast.observe import observe
from foretrace.report.pages.roofline import roofline
from tests.report.steps import rank, sketched


def test_products_stand_right_of_additions_and_no_dot_above_its_roof():
    chart = roofline(ft.predict(sketched(), on="h200").workings)
    by_name = {op["name"]: op for op in chart["ops"]}
    assert by_name["aten::mm"]["intensity"] > 100 > by_name["aten::add"]["intensity"]
    assert by_name["aten::mm"]["count"] == 40 and by_name["aten::mm"]["shapes"] == "bfloat16 1024×1024, 1024×1024"
    for op in chart["ops"]:
        assert 0 < op["reached"] <= 1 and chart["from"] <= op["intensity"] <= chart["to"]


def test_only_rates_that_the_step_uses_are_drawn():
    rates = roofline(ft.predict(sketched(), on="h200").workings)["rates"]
    assert [rate["name"] for rate in rates] == ["bfloat16"]


def test_a_device_that_nobody_described_has_no_roofline():
    assert roofline(observe(rank(0, 50.0, world=1)).workings) is None
