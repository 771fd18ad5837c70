"""A platform with some part of it faster or slower than it is: "HBM 1.5 times faster", "NVLink halved"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import TypeVar

from foretrace.graph import ForetraceError
from foretrace.platform.carry import Carry
from foretrace.platform.device import Device
from foretrace.platform.fabric import Fabric
from foretrace.platform.host import Before, CallCost, Host, Rested, Sharded
from foretrace.platform.platform import Platform


def _clock(device: Device, factor: float) -> Device:
    return replace(_compute(device, factor), clock_mhz=device.clock_mhz * factor)


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


def _cache(device: Device, factor: float) -> Device:
    return replace(device, l2_mb=device.l2_mb * factor)


def _memory(device: Device, factor: float) -> Device:
    return replace(device, memory_gb=device.memory_gb * factor)


DEVICE: dict[str, Callable[[Device, float], Device]] = {
    "hbm": _hbm,
    "compute": _compute,
    "clock": _clock,
    "cache": _cache,
    "memory": _memory,
}
"""Rate of its memory; peak rates; clock, and peak rates with it; size of the shared cache; size of its memory."""
PARTS = (*DEVICE, "host", "nvlink", "network")
LEAST, MOST = 0.01, 100.0
"""Factors beyond these make another machine, not one like it."""
Times = TypeVar("Times", CallCost, Before, Rested, Sharded)


def read_factors(text: str) -> dict[str, float]:
    """What the part of a platform's name after the colon says.

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


def scaled(platform: Platform, factors: Mapping[str, float]) -> Platform:
    """A platform with parts of it so many times as fast, or as large: `Platform.scaled`."""
    for part, factor in factors.items():
        _check(part, factor)
    said = ",".join(f"{part}={factor:g}" for part, factor in factors.items())
    return replace(
        _with_device(platform, factors),
        name=f"{platform.name}:{said}",
        host=faster_host(platform.host, factors.get("host", 1.0)),
        fabric=_fabric(platform, factors),
        about=replace(platform.about, provenance=f"{platform.about.provenance}; on paper with {said}"),
    )


def _with_device(platform: Platform, factors: Mapping[str, float]) -> Platform:
    """The platform whose device alone is scaled: it is no longer the one that recordings were made on."""
    device = platform.device
    for part, change in DEVICE.items():
        device = change(device, factors.get(part, 1.0))
    if device == platform.device:
        return platform
    clocks = platform.device.clock_mhz / device.clock_mhz
    carry = platform.carry or Carry(platform.device)
    return replace(
        platform,
        device=replace(device, matches=f"{device.matches}, scaled"),
        carry=replace(carry, start=carry.start * clocks),
    )


def _check(part: str, factor: float) -> None:
    if part not in PARTS:
        near = get_close_matches(part, PARTS, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ForetraceError(f"no part of a platform is called {part!r}", f"{meant}Known are: {', '.join(PARTS)}.")
    if not LEAST <= factor <= MOST:
        raise ForetraceError(
            f"{part} can't be scaled by {factor:g}",
            f"Give a factor from {LEAST:g} to {MOST:g}: 2 is twice as fast, or as large.",
        )


def faster_host(host: Host, factor: float) -> Host:
    """The host that takes so many times less for everything.

    >>> cost = CallCost(to_launch=6.0, launch=4.0, between=3.0, after=1.0, tensor=0.5, spread=0.1)
    >>> host = Host("mine", {"aten::mm": cost}, cost, cost, Before(*[1.0] * 17), common=0.1, provenance="made up")
    >>> faster_host(host, 2.0).calls["aten::mm"]
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


def _fabric(platform: Platform, factors: Mapping[str, float]) -> Fabric | None:
    """Links inside a node, and between nodes: curves that were measured there follow their links."""
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
        near = replace(links.inside, gbps=links.inside.gbps * inside, pair_gbps=links.inside.pair_gbps * inside)
        links = replace(links, inside=near, network=network)
    curves = tuple(
        replace(curve, gbps=curve.gbps * (inside if curve.nodes == 1 else between)) for curve in fabric.curves
    )
    return replace(fabric, curves=curves, links=links)
