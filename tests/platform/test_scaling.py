from __future__ import annotations

import pytest

import foretrace as ft
from foretrace.graph import ForetraceError
from foretrace.platform.platform import Platform
from foretrace.platform.scaling import read_factors

H200 = Platform.named("h200")


def test_a_scaled_platform_is_named_after_what_was_scaled():
    scaled = ft.platform("h200:hbm=1.5,clock=1.1,memory=2")
    assert scaled.name == "h200:hbm=1.5,clock=1.1,memory=2"
    assert scaled.about.provenance.endswith("; on paper with hbm=1.5,clock=1.1,memory=2")
    assert (scaled.device.memory_gbps, scaled.device.memory_gb) == (7200, 282)
    assert scaled.device.clock_mhz == pytest.approx(1980 * 1.1)
    assert scaled.device.peak_tflops["bfloat16"] == pytest.approx(989 * 1.1)
    assert scaled.device.matches != H200.device.matches  # what was recorded on an H200 was not recorded on this


def test_the_same_from_python():
    assert H200.scaled(hbm=1.5) == ft.platform("h200:hbm=1.5")


def test_a_faster_host_alone_leaves_the_device_as_it_was_measured():
    scaled = H200.scaled(host=2.0)
    assert scaled.device == H200.device and scaled.carry is None
    assert scaled.host.calls["aten::mm"].to_launch == H200.host.calls["aten::mm"].to_launch / 2
    assert scaled.host.before.forward_call == H200.host.before.forward_call / 2


def test_links_inside_a_node_and_between_nodes_are_scaled_apart():
    whole = ft.platform("h200", fabric="h100-2x8-p5").fabric
    inside = ft.platform("h200:nvlink=0.5", fabric="h100-2x8-p5").fabric
    between = ft.platform("h200:network=2", fabric="h100-2x8-p5").fabric
    assert inside.links.inside.gbps == whole.links.inside.gbps / 2
    assert inside.links.network == whole.links.network and inside.curves == whole.curves
    assert between.links.network.gbit == whole.links.network.gbit * 2
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
        ft.platform(name)


def test_a_described_gpu_can_be_scaled_too():
    scaled = ft.platform("a100:hbm=2")
    assert scaled.device.memory_gbps == 2 * 2039 and scaled.carry.source.name == "h200"


def test_factors_are_read_from_a_name():
    assert read_factors("hbm=1.5, host=2") == {"hbm": 1.5, "host": 2.0}


def test_faster_units_are_reached_as_well():
    h200 = Platform.named("h200")
    assert h200.scaled(compute=2).device.measured.tflops["tf32"] == 2 * h200.device.measured.tflops["tf32"]


def test_a_faster_memory_is_reached_as_well():
    h200 = Platform.named("h200")
    assert h200.scaled(hbm=2).device.measured.memory_gbps == 2 * h200.device.measured.memory_gbps
