from __future__ import annotations

import json

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.device import MACHINES, Device


@pytest.fixture
def facts():
    return json.loads((MACHINES / "h200.json").read_text())


@pytest.mark.parametrize("path", sorted(MACHINES.glob("*.json")), ids=lambda path: path.stem)
def test_every_shipped_machine_can_be_read_and_is_named_after_its_file(path):
    device = Device.named(path.stem)
    assert device.name == path.stem
    assert device.peak_tflops["bfloat16"] > device.peak_tflops["float32"]


def test_a_machine_nobody_knows_is_answered_with_those_that_are_known():
    with pytest.raises(ForetraceError, match=r"no device is called 'h2000'. Known are: .*h200"):
        Device.named("h2000")


@pytest.mark.parametrize(
    ("field", "value"),
    [("sms", "many"), ("sms", 1.5), ("memory_gbps", -1), ("peak_tflops", {"bfloat16": None}), ("name", 3)],
)
def test_a_damaged_field_is_named(tmp_path, facts, field, value):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**facts, field: value}))
    with pytest.raises(ForetraceError, match=f"mine.json: the field '{field}' holds"):
        Device.read(path)


def test_a_missing_field_is_named(tmp_path, facts):
    del facts["l2_mb"]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(facts))
    with pytest.raises(ForetraceError, match="the field 'l2_mb' is missing"):
        Device.read(path)


def test_a_field_that_means_nothing_is_named(tmp_path, facts):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**facts, "smss": 3}))
    with pytest.raises(ForetraceError, match="the field 'smss' means nothing"):
        Device.read(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_what_is_no_description_is_said_so(tmp_path, text):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ForetraceError, match=r"mine\.json is not a device description"):
        Device.read(path)
