from __future__ import annotations

import pytest

from foretrace.report.terminal import print_forecast
from tests.report.samples import Told


def row(name, share):
    return {"name": name, "device_ms": share, "host_ms": 0.5, "count": 3, "share": share}


@pytest.fixture
def forecast():
    look = {
        "name": "aten::index_put_", "phase": "backward", "ms": 0.9, "share": 0.16, "calls": 1, "launches": 3,
        "host_ms": 0.9, "device_ms": 0.1, "mostly": "host",
    }  # fmt: skip
    return {
        "source": "train.py",
        "platform": "h200",
        "world": 1,
        "step_ms": 5.6,
        "step_ms_back_to_back": 5.5,
        "low_ms": 5.2,
        "high_ms": 6.1,
        "device_active_ms": 1.6,
        "device_idle_ms": 4.0,
        "idle_causes": {"T1": 1.0, "T2": 2.5, "T3": 0.0, "T4": 0.4, "T5": 0.0, "sync": 0.0, "latency": 0.1},
        "kernel_ms": 1.6,
        "kernels": 185,
        "exposed_communication_ms": 0.0,
        "hidden_communication_ms": 0.0,
        "peak_memory_bytes": 18 * 2**30,
        "memory_bytes": 141_000_000_000,
        "fits": True,
        "tflops": 0.2,
        "tflops_per_second": 35.7,
        "mfu": 0.036,
        "gigabytes": 2.0,
        "gbps": 1250.0,
        "coverage": {"measured": 0.0, "model": 0.971, "fallback": 0.029},
        "critical_path": [{"what": "T2", "name": "aten::mm", "rank": 0, "ms": 3.0, "share": 0.54}],
        "look_at": [look],
        "overheads": {},
        "ranks": [],
        "wait_ms": {"0": 0.0},
        "waits_for": [],
        "stragglers": [],
        "critical_path_ranks": {},
        "by_op": [row("aten::mm", 0.6), row("aten::add", 0.4)],
        "by_family": [row("matrix product", 0.41), row("lookup", 0.22), row("copy", 0.14), row("norm", 0.1)],
        "by_phase": [row("forward", 0.3), row("backward", 0.7)],
        "by_module": [],
        "notes": ["1 value read on the host"],
    }


def shown(forecast, page, top=10):
    print_forecast(Told(forecast), top, page)
    return page.file.getvalue()


def test_the_step_comes_first_with_its_range_and_what_holds_it_up(forecast, page):
    lines = shown(forecast, page).splitlines()
    assert lines[0] == "train.py on h200"
    assert "5.60 ms" in lines[1] and "(5.20 – 6.10) host-bound: the device idles 71 % of it" in lines[1]


def test_no_number_stands_without_how_it_is_known(forecast, page):
    assert "97.1 % modelled of the device time, 2.9 % by roofline" in " ".join(shown(forecast, page).split())


def test_the_largest_families_are_named(forecast, page):
    assert "matrix product 41 %, lookup 22 %, copy 14 %," in " ".join(shown(forecast, page).split())


def test_memory_that_does_not_fit_is_said_loudly(forecast, page):
    assert "fits in" in shown(forecast, page)
    forecast["fits"] = False
    assert "does NOT fit in" in shown(forecast, page)


def test_what_nobody_knows_is_left_out(forecast, page):
    forecast |= {"peak_memory_bytes": None, "mfu": None, "coverage": {"measured": 0.0, "model": 0.0, "fallback": 0.0}}
    text = shown(forecast, page)
    assert "memory" not in text and "MFU" not in text and "nothing to do" in text


def test_idle_time_is_explained_by_its_causes_largest_first(forecast, page):
    text = shown(forecast, page).split("Why the device idles 4.00 ms")[1].split("Critical path")[0]
    assert text.index("op start to first launch") < text.index("between ops") < text.index("in launch calls")
    assert "last launch to op end" not in text


def test_ops_to_look_at_are_named_with_why(forecast, page):
    text = shown(forecast, page).split("Look at these first")[1]
    assert "aten::index_put_" in text and "host" in text


def test_a_step_without_kernels_says_so(forecast, page):
    forecast |= {"kernels": 0, "device_active_ms": 0.0, "by_family": []}
    assert "all of it on the host" in shown(forecast, page)


def test_communication_is_shown_where_there_is_some(forecast, page):
    assert "comm" not in shown(forecast, page)
    forecast |= {"exposed_communication_ms": 0.25, "hidden_communication_ms": 1.5}
    assert "0.250 ms" in shown(forecast, page)


def test_hostile_names_are_only_names(forecast, page):
    forecast["source"] = "[red]\x1b[2J"
    forecast["look_at"][0]["name"] = "[/]"
    text = shown(forecast, page)
    assert r"[red]\x1b[2J" in text and "[/]" in text
