"""Hypothetical platforms: GPUs that were not calibrated, and platforms with parts of them faster or larger.

Kernel times of both are scaled from the device that the kernel models were fitted on, call by call
(`foretrace.cost_models.kernels.cross_device`), by the two devices' descriptions and the figures in
`CrossDeviceScaling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from foretrace.errors import ForetraceError
from foretrace.platform.device import Device
from foretrace.platform.fabric import Fabric
from foretrace.platform.host import BetweenCalls, CallCost, ColdHost, Host, Sharded
from foretrace.platform.platform import Platform
from foretrace.platform.typed_json import Positive, read_as

CONSTANTS = Path(__file__).parent / "data" / "cross_device.json"
MIN_FACTOR, MAX_FACTOR = 0.01, 100.0
"""Factors beyond these make another machine, not one like it."""
Times = TypeVar("Times", CallCost, BetweenCalls, ColdHost, Sharded)


@dataclass(frozen=True)
class CrossDeviceScaling:
    """How kernel times of one device are scaled to another, apart from what the devices' descriptions say.

    All factors are 1 where the other device reaches the rates that were published for it, or else the same shares of
    its peaks as the measured device does of its own. Replace them where better ones are known.

    >>> from dataclasses import replace
    >>> scaling = CrossDeviceScaling.between(Device.named("h200"), Device.named("a100"))
    >>> replace(scaling, gemm=0.95, memory=0.9).memory
    0.9
    """

    source: Device
    """The device that the kernel models were fitted on."""
    gemm: Positive = 1.0
    """Share of the reachable rate that GEMMs, convolutions and attention keep."""
    no_tensor_cores: Positive = 1.0
    """Further share that GEMMs without Tensor Cores (float32, float64) keep; above 1 where they reach more."""
    memory: Positive = 1.0
    """Share of the reachable bandwidth that memory-bound calls keep."""
    issue: Positive = 1.0
    """Share of the instruction rate (SMs times clock) that calls bound by instruction issue keep."""
    start: Positive = 1.0
    """How many times as long a kernel takes to start and end."""
    spread: float = 0.15
    """Standard deviation of the logarithm of a time that is scaled by a factor of two or more."""

    @classmethod
    def between(
        cls, source: Device, device: Device, constants: CrossDeviceConstants | None = None
    ) -> CrossDeviceScaling:
        """From a measured device to another, by what is known of GPUs like it.

        >>> CrossDeviceScaling.between(Device.named("h200"), Device.named("h100")).no_tensor_cores
        1.0
        """
        known = constants or CrossDeviceConstants.shipped()
        clocks, same_maker = source.clock_mhz / device.clock_mhz, device.maker == source.maker
        narrow = same_maker and 2 * device.lanes <= source.lanes
        return cls(
            source,
            gemm=sustained_clock(device, known.energy_pj) if same_maker else known.other_maker,
            no_tensor_cores=known.narrow if narrow else 1.0,
            start=clocks * (known.start if same_maker else known.other_start),
            spread=known.spread if same_maker else known.other_spread,
        )


@dataclass(frozen=True)
class CrossDeviceConstants:
    """What descriptions do not say; most of it fitted on published step times of models (the claim ``other_gpus``)."""

    narrow: Positive
    """Share of the float32 peak that GEMMs reach on a GPU whose SMs have at most half the FP32 lanes of the measured
    device, over the share that they reach there: published for one such GPU, over measured on the H200."""
    energy_pj: Positive
    """Picojoules that an FP32 lane takes in a clock during a GEMM, for each nanometre of the GPU's process node."""
    other_maker: Positive
    """Share of the reachable rate that GEMMs keep on another maker's GPU."""
    start: Positive
    """How many times as many clocks a kernel takes to start and end."""
    other_start: Positive
    """`start` on another maker's GPU."""
    spread: Positive
    """Standard deviation of the logarithm of a time that is scaled by a factor of two or more."""
    other_spread: Positive
    """`spread` on another maker's GPU."""
    provenance: str

    @classmethod
    def shipped(cls) -> CrossDeviceConstants:
        """The constants that come with Foretrace."""
        return read_as(cls, CONSTANTS)


def sustained_clock(device: Device, energy_pj: float) -> float:
    """Share of its clock that a device sustains during a GEMM, within its power limit.

    >>> sustained_clock(Device.named("a100"), 2.8), round(sustained_clock(Device.named("t4"), 2.8), 2)
    (1.0, 0.51)
    """
    return min(1.0, power_budget_pj(device) / energy_pj)


def power_budget_pj(device: Device) -> float:
    """Picojoules that a device may take for an FP32 lane in a clock, for each nanometre of its process node.

    >>> round(power_budget_pj(Device.named("h200")), 1)
    5.2
    """
    if device.power_w is None or device.process_nm is None:
        return math.inf
    return device.power_w * 1e6 / (device.process_nm * device.sms * device.lanes * device.clock_mhz)


def uncalibrated_platform(device: Device, measured: Platform) -> Platform:
    """A device that was not calibrated, with the kernel models, scaled, and the host of a platform that was."""
    about = replace(
        measured.about,
        name=device.name,
        made="",
        provenance=f"not calibrated: kernel times are scaled from {measured.name}, the host is that of {measured.name}",
    )
    published = device.measured
    known = replace(
        measured.device.measured,
        memory_gbps=published.memory_gbps,
        tflops=published.tflops,
        provenance="; ".join(filter(None, [published.provenance, f"gap, latency and queue as on {measured.name}"])),
    )
    return replace(
        measured,
        name=device.name,
        device=replace(device, measured=known),
        fabric=None,
        about=about,
        cross_device=CrossDeviceScaling.between(measured.device, device),
    )


def read_factors(text: str) -> dict[str, float]:
    """The factors in a platform's name, after the colon.

    >>> read_factors("hbm=1.5,host=2")
    {'hbm': 1.5, 'host': 2.0}
    """
    found: dict[str, float] = {}
    for one in text.split(","):
        part, _, factor = (text.strip() for text in one.partition("="))
        if part in found:
            raise ForetraceError(f"{part} is scaled twice", "Give one factor for each part.")
        try:
            found[part] = float(factor)
        except ValueError:
            raise ForetraceError(
                f"{one!r} is no part of a platform with its factor", "Say for instance h200:hbm=1.5,host=2."
            ) from None
    return found


def scaled_platform(platform: Platform, factors: Mapping[str, float]) -> Platform:
    """A platform with parts of it several times as fast, or as large: `Platform.scaled`."""
    for part, factor in factors.items():
        _check(part, factor)
    named = ",".join(f"{part}={factor:g}" for part, factor in factors.items())
    return replace(
        _with_scaled_device(platform, factors),
        name=f"{platform.name}:{named}",
        host=scaled_host(platform.host, factors.get("host", 1.0)),
        fabric=_scaled_fabric(platform, factors),
        about=replace(platform.about, provenance=f"{platform.about.provenance}; hypothetical, with {named}"),
    )


def _check(part: str, factor: float) -> None:
    if part not in PARTS:
        near = get_close_matches(part, PARTS, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ForetraceError(f"no part of a platform is called {part!r}", f"{meant}Known are: {', '.join(PARTS)}.")
    if not MIN_FACTOR <= factor <= MAX_FACTOR:
        raise ForetraceError(
            f"{part} can't be scaled by {factor:g}",
            f"Give a factor from {MIN_FACTOR:g} to {MAX_FACTOR:g}: 2 is twice as fast, or as large.",
        )


def _with_scaled_device(platform: Platform, factors: Mapping[str, float]) -> Platform:
    """Scale the device alone: it is no longer the one that recordings were made on."""
    device = platform.device
    for part, scale in DEVICE_PARTS.items():
        device = scale(device, factors.get(part, 1.0))
    if device == platform.device:
        return platform
    clocks = platform.device.clock_mhz / device.clock_mhz
    scaling = platform.cross_device or CrossDeviceScaling(platform.device)
    return replace(
        platform,
        device=replace(device, matches=f"{device.matches}, scaled"),
        cross_device=replace(scaling, start=scaling.start * clocks),
    )


def _compute(device: Device, factor: float) -> Device:
    peaks, best = (
        {rate: tflops * factor for rate, tflops in rates.items()}
        for rates in (device.peak_tflops, device.measured.tflops)
    )
    return replace(device, peak_tflops=peaks, measured=replace(device.measured, tflops=best))


def _hbm(device: Device, factor: float) -> Device:
    known = device.measured.memory_gbps
    measured = replace(device.measured, memory_gbps=known * factor if known else None)
    return replace(device, memory_gbps=device.memory_gbps * factor, measured=measured)


def _memory(device: Device, factor: float) -> Device:
    usable = device.driver_gib * factor if device.driver_gib else None
    return replace(device, memory_gb=device.memory_gb * factor, driver_gib=usable)


DEVICE_PARTS: dict[str, Callable[[Device, float], Device]] = {
    "hbm": _hbm,
    "compute": _compute,
    "clock": lambda device, factor: replace(_compute(device, factor), clock_mhz=device.clock_mhz * factor),
    "cache": lambda device, factor: replace(device, l2_mb=device.l2_mb * factor),
    "memory": _memory,
}
"""Memory bandwidth; peak rates; clock, and peak rates with it; size of the shared cache; size of the memory."""
PARTS = (*DEVICE_PARTS, "host", "nvlink", "network")


def scaled_host(host: Host, factor: float) -> Host:
    """A host that is so many times as fast in everything.

    >>> cost = CallCost(to_launch=6.0, launch=4.0, between=3.0, after=1.0, tensor=0.5, spread=0.1)
    >>> host = Host("mine", {"aten::mm": cost}, cost, cost, BetweenCalls(*[1.0] * 17), common=0.1, provenance="made up")
    >>> scaled_host(host, 2.0).calls["aten::mm"]
    CallCost(to_launch=3.0, launch=2.0, between=1.5, after=0.5, tensor=0.25, spread=0.1)
    """
    if factor == 1.0:
        return host

    def less(cost: CallCost) -> CallCost:
        return replace(_divided(cost, factor), spread=cost.spread)

    return replace(
        host,
        name=f"{host.name}, {factor:g} times as fast",
        calls={name: less(cost) for name, cost in host.calls.items()},
        launching=less(host.launching),
        view=less(host.view),
        before=_divided(host.before, factor),
        rested=_divided(host.rested, factor),
        sharded=_divided(host.sharded, factor),
    )


def _divided(times: Times, factor: float) -> Times:
    return replace(times, **{field.name: getattr(times, field.name) / factor for field in fields(times)})


def _scaled_fabric(platform: Platform, factors: Mapping[str, float]) -> Fabric | None:
    """Scale links inside a node and between nodes, and with them the curves that were measured on them."""
    inside, between = factors.get("nvlink", 1.0), factors.get("network", 1.0)
    fabric = platform.fabric
    if inside == between == 1.0:
        return fabric
    if fabric is None:
        raise ForetraceError(
            f"{platform.name} has no fabric whose links could be scaled",
            "Name one with --fabric, in Python with fabric=…: `foretrace platform list` shows them.",
        )
    links = fabric.links
    if links:
        network = links.network and replace(links.network, gbit=links.network.gbit * between)
        node = replace(links.inside, gbps=links.inside.gbps * inside, pair_gbps=links.inside.pair_gbps * inside)
        links = replace(links, inside=node, network=network)
    curves = tuple(
        replace(curve, gbps=curve.gbps * (inside if curve.nodes == 1 else between)) for curve in fabric.curves
    )
    return replace(fabric, curves=curves, links=links)
