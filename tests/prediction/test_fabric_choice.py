"""The fabric that joins a job's GPUs."""

import pytest

from foretrace.graph import ForetraceError
from foretrace.prediction.fabric_choice import fabric_of, fabrics_of
from tests.narrowing import present


@pytest.mark.parametrize(
    ("device", "world", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 8, "a100-8x-nvswitch"),
        ("NVIDIA A100-SXM4-40GB", 16, "a100-2x8-p4d"),
        ("Tesla V100-SXM2-32GB", 8, "v100-8x"),
        ("Tesla V100-PCIE-32GB", 2, "v100-2x-pcie"),
        ("NVIDIA H100 80GB HBM3", 4, "h100-8x"),
        ("NVIDIA H100 80GB HBM3", 64, "h100-8x"),
        ("NVIDIA A100-SXM4-80GB", 64, "a100-8x-nvswitch"),
        ("NVIDIA H200", 8, "h200-8x"),
        ("NVIDIA B200", 8, "b200-8x"),
        ("NVIDIA L40S", 8, "l40s-8x-pcie"),
        ("NVIDIA GB200", 72, "gb200-nvl72"),
        ("NVIDIA GH200 120GB", 2048, "gh200-slingshot"),
    ],
)
def test_the_closest_shipped_fabric_is_taken(device: str, world: int, name: str) -> None:
    assert fabric_of(device, world).name == name


def test_between_nodes_one_that_was_measured_so_is_taken() -> None:
    assert max(curve.nodes for curve in fabric_of("NVIDIA A100-SXM4-40GB", 64).curves) > 1


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA B200"])
def test_nodes_are_joined_by_infiniband_unless_another_network_is_named(device: str) -> None:
    network = present(present(fabric_of(device, 16).links).network)
    assert network.kind == "InfiniBand"


@pytest.mark.parametrize(("device", "world"), [("", 2), ("AMD Instinct MI300X", 8)])
def test_where_none_fits_the_user_is_asked_for_one(device: str, world: int) -> None:
    with pytest.raises(ForetraceError, match="no shipped fabric") as error:
        fabric_of(device, world)
    assert "--fabric" in error.value.advice


@pytest.mark.parametrize("worlds", [(8, 16), (8, 16, 64), (1, 2, 4)])
def test_a_curve_stays_on_machines_of_one_kind(worlds: tuple[int, ...]) -> None:
    assert len({fabric.gpus_per_node for fabric in fabrics_of("Tesla V100-SXM2-32GB", worlds)}) == 1
