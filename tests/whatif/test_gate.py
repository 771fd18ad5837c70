"""The performance gate: figures of a predicted step against a baseline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.errors import ForetraceError
from foretrace.report.whatif import as_markdown
from foretrace.whatif.gate import Baseline, CallRow, compare, name_of, parse_share

CALL = CallRow("aten::mm", "forward", "net.*", "y = net(x)", 12, 100.0, 50.0, "train.py:7")


def step(ms: float = 10.0, *calls: CallRow, **figures: float) -> Baseline:
    return Baseline(
        source="train.py", platform="h200", torch="2.9", figures={"step_ms": ms, **figures}, calls=list(calls)
    )


def test_what_grew_by_more_than_is_allowed_fails() -> None:
    assert compare(step(10.0), step(10.2), 0.02).passed
    assert not compare(step(10.0), step(10.21), 0.02).passed
    assert compare(step(10.0), step(5.0), 0.0).passed


def test_a_figure_that_was_zero_may_not_appear() -> None:
    failed = compare(step(syncs=0), step(syncs=1), 0.5)
    assert [figure.name for figure in failed.figures if figure.worse] == ["syncs"]
    assert failed.figures[-1].change is None


def test_calls_that_changed_are_named_with_their_line() -> None:
    more = replace(CALL, count=13, device_us=120.0)
    (change,) = compare(step(10.0, CALL), step(11.0, more), 0.02).calls
    assert (change.op, change.line, change.count, change.change_us) == ("aten::mm", "train.py:7", (12, 13), 20.0)


def test_the_line_is_the_one_that_is_new() -> None:
    added = replace(CALL, code="y = net(net(x))", line="train.py:9", count=2, device_us=1.0, host_us=1.0)
    (change,) = compare(step(10.0, CALL), step(11.0, CALL, added), 0.02).calls
    assert change.line == "train.py:9" and change.count == (12, 14)


def test_lines_that_move_or_are_renamed_change_nothing() -> None:
    moved = replace(CALL, line="train.py:99", code="z = net(w)")
    assert compare(step(10.0, CALL), step(10.0, moved), 0.0).calls == []
    assert compare(step(10.0, CALL), step(11.0, moved), 0.0).calls == []


def test_calls_that_are_gone_are_named_too() -> None:
    (change,) = compare(step(10.0, CALL), step(9.0), 0.02).calls
    assert change.count == (12, 0) and change.change_us == -150.0


def test_a_baseline_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    step(10.0, CALL, kernels=3).write(path)
    again = Baseline.read(path)
    assert again == step(10.0, CALL, kernels=3)
    first = path.read_bytes()
    again.write(path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"source": "other.py"}, "of the script other.py, not train.py"),
        ({"platform": "a100"}, "for the platform a100, not h200"),
        ({"foretrace": "0.0.1"}, "by Foretrace 0.0.1"),
    ],
)
def test_a_baseline_of_something_else_is_refused(other: dict[str, str], why: str) -> None:
    with pytest.raises(ForetraceError, match=why):
        replace(step(), **other).check(Path("perf.json"), step())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "is no baseline"),
        ("[1]", "is no baseline"),
        ("no json", "can't be read"),
        ('{"format": "foretrace baseline", "version": 99}', "of version 99"),
        ('{"format": "foretrace baseline", "version": 1, "figures": {"step_ms": "x"}}', "can't be read"),
        ('{"format": "foretrace baseline", "version": 1, "figures": {"step_ms": 1' + "0" * 400 + "}}", "can't be read"),
        ('{"format": "foretrace baseline", "version": 1, "figures": {"step_ms": NaN}}', "can't be read"),
    ],
)
def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "perf.json").write_text(text)
    with pytest.raises(ForetraceError, match=why):
        Baseline.read(tmp_path / "perf.json")
    with pytest.raises(ForetraceError, match="with --update"):
        Baseline.read(tmp_path / "nothing.json")


def test_another_pytorch_is_noted() -> None:
    assert "PyTorch 2.9, this is 2.8" in compare(step(), replace(step(), torch="2.8"), 0.0).notes[0]


def test_markdown_holds_the_figures_and_no_markup_of_the_script() -> None:
    hostile = replace(CALL, code="x = '<b>|`'", count=13)
    text = as_markdown(compare(step(10.0, CALL), step(11.0, hostile), 0.02))
    assert "| step, ms | 10 | 11 | +10.00 % :x: |" in text and "<b>" not in text and "&lt;b>\\|" in text


def test_figures_that_differ_are_not_written_alike() -> None:
    before, now = step(305.67, peak_memory_bytes=25 << 30), step(306.01, peak_memory_bytes=(25 << 30) + (4 << 20))
    text = as_markdown(compare(before, now, 0.02))
    assert "| step, ms | 305.67 | 306.01 | +0.11 % |" in text
    assert "| peak memory | 25,600 MiB | 25,604 MiB | +0.02 % |" in text


def test_shares_and_names_are_read() -> None:
    assert parse_share("0%") == 0.0
    for text in ("-1%", "much", "2%%", "nan"):
        with pytest.raises(ForetraceError, match="is no share"):
            parse_share(text)
    assert name_of("/a/b/train.py") == "train.py"


def test_the_json_has_what_the_page_names() -> None:
    fields = compare(step(10.0, CALL), step(11.0), 0.02).to_dict()
    assert json.dumps(fields) and fields["passed"] is False and fields["modules"] == {"net.*": -150.0}
