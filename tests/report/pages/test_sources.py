from __future__ import annotations

import pytest
from foretrace.forecast.observe import observe

import foretrace as ft
from foretrace.report.pages.sources import sources
from tests.report.steps import rank, sketched


def test_the_device_time_of_each_family_is_told_by_how_it_is_known():
    forecast = ft.predict(sketched(), on="h200")
    chart = sources(forecast.workings)
    assert chart["parts"] == ["modelled", "by roofline"] and chart["rows"][0] == "matrix product"
    assert sum(map(sum, chart["ms"])) == pytest.approx(forecast.kernel_ms, rel=0.01)
    assert sum(chart["ms"][1]) / forecast.kernel_ms == pytest.approx(forecast.coverage["fallback"], rel=0.05)


def test_of_a_measured_step_there_is_nothing_to_tell():
    assert sources(observe(rank(0, 50.0, world=1)).workings) is None
