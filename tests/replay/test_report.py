"""A replay compared with its original, as figures and as text."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, Group

from foretrace.replay.harness.report import (
    MAX_NAME_CHARS,
    compare_kernels,
    format_bytes,
    format_result,
    group_failures,
    kernels_by_name,
    obfuscated,
    shares,
    weights,
)
from foretrace.replay.running import Replay
from foretrace.report.replay import replay_blocks


def test_kernels_are_matched_by_name_and_count() -> None:
    found = compare_kernels([("a", 1000.0), ("b", 500.0), ("b", 500.0)], {"a": [2, 2.0], "b": [1, 0.5]})
    assert found is not None and found["same"] == (1.0 + 0.5) / 2.5
    assert found["missing"] == [{"name": "a", "count": 1, "ms": 1.0}]
    assert found["extra"] == [{"name": "b", "count": 1, "ms": 0.5}]


def test_long_names_and_hidden_ones_are_found_again() -> None:
    name = "k" * (MAX_NAME_CHARS + 50)
    for known in (name[:MAX_NAME_CHARS], obfuscated(name)):
        found = compare_kernels([(name, 1000.0)], {known: [1, 1.0]})
        assert found is not None and found["same"] == 1.0 and not found["extra"]


def test_without_kernels_nothing_is_compared() -> None:
    assert compare_kernels([], {"a": [1, 1.0]}) is None and compare_kernels([("a", 1.0)], {}) is None
    assert kernels_by_name([]) == {}


def test_coverage_counts_calls_host_and_device_apart() -> None:
    calls = [{"host_us": 1.0, "device_us": 9.0}, {"host_us": 3.0, "device_us": 1.0}]
    assert shares([weights(calls, [0, 1], {0})]) == {"calls": 0.5, "host": 0.25, "device": 0.9}


def test_a_share_of_host_time_needs_half_of_the_calls_timed() -> None:
    calls = [{"host_us": us, "device_us": 0.0} for us in (5.0, 0.0, 0.0, 0.0)]
    assert shares([weights(calls, [0, 1, 2, 3], {0})])["host"] is None
    assert shares([weights(calls, [0, 1], {0})])["host"] == 1.0


def test_failures_that_say_the_same_are_one() -> None:
    failures = [{"call": f"aten.x.default(t{n})", "error": "no"} for n in range(4)]
    failures += [{"call": "aten.x.default(t9)", "error": "never"}]
    assert group_failures(failures) == [("aten.x.default", 4, "no"), ("aten.x.default(t9)", 1, "never")]


def test_sizes_are_said_in_the_unit_that_suits_them() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1 << 20, 5 << 40)] == ["0.0 B", "1023.0 B", "1.0 MiB", "5.0 TiB"]
    assert format_bytes(10**400) == "more than 1024 EiB"


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


@pytest.mark.parametrize("text", [format_result(RESULT, 10), in_terminal()], ids=["run.py", "foretrace replay"])
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
    return format_result(result, 10), in_terminal(result)


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
