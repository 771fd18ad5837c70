"""A result, for a reader: in a benchmark's own words, and in the terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, Group

from foretrace.replay.harness.report import told
from foretrace.replay.running import Replay
from foretrace.report.replay import replay_blocks

RESULT: dict[str, Any] = {
    "device": "NVIDIA H200",
    "paced": True,
    "step_ms": 4.0,
    "step_ms_back_to_back": 3.5,
    "kernel_ms": 1.2,
    "launches": 116,
    "peak_memory_bytes": 3 << 30,
    "coverage": {"calls": 0.98, "host": 0.99, "device": 1.0},
    "ops": {},
    "system": {"power_w": 227.4, "clock_mhz": 1980.0, "l2_hit": 61.5, "error": "counters are locked"},
    "kernels": {
        "same": 0.995,
        "matched": [{"name": "gemm", "count": 2, "ms": 1.0, "was_count": 2, "was_ms": 1.1}],
        "missing": [{"name": "gone", "count": 1, "ms": 0.1}],
        "extra": [],
    },
    "failures": [{"number": 3, "call": "aten.mm.default(t1, t2)", "error": "RuntimeError: no"}],
    "stand_ins": [{"call": "mine::op", "why": "not allowed"}],
    "translated": {"aten::cudnn_batch_norm": 53},
    "original": {"step_ms": 4.2, "kernel_ms": 1.2, "launches": 116, "peak_memory_bytes": 3 << 30},
    "notes": ["something was assumed"],
    "world": 1,
    "ranks": None,
}


def in_terminal(result: dict[str, Any] = RESULT) -> str:
    replay = Replay(**{"iterations": 3, "low_ms": None, "high_ms": None, **result})
    console = Console(file=io.StringIO(), width=100)
    console.print(Group(*replay_blocks(replay, 10)))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", [told(RESULT, 10), in_terminal()], ids=["run.py", "foretrace replay"])
@pytest.mark.parametrize(
    "said",
    ["NVIDIA H200", "-4.8 %", "116", "227 W", "1980 MHz", "61.5 %", "counters are locked", "gemm", "gone", "mine::op",
     "aten.mm.default(t1, t2)", "aten::cudnn_batch_norm", "something was assumed"],
)  # fmt: skip
def test_everything_worth_knowing_is_said(text: str, said: str) -> None:
    assert said in text


def both(**other: Any) -> tuple[str, str]:
    """A result that differs so much, as run.py tells it and as the terminal shows it."""
    result = {**RESULT, "kernels": None, **other}
    return told(result, 10), in_terminal(result)


def test_without_an_original_nothing_is_headed_so() -> None:
    assert all("original" in text for text in both())
    assert not any("original" in text for text in both(original={"step_ms": None, "device": "cpu"}))


def test_an_original_that_ran_elsewhere_is_said_to_have() -> None:
    was = {**RESULT["original"], "device": "NVIDIA A100"}
    assert all("NVIDIA A100" in text.splitlines()[0] for text in both(original=was))
    assert not any("on NVIDIA H200; " in text or "original on" in text for text in both())


def test_next_to_nothing_has_no_sign_of_less() -> None:
    was = {**RESULT["original"], "step_ms": 4.0001}
    assert all("+0.0 %" in text and "-0.0 %" not in text for text in both(original=was))


def test_a_step_without_a_time_is_not_held_against_one() -> None:
    for text in both(step_ms=None, step_ms_back_to_back=None, kernel_ms=None, launches=None):
        assert "step" not in text and "%" in text and "memory" in text


def test_a_host_time_that_nobody_knows_is_said_to_be_unknown() -> None:
    for text in both(coverage={"calls": 0.98, "host": None, "device": None}):
        assert "host time" in text and "unknown" in text and "device time" not in text


def test_failures_alike_are_told_once() -> None:
    failures = [{"number": n, "call": f"aten.x.default(t{n})", "error": "RuntimeError: no"} for n in range(4)]
    for text in both(failures=failures):
        assert text.count("RuntimeError: no") == 1 and "4" in text and "aten.x.default" in text
