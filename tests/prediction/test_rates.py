from __future__ import annotations

import pytest

import foretrace as ft
from foretrace.prediction.rates import roofline
from tests.narrowing import present
from tests.report.steps import sketched


def test_calls_of_one_name_and_shapes_are_told_together_the_longest_first():
    found = present(roofline(present(ft.predict(sketched(), on="h200").workings)))
    product = next(alike for alike in found.calls if alike.op.name == "aten::mm")
    assert len(product.us) == 40 and product.flops == 2 * 1024**3 and product.rate == "bfloat16"
    spent = [sum(alike.us) for alike in found.calls]
    assert spent == sorted(spent, reverse=True)


def test_no_call_is_faster_than_its_roof():
    found = present(roofline(present(ft.predict(sketched(), on="h200").workings)))
    product = next(alike for alike in found.calls if alike.op.name == "aten::mm")
    assert product.least_us == pytest.approx(product.flops / found.peaks["bfloat16"] / 1e6)
    assert all(alike.least_us <= min(alike.us) for alike in found.calls)
