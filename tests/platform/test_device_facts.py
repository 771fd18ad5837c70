from __future__ import annotations

import pytest
import torch

from foretrace.graph import ForetraceError
from foretrace.platform.device import Device
from foretrace.platform.device_facts import DeviceFacts, describe
from foretrace.platform.measure.ceilings import ceiling_cases, measure_ceilings
from foretrace.platform.measure.clocks import HostClock
from foretrace.platform.measure.describe import device_facts
from foretrace.platform.rates import read_all

CPU = torch.device("cpu")


@pytest.fixture
def ceilings(tmp_path, monkeypatch):
    monkeypatch.setattr(HostClock, "flush", lambda clock: None)
    measure_ceilings(tmp_path, CPU)
    return read_all(tmp_path, "ceilings")


def test_a_device_without_a_description_is_described_by_what_it_says_and_reaches(tmp_path, ceilings):
    device_facts(CPU).write(tmp_path)
    device = describe(DeviceFacts.read(tmp_path), ceilings, "mine")
    assert (device.name, device.kind, device.measured.queue_depth) == ("mine", "cpu", None)
    assert device.peak_tflops == device.measured.tflops and device.peak_tflops["float32"] > 0
    assert device.memory_gbps == device.measured.memory_gbps > 0
    assert "the best that were measured" in device.provenance


def test_ceilings_are_measured_once(tmp_path, ceilings):
    before = (tmp_path / "ceilings.jsonl.gz").stat()
    measure_ceilings(tmp_path, CPU)
    assert (tmp_path / "ceilings.jsonl.gz").stat().st_mtime_ns == before.st_mtime_ns
    assert len(ceilings) == len(ceiling_cases("cpu")) and not any(one.error for one in ceilings)


def test_a_known_device_keeps_its_maker_s_figures():
    facts = DeviceFacts(
        "cuda", "NVIDIA H200", 1, 1.0, 1.0, 1.0, 1.0, {"made": "2026-11-15T03:51"}, 1.2, 1.7, 1024, "gap: seen"
    )
    device = describe(facts, [], "mine")
    assert device.sms == Device.named("h200").sms == 132
    assert (device.measured.kernel_gap_us, device.measured.queue_depth) == (1.2, 1024)
    assert device.measured.provenance.endswith("up to 2026-11-15; gap: seen")


def test_an_unknown_device_that_was_hardly_measured_is_said_so():
    facts = DeviceFacts("cuda", "Voodoo 2", 1, 1.0, 1.0, 1.0, 1.0)
    with pytest.raises(ForetraceError, match="no product of float32 or no large copy on Voodoo 2"):
        describe(facts, [], "mine")


def test_a_damaged_file_of_facts_is_named(tmp_path):
    device_facts(CPU).write(tmp_path)
    path = tmp_path / "device.json"
    path.write_text(path.read_text().replace('"kind": "cpu"', '"kind": 7'))
    with pytest.raises(ForetraceError, match=r"device\.json: the field 'kind' holds 7"):
        DeviceFacts.read(tmp_path)
