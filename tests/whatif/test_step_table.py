"""Tables of step times against forecasts, and stacks fitted on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.stack import Stack
from foretrace.whatif import step_table
from foretrace.whatif.step_table import TableRow, TableStep, check_table, fit_stack, read_table

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = f"{EXAMPLES / 'gpt.py'}"
TRUTH = Stack("truth", "", gemm=0.6, host=0.8)
ROWS = ["data=2", "tensor=2,microbatches=2", "pipeline=2,microbatches=4", "data=4,sharded"]


@pytest.fixture(scope="module")
def steps() -> list[TableStep]:
    """Jobs whose measured steps are those that a known stack would have."""
    found = [TableStep(TableRow(MODEL, "a100", 1.0, parallel)) for parallel in ROWS]
    for step in found:
        step.row = replace(step.row, ms=step.ms(TRUTH))
    return found


def test_a_fit_finds_the_constants_that_measured_steps_were_made_with(steps: list[TableStep]) -> None:
    found = fit_stack(steps[::3], "found", "here")
    assert found.gemm == pytest.approx(TRUTH.gemm, rel=0.15)
    assert found.devices == ("a100",)
    for step in steps:
        assert step.ms(found) == pytest.approx(step.row.ms, rel=0.06)


def table(folder: Path, steps: list[TableStep]) -> Path:
    path = folder / "steps.csv"
    lines = [f'{s.row.model},"{s.row.parallel}",{s.row.gpu},{s.row.ms}' for s in steps]
    path.write_text("\n".join(["model,parallel,gpu,ms", *lines]))
    return path


def test_rows_that_were_not_fitted_are_scored(
    tmp_path: Path, steps: list[TableStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {step.row.parallel: step for step in steps}
    monkeypatch.setattr(step_table, "TableStep", lambda row: made[row.parallel])
    path = table(tmp_path, steps)
    plain, fitted = check_table(path, "none"), check_table(path, fit=0.5)
    assert [one.fitted for one in fitted.rows] == [True, False, True, False]
    before, after = (check.summary(check.scored) for check in (plain, fitted))
    assert before["bias"] < -0.2 and after["mean_error"] < 0.1 and after["inside"] == 1.0
    assert set(plain.by_configuration()) == {"a100 data", "a100 tensor=2", "a100 pipeline=2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("model,ms\na.py,3\n", "lacks gpu"),
        ("model,gpu,ms,speed\na.py,a100,3,1\n", "columns that mean nothing: speed"),
        ("model,gpu,ms\na.py,a100,fast\n", "line 2: could not convert"),
        ("model,gpu,ms\npython a.py,--b,a100,3\n", "line 2 has more cells than there are columns"),
        ("model,gpu,ms\na.py,a100,-3\n", "line 2: no step takes -3 ms"),
        ("model,gpu,ms\n,a100,3\n", "line 2 has no model or no GPU"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ForetraceError, match=message):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("a.py,a1000,3,", r"t.csv, row 2 \(a.py a1000\): no platform is called 'a1000'"),
        ("a.py,a100,3,data=two", r"t.csv, row 2 \(a.py data=two a100\): .*'two' is no number of ranks"),
        ('a.py,a100,3,"data=2,mixed"', r"t.csv, row 2 \(a.py data=2,mixed a100\): mixed needs sharded weights"),
    ],
)
def test_a_row_that_can_not_be_predicted_is_named_before_any_is_sketched(
    tmp_path: Path, last: str, message: str
) -> None:
    (tmp_path / "t.csv").write_text(f"model,gpu,ms,parallel\nfirst.py,a100,3,data=2\n{last}\n")
    with pytest.raises(ForetraceError, match=message):
        check_table(tmp_path / "t.csv", on_row=lambda what: pytest.fail(what))
