from __future__ import annotations

import json

import numpy as np
import pytest

from foretrace.analysis.report import StepReport, TimeRow
from foretrace.platform.typed_json import FieldError
from foretrace.report.json import as_json, decode
from tests.report.samples import Document, measured_step, predicted_job


@pytest.fixture
def fields():
    return measured_step().to_dict()


def test_the_same_fields_give_the_same_text_whatever_their_order(fields):
    backwards = dict(reversed(fields.items()))
    assert as_json(Document(fields)) == as_json(Document(backwards))


def test_what_is_no_number_is_null(fields):
    fields["step_ms"] = {0: float("nan"), 1: float("inf"), 2: np.float64("nan")}
    assert json.loads(as_json(Document(fields)))["step_ms"] == {"0": None, "1": None, "2": None}


def test_numbers_of_numpy_come_out_as_numbers(fields):
    fields["world"], fields["device_span_ms"] = np.int64(8), np.float32(1.5)
    read = json.loads(as_json(Document(fields)))
    assert read["world"] == 8 and read["device_span_ms"] == 1.5


def test_names_survive_as_they_are(fields):
    fields["by_op"][0]["name"] = '</script>"\x1b[31m\u2028'
    assert json.loads(as_json(Document(fields)))["by_op"][0]["name"] == '</script>"\x1b[31m\u2028'


def test_a_record_is_read_back_with_its_rows(fields):
    report = predicted_job()
    fields = json.loads(as_json(report))
    del fields["ranks"]
    read = decode(StepReport, fields)
    assert read.critical_path == report.critical_path and read.critical_path_ranks == {1: 4.0}
    assert read.overheads == report.overheads and read.waits_for == report.waits_for


@pytest.mark.parametrize("damage", [{"name": 3}, {"device_ms": "1"}, {"count": None}, {"share": float("inf")}])
def test_a_value_of_another_type_names_its_field(damage):
    row = {"name": "aten::mm", "device_ms": 1.0, "host_ms": 1.0, "count": 1, "share": 1.0}
    with pytest.raises(FieldError) as refused:
        decode(TimeRow, row | damage)
    assert refused.value.field == next(iter(damage))
