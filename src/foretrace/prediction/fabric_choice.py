"""The fabric of a job: the one that is named, the platform's own, or the shipped one that fits best."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from foretrace.cost_models.collectives.pricing import assumptions
from foretrace.errors import ForetraceError
from foretrace.graph import Job
from foretrace.graph.tables import LAUNCH
from foretrace.platform.fabric import Fabric, fabrics
from foretrace.platform.platform import Platform

PCIE = "pcie"
UNNAMED = "GPUs that the traces do not name"
WIDESPREAD = "InfiniBand"
"""The network of most clusters; others are those of cloud providers."""


def choose_fabric(
    named: Fabric | Platform | str | Path | None, own: Fabric | None, device: str, world: int, gpus_per_node: int | None
) -> tuple[Fabric, list[str]]:
    """The fabric of a job, and notes on it: the one named, the platform's own, or the shipped one that fits best.

    >>> choose_fabric(None, None, "NVIDIA H200", 8, None)[0].name
    'h200-8x'
    """
    if named is not None:
        from foretrace.platform.registry import find_fabric

        return find_fabric(named), []
    if own is not None:
        return own, []
    found = fabric_of(device, max(world, 1), gpus_per_node)
    return found, [f"fabric {found.name} is assumed: the closest that comes with Foretrace; --fabric names another"]


def device_of(job: Job) -> str:
    """The name of the device that a measured job ran on; empty for a CPU.

    >>> from foretrace.graph import Graph, OpTable
    >>> device_of(Job([Graph(OpTable.of([]), device="NVIDIA H200")])), device_of(Job([Graph(OpTable.of([]))]))
    ('NVIDIA H200', '')
    """
    named = next((graph.device for graph in job.graphs if graph.device), "")
    launches = any(len(graph.kernels) or (graph.calls.kind == LAUNCH).any() for graph in job.graphs)
    return named or (UNNAMED if launches else "")


def fabrics_of(device: str, worlds: Sequence[int], gpus_per_node: int | None = None) -> list[Fabric]:
    """The fabrics of jobs of several sizes, all on machines of one kind: with as many GPUs as the largest one's have.

    >>> [fabric.name for fabric in fabrics_of("Tesla V100-SXM2-32GB", [8, 16, 64])]
    ['v100-8x', 'v100-8x', 'v100-8x']
    """
    size = fabric_of(device, max(worlds), gpus_per_node).gpus_per_node
    return [fabric_of(device, world, gpus_per_node, size) for world in worlds]


@cache
def fabric_of(device: str, world: int, gpus_per_node: int | None = None, size: int | None = None) -> Fabric:
    """The shipped fabric of a device that comes closest to a job of so many ranks.

    Between nodes InfiniBand leads, which most clusters have; and a cloud's network for the very model that it is of
    (p4d: A100s of 40 GB). Of these, those measured between as many nodes lead, and the one whose ranks are closest in
    number; links that are known by their specification alone come last.

    The device is named as by its driver; the fabric's nodes have ``size`` GPUs, or any number.

    >>> fabric_of("NVIDIA A100-SXM4-80GB", 8).name, fabric_of("Tesla V100-PCIE-32GB", 2).name
    ('a100-8x-nvswitch', 'v100-2x-pcie')
    >>> fabric_of("NVIDIA H100 80GB HBM3", 64).links.network.kind
    'InfiniBand'
    """
    of_device = [fabric for fabric in map(Fabric.named, fabrics()) if fabric.links and _is_of(fabric.links.gpu, device)]
    of_device = [] if device == UNNAMED else of_device
    fitting = [fabric for fabric in of_device if _reaches(fabric, world, gpus_per_node)]
    if size:
        fitting = [fabric for fabric in fitting if fabric.gpus_per_node == size]
    if not fitting:
        what = f"connects {world} GPUs of the kind {device}" if of_device else f"is known for {device or 'a CPU'}"
        raise ForetraceError(
            f"no shipped fabric {what}",
            "Name one with --fabric. `foretrace platform list` shows the shipped ones; `foretrace platform fabric "
            f"--from JOB --out mine` fits one to a recorded job; `torchrun --nproc-per-node {world} --no-python "
            "foretrace calibrate fabric --out mine` measures one. Or predict the job on GPUs, with --on h200.",
        )
    return min(fitting, key=lambda fabric: _distance(fabric, device, world, gpus_per_node))


def _is_of(gpu: str, device: str) -> bool:
    """Whether a fabric's GPU is the device: the model is the same, and both have PCIe cards or neither."""
    fabric_words, device_words = _words(gpu), _words(device)
    return fabric_words[0] in device_words and (PCIE in fabric_words) == (PCIE in device_words)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def _reaches(fabric: Fabric, world: int, gpus_per_node: int | None) -> bool:
    try:
        assumptions(fabric, world, gpus_per_node)
    except ForetraceError:
        return False
    return True


def _distance(fabric: Fabric, device: str, world: int, gpus_per_node: int | None) -> tuple[float | str, ...]:
    between = -(-world // (gpus_per_node or fabric.gpus_per_node)) > 1
    alike = [curve for curve in fabric.curves if (curve.nodes > 1) == between]
    off = min((abs(math.log(curve.ranks / world)) for curve in alike), default=math.inf)
    assert fabric.links
    fabric_words, device_words, network = set(_words(fabric.links.gpu)), set(_words(device)), fabric.links.network
    this_model = any(word.endswith("gb") for word in fabric_words & device_words)
    cloud = between and network is not None and network.kind != WIDESPREAD and not this_model
    form = len(fabric_words - device_words)  # SXM3 is not SXM2
    return cloud, not alike, form, off, fabric.name
