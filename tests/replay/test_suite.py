"""Many recordings, one result."""

from __future__ import annotations

import io
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from foretrace.graph import ForetraceError
from foretrace.replay.running import Replay
from foretrace.replay.suite import Member, Suite, members_of
from foretrace.report.replay import suite_blocks


def replayed(step_ms: float, was: float | None, calls: float = 1.0) -> Replay:
    words: dict[str, Any] = {field.name: None for field in fields(Replay)}
    return Replay(**{**words, "step_ms": step_ms, "original": {"step_ms": was}, "coverage": {"calls": calls}})


def suite(*results: Replay | ForetraceError, weights: tuple[float, ...] = (3.0, 1.0)) -> Suite:
    return Suite(tuple(Member(Path(f"run-{n}"), weight) for n, weight in enumerate(weights)), results)


def test_figures_are_weighted() -> None:
    both = suite(replayed(2.0, 1.0), replayed(10.0, 10.0, calls=0.5))
    words = both.to_dict()
    assert words["step_ms"] == 4.0 and words["original"]["step_ms"] == 3.25
    assert words["ratio"] == pytest.approx(2 ** (3 / 4))
    assert words["coverage"]["calls"] == (3 + 0.5) / 4


def test_one_that_fails_is_named_and_lowers_the_coverage() -> None:
    words = suite(replayed(2.0, 2.0), ForetraceError("run-1 is empty")).to_dict()
    assert words["suite"][1]["error"] == "run-1 is empty." and words["coverage"]["calls"] == 0.75
    assert words["step_ms"] is None, "a mean without it would look better than it is"
    assert words["ratio"] == 1.0


def test_an_original_that_nobody_timed_has_no_ratio() -> None:
    assert suite(replayed(2.0, None), replayed(1.0, None)).ratio is None


def test_a_file_lists_recordings_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"suite": [{"what": "bert", "weight": 3}, {"what": "dlrm"}]}))
    assert members_of([file], None) == [Member(tmp_path / "bert", 3.0), Member(tmp_path / "dlrm", 1.0)]


@pytest.mark.parametrize(
    "words",
    [
        {"suite": []},
        {"suite": "bert"},
        {"suite": [1]},
        {"suite": [{"weight": 2}]},
        {"suite": [{"what": "a", "weight": -1}]},
        {"suite": [{"what": "a", "weight": True}]},
        {"suite": [{"what": "a", "run": "rm"}]},
    ],
)
def test_a_file_that_says_nothing_sensible_is_refused(words: object, tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(words))
    with pytest.raises(ForetraceError, match=r"fleet\.json"):
        members_of([file], None)


def test_a_json_file_that_is_no_suite_may_be_a_trace(tmp_path: Path) -> None:
    for number, text in enumerate(['{"traceEvents": []}', "[", "[]"]):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        assert members_of([file], None) == [Member(file)]


@pytest.mark.parametrize("text", ['{"suite": [{"wha', '{"suite"', '{\n "suite": [{"what": "a"},]}'])
def test_a_suite_that_can_not_be_read_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(text)
    with pytest.raises(ForetraceError, match=r"fleet\.json is no suite"):
        members_of([file], None)


@pytest.mark.parametrize("weights", ["1", "1,x", "1,0", "1,nan", "1,2,3"])
def test_weights_are_one_number_above_zero_for_each(weights: str) -> None:
    with pytest.raises(ForetraceError):
        members_of([Path("a"), Path("b")], weights)


def test_a_suite_without_step_times_does_not_say_that_some_failed() -> None:
    member = replace(replayed(2.0, None), step_ms=None, peak_memory_bytes=1)
    console = Console(file=io.StringIO(), width=100)
    console.print(*suite_blocks(suite(member, weights=(1.0,)), 10))
    assert "could not be replayed" not in console.file.getvalue()  # type: ignore[attr-defined]
