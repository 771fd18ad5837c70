"""Figures of a GPU, as tools print them."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch

from foretrace.replay.harness import system

HEAD = ",".join(f'"{name}"' for name in ("ID", "Kernel Name", system.DURATION, *system.METRICS.values()))


def row(number: int, name: str, *figures: object) -> str:
    return ",".join(f'"{cell}"' for cell in (number, name, *figures))


TABLE = "\n".join(
    [
        "==PROF== Connected to process 1",
        HEAD,
        row("", "", "ns", "%", "%", "byte/s", "%", "%"),  # type: ignore[arg-type]
        row(0, "gemm", "3,000", "50", "20", "2,000,000,000,000", "80", "60"),
        row(1, "copy", "1,000", "10", "0", "4,000,000,000,000", "n/a", "20"),
        row(2, "void at::spin_kernel(long)", "9", "0", "0", "0", "0", "0"),
        row(3, "gemm", "2,000", "55", "25", "1,000,000,000,000", "90", "65"),
    ]
)


def test_metrics_are_averaged_over_time_and_steps_are_kept_apart() -> None:
    first, second = system.averages(TABLE)
    assert first == pytest.approx({
        "kernels": 2, "kernel_us": 4.0, "sm_active": 40.0, "tensor_core_active": 15.0, "dram_gbps": 2500.0,
        "l2_hit": 80.0, "occupancy": 50.0,
    })  # fmt: skip
    assert second["kernels"] == 1 and second["dram_gbps"] == pytest.approx(1000.0)


def test_a_share_is_never_more_than_all_of_it() -> None:
    told = TABLE.replace('"90"', '"2,300"')
    assert system.averages(told)[1]["l2_hit"] == 100.0


def test_without_the_tool_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "ncu", lambda: None)
    assert "not installed" in system.counters(["x.py"])[0]["error"]


@pytest.mark.parametrize(
    ("said", "told"),
    [("==ERROR== ERR_NVGPUCTRPERM - no permission", "ERR_NVGPUCTRPERM"), ("", "counted nothing (exit code 1)")],
)
def test_locked_counters_are_said(monkeypatch: pytest.MonkeyPatch, said: str, told: str) -> None:
    def run(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], 1, said, "")

    monkeypatch.setattr(system, "ncu", lambda: "ncu")
    monkeypatch.setattr(subprocess, "run", run)
    assert told in system.counters(["x.py"])[0]["error"]


def test_one_call_in_so_many_of_each_operator_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: opened.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: opened.append("stop"))
    x = torch.ones(4)
    with system.SampledProfiling(every=3) as counted:
        for _ in range(7):
            x = x + 1
        x.neg()
    assert counted.seen["aten.add.Tensor"] == 7
    assert opened == ["start", "stop"] * 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_there_is_no_power() -> None:
    assert system.power_and_clock(lambda: None, lambda: None) == {}
