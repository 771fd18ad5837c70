from __future__ import annotations

import pytest

from foretrace.forecast.forecast import Forecast
from foretrace.graph import ForetraceError
from foretrace.report.json import as_json
from foretrace.ui.documents import is_forecast, read_forecast, read_words


def test_what_predict_wrote_as_json_is_the_same_forecast(tmp_path):
    (tmp_path / "a.json").write_text(as_json(Forecast(source="a", platform="h200", step_ms=2.5, notes=["one"])))
    words = read_words(tmp_path / "a.json")
    forecast = read_forecast(words, "a.json")
    assert is_forecast(words) and (forecast.step_ms, forecast.source, forecast.notes) == (2.5, "a", ["one"])


def test_a_forecast_never_brings_its_own_workings():
    assert read_forecast({"step_ms": 1.0, "workings": {"evil": 1}, "unknown": 2}, "a.json").workings is None


def test_a_field_of_the_wrong_kind_is_named():
    with pytest.raises(ForetraceError, match="the field 'step_ms' holds 'long'"):
        read_forecast({"step_ms": "long"}, "a.json")


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_document_is_none(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    assert read_words(tmp_path / "a.json") is None
