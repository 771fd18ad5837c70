from __future__ import annotations

import json

import pytest

from foretrace.analysis.report import RankReport, StepReport, TimeRow
from foretrace.graph import ForetraceError
from foretrace.report.json import as_json
from foretrace.ui.documents import is_prediction, read_document, read_prediction


def test_what_predict_wrote_as_json_is_the_same_report(tmp_path):
    (tmp_path / "a.json").write_text(as_json(StepReport(source="a", platform="h200", step_ms=2.5, notes=["one"])))
    document = read_document(tmp_path / "a.json")
    forecast = read_prediction(document, "a.json")
    assert is_prediction(document) and (forecast.step_ms, forecast.source, forecast.notes) == (2.5, "a", ["one"])


def test_a_document_never_brings_workings():
    assert read_prediction({"step_ms": 1.0, "workings": {"evil": 1}, "unknown": 2}, "a.json").workings is None


def test_a_field_of_the_wrong_kind_is_named():
    with pytest.raises(ForetraceError, match="the field 'step_ms' holds 'long'"):
        read_prediction({"step_ms": "long"}, "a.json")


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_document_has_no_fields(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    assert read_document(tmp_path / "a.json") == {}


WHOLE = StepReport(
    source="a", platform="h200", step_ms=2.5, samples=4, mfu=0.5, peak_memory_bytes=9, coverage={"model": 1.0},
    by_op=[TimeRow("aten::mm", 1.0, 0.5, 1, 1.0)], ranks=[RankReport(0, wait_ms=1.0)], notes=["one"],
)  # fmt: skip
ROW = {"name": "aten::mm", "device_ms": 1.0, "host_ms": 0.5, "count": 1, "share": 1.0}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_ms", float("inf")), ("step_ms", float("nan")), ("step_ms", 10**400), ("step_ms", True), ("mfu", "x"),
        ("samples", [1]), ("samples", 10**400), ("peak_memory_bytes", {}), ("coverage", {"model": "x"}),
        ("by_op", [{"name": "aten::mm"}]), ("by_op", [{**ROW, "name": ["x"]}]),
        ("by_op", [{**ROW, "device_ms": None}]), ("by_op", [{**ROW, "more": 10**400}]),
        ("by_family", [None]), ("by_phase", {}), ("notes", [["x"]]), ("notes", "x"), ("source", 3), ("fits", "yes"),
        ("wait_ms", {"0": "long"}), ("fabric", 1),
    ],
)  # fmt: skip
def test_a_prediction_that_cannot_be_drawn_is_refused(field, value):
    document = json.loads(as_json(WHOLE))
    assert read_prediction(document, "a.json").step_ms == 2.5
    with pytest.raises(ForetraceError, match=rf"a\.json is damaged: the field {field!r} holds") as refused:
        read_prediction({**document, field: value}, "a.json")
    assert len(str(refused.value)) < 200
