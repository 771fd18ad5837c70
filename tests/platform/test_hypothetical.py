from __future__ import annotations

import pytest

import foretrace as ft
from foretrace.graph import ForetraceError
from foretrace.platform.device import Device
from foretrace.platform.hypothetical import CrossDeviceConstants, CrossDeviceScaling, read_factors
from foretrace.platform.platform import Platform
from foretrace.platform.registry import device_files
from tests.narrowing import present

DESCRIBED = Device.named("h200")


@pytest.mark.parametrize("name", device_files())
def test_every_described_gpu_can_be_carried_over_to(name):
    scaling = CrossDeviceScaling.between(DESCRIBED, Device.named(name))
    assert scaling.source == DESCRIBED
    assert 0.2 < scaling.gemm <= 1.0 and 0.8 < scaling.no_tensor_cores < 1.5 and 0.5 < scaling.start < 6.0


def test_a_gpu_of_the_same_kind_reaches_the_same_shares():
    scaling = CrossDeviceScaling.between(DESCRIBED, Device.named("h100"))
    assert (scaling.gemm, scaling.no_tensor_cores, scaling.memory) == (1.0, 1.0, 1.0)


def test_a_board_that_may_draw_little_does_not_hold_its_clock():
    assert CrossDeviceScaling.between(DESCRIBED, Device.named("l4")).gemm < 0.7
    assert CrossDeviceScaling.between(DESCRIBED, Device.named("v100")).gemm == 1.0


def test_half_as_many_lanes_are_easier_to_feed():
    known = CrossDeviceConstants(1.2, 2.8, 0.7, 1.0, 3.0, 0.2, 0.3, "made up")
    assert CrossDeviceScaling.between(DESCRIBED, Device.named("v100"), known).no_tensor_cores == 1.2
    other = CrossDeviceScaling.between(DESCRIBED, Device.named("mi210"), known)
    assert (other.gemm, other.spread) == (0.7, 0.3)


H200 = Platform.named("h200")


def test_a_scaled_platform_is_named_after_what_was_scaled():
    scaled = ft.load_platform("h200:hbm=1.5,clock=1.1,memory=2")
    assert scaled.name == "h200:hbm=1.5,clock=1.1,memory=2"
    assert scaled.about.provenance.endswith("; hypothetical, with hbm=1.5,clock=1.1,memory=2")
    assert (scaled.device.memory_gbps, scaled.device.memory_gb) == (7200, 282)
    assert scaled.device.clock_mhz == pytest.approx(1980 * 1.1)
    assert scaled.device.peak_tflops["bfloat16"] == pytest.approx(989 * 1.1)
    assert scaled.device.matches != H200.device.matches  # what was recorded on an H200 was not recorded on this


def test_the_same_from_python():
    assert H200.scaled(hbm=1.5) == ft.load_platform("h200:hbm=1.5")


def test_a_faster_host_alone_leaves_the_device_as_it_was_measured():
    scaled = H200.scaled(host=2.0)
    assert scaled.device == H200.device and scaled.cross_device is None
    assert scaled.host.calls["aten::mm"].to_launch == H200.host.calls["aten::mm"].to_launch / 2
    assert scaled.host.before.forward_call == H200.host.before.forward_call / 2


def test_links_inside_a_node_and_between_nodes_are_scaled_apart():
    whole, inside, between = (
        present(ft.load_platform(name, fabric="h100-2x8-p5").fabric)
        for name in ("h200", "h200:nvlink=0.5", "h200:network=2")
    )
    links, slower, faster = (present(fabric.links) for fabric in (whole, inside, between))
    assert slower.inside.gbps == links.inside.gbps / 2
    assert slower.network == links.network and inside.curves == whole.curves
    assert present(faster.network).gbit == present(links.network).gbit * 2
    assert [c.gbps for c in between.curves] == [2 * c.gbps for c in whole.curves]


def test_links_of_no_fabric_can_not_be_scaled():
    with pytest.raises(ForetraceError, match="h200 has no fabric whose links could be scaled"):
        H200.scaled(nvlink=0.5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h200:hmb=1.5", "no part of a platform is called 'hmb'. Did you mean hbm?"),
        ("h200:hbm=0", "hbm can't be scaled by 0. Give a factor from 0.01 to 100"),
        ("h200:hbm=-1", "hbm can't be scaled by -1"),
        ("h200:hbm=nan", "hbm can't be scaled by nan"),
        ("h200:hbm=much", "'hbm=much' is no part of a platform with its factor"),
        ("h200:hbm=2,", "'' is no part of a platform with its factor"),
        ("h2000:hbm=2", "no platform is called 'h2000'.*Did you mean h200"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_runs(name, said):
    with pytest.raises(ForetraceError, match=said):
        ft.load_platform(name)


def test_a_described_gpu_can_be_scaled_too():
    scaled = ft.load_platform("a100:hbm=2")
    assert scaled.device.memory_gbps == 2 * 2039 and present(scaled.cross_device).root.name == "h200"


def test_factors_are_read_from_a_name():
    assert read_factors("hbm=1.5, host=2") == {"hbm": 1.5, "host": 2.0}


def test_faster_units_are_reached_as_well():
    h200 = Platform.named("h200")
    assert h200.scaled(compute=2).device.measured.tflops["tf32"] == 2 * h200.device.measured.tflops["tf32"]


def test_a_faster_memory_is_reached_as_well():
    h200 = Platform.named("h200")
    assert h200.scaled(hbm=2).device.measured.memory_gbps == 2 * present(h200.device.measured.memory_gbps)
