from __future__ import annotations

import json

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.device import DEVICES, Device
from tests.narrowing import present


@pytest.fixture
def facts():
    return json.loads((DEVICES / "h200.json").read_text())


@pytest.mark.parametrize("path", sorted(DEVICES.glob("*.json")), ids=lambda path: path.stem)
def test_every_shipped_machine_can_be_read_and_is_named_after_its_file(path):
    device = Device.named(path.stem)
    assert device.name == path.stem and device.provenance
    assert device.lanes in range(60, 70) or device.lanes in range(120, 135)
    assert 100 < device.memory_gbps < 10_000 and 2 <= device.l2_mb <= 256 and device.power_w and device.process_nm


def test_matrix_units_know_bfloat16_since_ampere_and_float8_since_hopper_and_ada():
    shipped = [Device.named(path.stem) for path in DEVICES.glob("*.json")]
    # 8 nm and below since Ampere, 5 since Hopper.
    generation = {device.name: present(device.process_nm) for device in shipped}
    for dtype, node in (("bfloat16", 8), ("float8_e4m3fn", 5)):
        knows = {device.name for device in shipped if dtype in device.peak_tflops}
        assert knows == {name for name, nm in generation.items() if nm <= node}


def test_a_machine_nobody_knows_is_answered_with_those_that_are_known():
    with pytest.raises(ForetraceError, match=r"no device is called 'h2000'. Known are: .*h200"):
        Device.named("h2000")


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("sms", "many", "sms"),
        ("sms", 1.5, "sms"),
        ("memory_gbps", -1, "memory_gbps"),
        ("l2_mb", 0, "l2_mb"),
        ("peak_tflops", {"bfloat16": None}, "peak_tflops.bfloat16"),
        ("name", 3, "name"),
        ("measured", {"kernel_gap_us": "short"}, "measured.kernel_gap_us"),
    ],
)
def test_a_damaged_field_is_named(tmp_path, facts, field, value, named):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**facts, field: value}))
    with pytest.raises(ForetraceError, match=f"mine.json: the field '{named}' holds"):
        Device.read(path)


def test_a_device_that_nobody_measured_holds_nothing_up():
    measured = Device.named("h200").measured
    assert (measured.kernel_gap_us, measured.launch_latency_us, measured.queue_depth) == (0, 0, None)


def test_a_device_is_found_by_what_the_driver_calls_it():
    assert Device.matching("NVIDIA H200") == Device.named("h200")
    assert Device.matching("Voodoo 2") is None


@pytest.mark.parametrize(
    ("driver_name", "known"),
    [
        ("NVIDIA H800", "h800"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("AMD Instinct MI250X", "mi250x"),
        ("AMD Instinct MI300X VF", "mi300x"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-ada-6000"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GB10", "gb10"),
        ("GPU of 304 processors and 192 GiB", "mi300x"),
        ("AMD Radeon Graphics of 110 processors and 64 GiB", "mi250x"),
    ],
)
def test_the_model_of_a_device_is_told_by_its_driver_or_by_its_size(driver_name, known):
    assert present(Device.closest(driver_name)).name == known


@pytest.mark.parametrize(
    "driver_name",
    ["NVIDIA GeForce RTX 3060", "NVIDIA RTX A4500", "Quadro RTX 6000", "ARTEMIS", "", "GPU of 7 processors and 1 GiB"],
)
def test_a_model_that_is_not_described_is_not_taken_for_another_of_its_maker(driver_name):
    assert Device.closest(driver_name) is None
