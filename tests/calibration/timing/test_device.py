"""A driver is put in nvidia-smi's place, which answers as it would."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from foretrace.calibration.timing.device import THROTTLE_REASONS, _max_clocks_mhz, health_problems

GPU = SimpleNamespace(type="cuda", index=1)
STRANGER = 4_000_000_000


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Lets a test say what the driver answers, by what it is asked."""
    answers = tmp_path / "answers"
    answers.mkdir()
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = --id=GPU-00ff ] && cat "{answers}/${{2%%,*}}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="00ff"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)

    def says(used: str = "0 %", pids: tuple[int, ...] = (), slowed: str = "Not Active") -> None:
        (answers / "--query-gpu=utilization.gpu").write_text(f"{used}\n")
        (answers / "--query-compute-apps=pid").write_text("".join(f"{pid}\n" for pid in pids))
        (answers / f"--query-gpu={next(iter(THROTTLE_REASONS))}").write_text(f"{slowed}, Not Active, Not Active\n")
        (answers / "--query-gpu=clocks.max.sm").write_text("1980 MHz, 3201 MHz\n")

    return says


def test_an_idle_gpu_is_fine(driver) -> None:
    driver()
    assert health_problems(GPU) == []


def test_a_gpu_that_we_ourselves_just_used_is_not_called_busy(driver) -> None:
    driver(used="97 %", pids=(os.getpid(),))
    assert health_problems(GPU) == []


def test_in_a_container_whose_processes_the_driver_numbers_otherwise_it_is_not_either(
    driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2**20)
    driver(used="97 %", pids=(STRANGER,))
    assert health_problems(GPU) == []


def test_a_gpu_that_another_process_keeps_busy_is_said_so(driver) -> None:
    driver(used="97 %", pids=(os.getpid(), STRANGER))
    assert health_problems(GPU) == ["the device is busy: used 97 % of the last second, with 1 other on it"]


def test_before_we_have_anything_on_it_whoever_is_there_is_another(driver) -> None:
    driver(used="97 %", pids=(STRANGER,))
    assert len(health_problems(GPU)) == 1


def test_another_process_that_rests_does_not_matter(driver) -> None:
    driver(used="3 %", pids=(os.getpid(), STRANGER))
    assert health_problems(GPU) == []


def test_a_gpu_that_holds_itself_back_is_said_so(driver) -> None:
    driver(slowed="Active")
    assert health_problems(GPU) == ["the device is throttled: it is too hot"]


def test_where_the_driver_can_t_be_asked_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="00ff"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    assert health_problems(GPU) == []
    assert _max_clocks_mhz(GPU) == (2000.0, 2000.0)


def test_the_driver_gives_the_highest_clocks(driver) -> None:
    driver()
    assert _max_clocks_mhz(GPU) == (1980.0, 3201.0)
