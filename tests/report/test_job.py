from __future__ import annotations

import pytest

from foretrace.forecast.forecast import Forecast
from foretrace.report.terminal import print_forecast, print_scaling
from tests.report.samples import Told


def rank(number, wait, **more):
    return {
        "rank": number, "stands_for": 1, "start_ms": 0.0, "step_ms": 5.6, "device_span_ms": 5.0,
        "device_active_ms": 1.6, "wait_ms": wait, "communication_ms": 1.0, "exposed_communication_ms": 0.7,
        "bubble_ms": 2.5, "host_ms": 3.1, **more,
    }  # fmt: skip


@pytest.fixture
def job():
    path = [
        {"what": "T2", "name": "aten::mm", "rank": 1, "ms": 4.0, "share": 0.8},
        {"what": "transfer", "name": "all_reduce", "rank": None, "ms": 1.0, "share": 0.2},
    ]
    return Forecast(
        source="train.py", platform="h200", world=2, step_ms=5.0, kernels=7, device_active_ms=1.6,
        ranks=[rank(0, 1.2), rank(1, 0.0)], wait_ms={0: 1.2, 1: 0.0},
        waits_for=[{"rank": 0, "waits_for": 1, "ms": 1.2, "count": 3}],
        stragglers=[{"rank": 1, "held_ms": 1.2, "why": "slow host"}],
        critical_path=path, critical_path_ranks={1: 4.0}, overheads={"T2": {}},
    ).to_dict()  # fmt: skip


def test_a_job_says_who_waits_for_whom_and_why(job, page):
    print_forecast(Told(job), 10, page)
    text = " ".join(page.file.getvalue().split())
    assert text.startswith("train.py on h200, 2 ranks")
    assert "rank 1 holds them back" in text and "slow host" in text
    assert "host 80 %, transfer 20 %; 80 % on rank 1" in text
    assert "next" not in text, "nobody knows it"


def test_ranks_alike_share_a_line(job, page):
    job["ranks"][0]["stands_for"] = 64
    print_forecast(Told(job), 10, page)
    assert "0 and 63 more" in page.file.getvalue()


def test_of_many_ranks_those_that_wait_least_and_most_are_shown(job, page):
    job["ranks"] = [rank(number, float(number)) for number in range(100)]
    print_forecast(Told(job), 10, page)
    assert "The 16 of 100 ranks that wait least and most" in page.file.getvalue()


def test_a_scaling_curve_is_a_line_a_size(page):
    sizes = ((1, 4.0, 1.0), (1024, 5.0, 0.8))
    rows = [
        {
            "world": world, "step_ms": ms, "efficiency": efficiency, "fabric": "h100-8x", "low_ms": 4.0,
            "high_ms": 6.0, "exposed_communication_ms": 0.5, "hidden_communication_ms": 0.1,
        }
        for world, ms, efficiency in sizes
    ]  # fmt: skip
    print_scaling(
        Told({"source": "train.py", "platform": "h200", "scaling": rows, "notes": ["weak scaling"]}), None, page
    )
    text = page.file.getvalue()
    assert "1 to 1,024 ranks" in text and "80 % of the speed of 1 rank" in text
    assert "1,024" in text and "weak scaling" in text
    print_scaling(Told({"source": "train.py", "platform": "h200", "scaling": rows, "notes": []}), 1, page)
    assert "… and 1 row more" in page.file.getvalue().removeprefix(text)


def test_ranks_without_devices_have_no_columns_of_devices(job, page):
    still = {"device_span_ms": 0.0, "device_active_ms": 0.0, "bubble_ms": 0.0}
    print_forecast(Told({**job, "ranks": [rank(0, 1.2, **still), rank(1, 0.0, **still)]}), 10, page)
    (head,) = [line.split() for line in page.file.getvalue().splitlines() if line.startswith("rank  step ms")]
    assert head == ["rank", "step", "ms", "waits", "exposed", "host"]
