from __future__ import annotations

import pytest

from foretrace.report.terminal import print_check
from tests.report.samples import Told


@pytest.fixture
def check():
    miss = {"name": "aten::mm", "device_ms": [1.5, 1.0], "host_ms": [0.2, 0.3], "count": [4, 4], "miss_ms": 0.4}
    return {
        "source": "run",
        "platform": "h200",
        "step_ms": [11.0, 10.0],
        "step_ms_back_to_back": [9.9, 10.0],
        "range_ms": [9.5, 12.0],
        "inside": True,
        "device_active_ms": [5.0, 5.1],
        "peak_memory_bytes": [2**30, 2**31],
        "kernels": [100, 101],
        "coverage": {"measured": 0.0, "model": 1.0, "fallback": 0.0},
        "by_op": [miss],
        "notes": [],
    }


def shown(check, page):
    print_check(Told(check), 10, page)
    return page.file.getvalue()


def test_predicted_and_measured_stand_side_by_side_with_how_far_off(check, page):
    lines = shown(check, page).splitlines()
    assert lines[0] == "run on h200: predicted, measured"
    assert "11.0, 10.0 ms" in lines[1] and "+10.0 %; the range 9.50 – 12.0 holds it" in lines[1]
    assert "-1.0 %" in lines[2]


def test_a_range_that_misses_is_said(check, page):
    check["inside"] = False
    assert "does NOT hold it" in shown(check, page)


def test_misses_carry_their_sign(check, page):
    text = shown(check, page).split("Largest misses first")[1]
    assert "aten::mm" in text and "+0.400" in text


def test_what_was_not_measured_is_left_out(check, page):
    check |= {"device_active_ms": None, "kernels": None, "peak_memory_bytes": None, "step_ms_back_to_back": None}
    text = shown(check, page)
    assert "memory" not in text and "next" not in text and "device" not in text.split("Largest")[0]
