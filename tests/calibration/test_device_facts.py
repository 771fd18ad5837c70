from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretrace.calibration.device_facts import DeviceFacts, best_gbps, best_tflops, describe_device
from foretrace.calibration.timing.device import device_facts
from foretrace.calibration.timing.kernels import ceiling_cases, measure_ceilings
from foretrace.calibration.timing.timer import HostTimer
from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import Measurement, read_all
from tests.narrowing import present

CPU = torch.device("cpu")


@pytest.fixture
def ceilings(tmp_path, monkeypatch):
    monkeypatch.setattr(HostTimer, "flush_cache", lambda clock: None)
    measure_ceilings(tmp_path, CPU)
    return read_all(tmp_path, "ceilings")


def test_a_device_without_a_description_is_described_by_what_it_says_and_reaches(tmp_path, ceilings):
    device_facts(CPU).write(tmp_path)
    device = describe_device(DeviceFacts.read(tmp_path), ceilings, "mine")
    assert (device.name, device.kind, device.measured.queue_depth) == ("mine", "cpu", None)
    assert device.peak_tflops == device.measured.tflops and device.peak_tflops["float32"] > 0
    assert device.memory_gbps == present(device.measured.memory_gbps) > 0
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
    device = describe_device(facts, [], "mine")
    assert device.sms == Device.named("h200").sms == 132
    assert (device.measured.kernel_gap_us, device.measured.queue_depth) == (1.2, 1024)
    assert device.measured.provenance.endswith("up to 2026-11-15; gap: seen")


def test_an_unknown_device_that_was_hardly_measured_is_said_so():
    facts = DeviceFacts("cuda", "Voodoo 2", 1, 1.0, 1.0, 1.0, 1.0)
    with pytest.raises(ForetraceError, match="no float32 GEMM or no large copy on Voodoo 2"):
        describe_device(facts, [], "mine")


def test_a_damaged_file_of_facts_is_named(tmp_path):
    device_facts(CPU).write(tmp_path)
    path = tmp_path / "device.json"
    path.write_text(path.read_text().replace('"kind": "cpu"', '"kind": 7'))
    with pytest.raises(ForetraceError, match=r"device\.json: the field 'kind' holds 7"):
        DeviceFacts.read(tmp_path)


H200 = Path(__file__).resolve().parents[2] / "measurements" / "h200"


def product(us, dtype="float32", side=1000, name="aten::mm", **given):
    matrix = Tensor((side, side), dtype)
    args = (matrix, matrix) if name == "aten::mm" else (Tensor((side,), dtype), matrix, matrix)
    return Measurement(Case(Op(name, args), **given), cold=[[("k", 2 * us)]], warm=[[("k", us)]])


def copied(us, elements=2**28, **given):
    whole = Tensor((elements,), "float32", **given)
    return Measurement(Case(Op("aten::copy_", (whole, whole))), cold=[[("copy", us)]], warm=[[("copy", us / 2)]])


def test_the_best_product_of_each_dtype_counts():
    found = [product(10.0), product(20.0), product(5.0, tf32=True), product(4.0, "bfloat16", name="aten::addmm")]
    assert best_tflops(found) == {"float32": 200.0, "tf32": 400.0, "bfloat16": 500.0}


def test_where_the_result_is_put_does_not_matter():
    into = product(10.0)
    into.case.op.kwargs["out"] = Tensor((1000, 50_000), "bfloat16")
    assert best_tflops([into]) == {"float32": 200.0}


def test_what_failed_counts_for_nothing():
    failed = Measurement(product(1.0).case, error="out of memory")
    assert best_tflops([failed]) == {} and best_gbps([failed]) is None


def test_a_copy_counts_where_no_cache_helps():
    assert best_gbps([copied(1000.0), copied(500.0)]) == pytest.approx(2 * 2**30 / 500e3, rel=1e-3)
    assert best_gbps([copied(0.1, elements=2**20)]) is None
    assert best_gbps([copied(500.0, device="cpu")]) is None


def test_the_h200_reaches_most_of_its_peaks_and_never_more():
    found, h200 = read_all(H200, "matrix", "copies"), Device.named("h200")
    for dtype, rate in best_tflops(found).items():
        assert 0.7 < rate / h200.peak_tflops[dtype] < 1, dtype
    assert 0.85 < present(best_gbps(found)) / h200.memory_gbps < 1
