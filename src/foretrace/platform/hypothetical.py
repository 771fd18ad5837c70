"""Hypothetical platforms: GPUs that were not calibrated, and platforms with parts of them faster or larger.

Kernel times of both are scaled from the device that the kernel models were fitted on, call by call
(`foretrace.cost_models.kernels.cross_device`), by the two devices' descriptions and the figures in
`CrossDeviceScaling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from foretrace.errors import ForetraceError
from foretrace.platform.device import Device
from foretrace.platform.fabric import Fabric
from foretrace.platform.host import BetweenCalls, CallCost, ColdHost, CompiledPrograms, Host, Sharded
from foretrace.platform.platform import Platform
from foretrace.platform.typed_json import Positive, PositiveInt, read_as

CONSTANTS = Path(__file__).parent / "data" / "cross_device.json"
RATIOS = Path(__file__).parent / "data" / "ratios"
"""Ratios that were fitted on published tables, a folder for each GPU."""
RATIO_INDEX = "index.json"
BFLOAT16 = "bfloat16"
SAME_TENSOR_CORES = math.log(1.5)
"""Tensor Cores whose rates in a clock differ by less are taken to be used by the same kernels."""
SAME_CHIP = 0.05
"""`_unlikeness` of two boards of one chip at most, as of a GB200 and a B200."""
COMMON_KINDS = {"bf16", "fp8", "grouped", "attention"}
"""Kinds of calls in published tables that any GPU of these years has; see `foretrace.cost_models.kernels.ratios`."""
MIN_FACTOR, MAX_FACTOR = 0.01, 100.0
"""Factors beyond these make another machine, not one like it."""
Times = TypeVar("Times", CompiledPrograms, CallCost, BetweenCalls, ColdHost, Sharded)


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
    """The device that times are scaled from: the one that the kernel models were fitted on, or one with a `base`."""
    gemm: Positive = 1.0
    """Share of the reachable rate that GEMMs, convolutions and attention keep."""
    attention_rate: Positive = 1.0
    """Further share that attention keeps; above 1 where its library is better than that of GEMMs."""
    no_tensor_cores: Positive = 1.0
    """Further share that GEMMs without Tensor Cores (float32, float64) keep; above 1 where they reach more."""
    memory: Positive = 1.0
    """Share of the reachable bandwidth that memory-bound calls keep."""
    issue: Positive = 1.0
    """Share of the instruction rate (SMs times clock) that calls bound by instruction issue keep."""
    attention: Positive = 1.0
    """How many times as long attention takes as the rate of GEMMs says."""
    attention_tile_us: float = 0.0
    """Microseconds that a processor takes besides for each of attention's tiles of queries."""
    start: Positive = 1.0
    """How many times as long a kernel takes to start and end."""
    start_spread: float = 0.0
    """Standard deviation of the logarithm of `start`."""
    link_spread: float = 0.0
    """The same of copies to and from the host: others share the link, and hosts differ."""
    spread: float = 0.15
    """Standard deviation of the logarithm of a time that is scaled by a factor of two or more."""
    least_spread: float = 0.0
    """The same of a time that stays as it is."""
    ratios: Path | None = None
    """Folder of ratios to `root` that were fitted on published tables; they come before what descriptions say."""
    table_spread: float = 0.0
    """Standard deviation of the logarithm of a time by these, on other machines than the table's."""
    ratio_gemm: Positive = 1.0
    """The `gemm` at which the ratios hold: another one changes them too."""
    base: CrossDeviceScaling | None = None
    """How times are scaled to the source itself, where that was not calibrated either."""

    @property
    def tables(self) -> RatioIndex | None:
        """Published tables of the device, and of the source for kinds of calls that its own lack."""
        own, others = RatioIndex.of(self.ratios), self.base.tables if self.base else None
        if own is None or others is None:
            return own or others
        taken = {kind: table.of(self.source.name) for kind, table in others.kinds.items()}
        return replace(own, kinds={**taken, **own.kinds})

    @property
    def root(self) -> Device:
        """The device whose kernels were calibrated."""
        return self.base.root if self.base else self.source

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
            attention=1.0 if same_maker else known.other_attention,
            attention_tile_us=0.0 if same_maker else known.other_attention_tile_us,
            start=device.measured.start or clocks * (known.start if same_maker else known.other_start),
            start_spread=known.start_spread,
            link_spread=known.link_spread,
            spread=known.spread if same_maker else known.other_spread,
        )


@dataclass(frozen=True)
class CrossDeviceConstants:
    """Constants of scaling between devices, most of them fitted on published step times (the claim ``other_gpus``)."""

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
    other_attention: Positive = 1.0
    """How many times as long attention takes on another maker's GPU as the rate of its GEMMs says."""
    other_attention_tile_us: float = 0.0
    """Microseconds that a processor of another maker's GPU takes besides for each of attention's tiles of queries."""
    start_spread: Positive = 0.37
    """Standard deviation of the logarithm of `start`."""
    link_spread: Positive = 0.6
    """The same of copies to and from the host."""
    table_spread: Positive = 0.08
    """Standard deviation of the logarithm of a time by a published table, on other machines than the table's, with
    libraries and clocks of their own."""
    neighbour_spread: Positive = 0.1
    """Standard deviation of the logarithm of a time that is taken from a GPU just like it; `spread` comes on top."""

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


@dataclass(frozen=True)
class RatioTable:
    """What the ratios of a kind of calls were fitted on."""

    table: str
    """The project, and its harness."""
    rows: PositiveInt
    against: str
    """What times were divided by: the calibrated GPU's by the same harness, or by its kernel models."""
    gmae: float
    """Geometric mean of the relative error on layers that were held out; then the 90th percentile."""
    p90: float
    held: float
    """Share of held-out rows in their ranges."""

    def of(self, gpu: str) -> RatioTable:
        """The same, named as another GPU's than the one that it is used for."""
        return self if ", of " in self.table else replace(self, table=f"{self.table}, of {gpu}")


@dataclass(frozen=True)
class RatioIndex:
    """Published tables that a GPU's ratios were fitted on: ``ratios/index.json``."""

    start: Positive
    """How many times as long the shortest kernels take as on the calibrated GPU."""
    kinds: dict[str, RatioTable]

    @classmethod
    def of(cls, folder: Path | None) -> RatioIndex | None:
        """The index of a folder of ratios; None where there is none.

        >>> RatioIndex.of(RATIOS / "h100").kinds["bf16"].gmae < 0.06
        True
        """
        return read_as(cls, folder / RATIO_INDEX) if folder and (folder / RATIO_INDEX).is_file() else None


def scaling_to(device: Device, measured: Platform, ratios: Path | None = None) -> CrossDeviceScaling:
    """How times of a calibrated platform are scaled to a device: by published tables of it; for calls that these lack,
    by those of the nearest GPU that has some, or by descriptions.

    >>> h200 = Platform.named("h200")
    >>> scaling_to(Device.named("h100"), h200).base, scaling_to(Device.named("h100-pcie"), h200).source.name
    (None, 'h100')
    """
    source, folder = measured.device, ratios or RATIOS / device.name
    plain, index = CrossDeviceScaling.between(source, device), RatioIndex.of(folder)
    if index:
        # Traces of other machines show longer starts than the calibrated one, also on its own chip.
        start = index.start * CrossDeviceConstants.shipped().start if device.maker == source.maker else plain.start
        own = replace(
            plain,
            start=start,
            ratios=folder,
            ratio_gemm=plain.gemm,
            table_spread=CrossDeviceConstants.shipped().table_spread,
            least_spread=_neighbour_spread(source, device),
        )
        other = nearest_with_tables(device, source, besides=set(index.kinds))
        if other is None:
            return own
        base = scaling_to(other, measured)
        return replace(
            own, source=other, base=base, start=start / base.start, least_spread=_neighbour_spread(other, device)
        )
    near = nearest_with_tables(device, source)
    if near is None:
        return replace(plain, least_spread=_neighbour_spread(source, device))
    return replace(
        plain,
        source=near,
        base=scaling_to(near, measured),
        start=near.clock_mhz / device.clock_mhz,
        least_spread=_neighbour_spread(near, device),
    )


def neighbour_scaling(near: Platform, device: Device) -> CrossDeviceScaling:
    """How times of any platform, calibrated or not, are scaled to another device, by the descriptions of both.

    >>> neighbour_scaling(Platform.named("a100"), Device.named("h200")).base.source.name
    'h200'
    """
    plain = replace(
        CrossDeviceScaling.between(near.device, device),
        base=near.cross_device,
        least_spread=_neighbour_spread(near.device, device),
    )
    return replace(plain, start=near.device.clock_mhz / device.clock_mhz) if near.cross_device else plain


def _neighbour_spread(near: Device, device: Device) -> float:
    """Standard deviation of the logarithm of a time that is scaled from a GPU, however little."""
    known = CrossDeviceConstants.shipped()
    if BFLOAT16 not in near.peak_tflops or BFLOAT16 not in device.peak_tflops:
        return known.neighbour_spread + known.spread
    return known.neighbour_spread + known.spread * min(1.0, _unlikeness(near, device))


def nearest_with_tables(device: Device, source: Device, besides: Collection[str] = ()) -> Device | None:
    """The GPU with published tables whose Tensor Cores are most like a device's; None for the source itself.

    ``besides`` are the kinds of calls in tables of its own: others are looked for, on a chip of the same kind.

    Of those that multiply about as many bfloat16 numbers in a clock and SM, the most like it in size and bandwidth, if
    it is more like it than the source; of boards of one chip, the one with tables of most kinds of calls.

    >>> h200 = Device.named("h200")
    >>> [nearest_with_tables(Device.named(name), h200).name for name in ("b300", "gb300", "rtx-pro-6000", "h100-pcie")]
    ['b200', 'b200', 'l40s', 'h100']
    """
    if BFLOAT16 not in device.peak_tflops:
        return None
    tables = [Device.named(path.parent.name) for path in sorted(RATIOS.glob(f"*/{RATIO_INDEX}"))]
    if besides:
        tables = [one for one in tables if _same_chip(one, device) and _common_kinds(one) - set(besides)]
    alike = [
        one
        for one in (source, *tables)
        if one.maker == device.maker
        and BFLOAT16 in one.peak_tflops
        and abs(math.log(_tensor_rate(one) / _tensor_rate(device))) < SAME_TENSOR_CORES
    ]
    best = min(alike, key=lambda one: _unlikeness(one, device), default=source)
    boards = [one for one in alike if one.name == best.name or (_same_chip(one, best) and _same_chip(one, device))]
    best = max(boards, key=lambda one: (len(_common_kinds(one)), one.name == best.name), default=best)
    return best if _unlikeness(best, device) < _unlikeness(source, device) else None


def _same_chip(one: Device, other: Device) -> bool:
    """Whether two devices differ but in how many processors are in use, their clocks and their memory."""
    return one.name != other.name and _unlikeness(one, other) < SAME_CHIP


def _common_kinds(device: Device) -> set[str]:
    """Kinds of calls in a GPU's tables, but for those of one library or version."""
    index = RatioIndex.of(RATIOS / device.name)
    return set(index.kinds) & COMMON_KINDS if index else set()


def _tensor_rate(device: Device) -> float:
    """bfloat16 FLOPs that an SM does per clock."""
    return device.peak_tflops[BFLOAT16] * 1e6 / (device.sms * device.clock_mhz)


def unlikeness(one: Device, other: Device) -> float:
    """Distance between two GPUs in size and speed; infinite between makers, or without bfloat16.

    >>> h200 = Device.named("h200")
    >>> [round(unlikeness(Device.named(name), h200), 1) for name in ("h100", "b200", "mi300x")]
    [0.2, 0.7, inf]
    """
    alike = one.maker == other.maker and BFLOAT16 in one.peak_tflops and BFLOAT16 in other.peak_tflops
    return _unlikeness(one, other) if alike else math.inf


def _unlikeness(one: Device, other: Device) -> float:
    """How many times as fast, or as large, one device is as another in the mean, as a base-2 logarithm."""
    parts = (
        (device.sms * device.clock_mhz, device.memory_gbps, device.l2_mb, _tensor_rate(device))
        for device in (one, other)
    )
    return sum(abs(math.log2(a / b)) for a, b in zip(*parts)) / 4


def uncalibrated_platform(device: Device, measured: Platform, ratios: Path | None = None) -> Platform:
    """A device that was not calibrated, with the kernel models, scaled, and the host of a platform that was."""
    scaling = scaling_to(device, measured, ratios)
    about = replace(
        measured.about,
        name=device.name,
        made="",
        provenance=f"not calibrated: kernel times are scaled from {scaling.source.name}, the host is that of "
        f"{measured.name}",
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
        cross_device=scaling,
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
    if scaling.ratios:  # which hold for the device as it is
        scaling = replace(scaling, source=platform.device, base=scaling, ratios=None, start=1.0)
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
        compiled=_divided(host.compiled, factor),
    )


def _divided(times: Times, factor: float) -> Times:
    numbers = {field.name: getattr(times, field.name) for field in fields(times)}
    return replace(times, **{name: value / factor for name, value in numbers.items() if not isinstance(value, bool)})


def _scaled_fabric(platform: Platform, factors: Mapping[str, float]) -> Fabric | None:
    inside, between = factors.get("nvlink", 1.0), factors.get("network", 1.0)
    if inside == between == 1.0:
        return platform.fabric
    if platform.fabric is None:
        raise ForetraceError(
            f"{platform.name} has no fabric whose links could be scaled",
            "Name one with --fabric, in Python with fabric=…: `foretrace platform list` shows them.",
        )
    return scaled_fabric(platform.fabric, inside, between)


def scaled_fabric(fabric: Fabric, inside: float, between: float) -> Fabric:
    """Scale links inside a node and between nodes, and with them the curves that were measured on them."""
    links = fabric.links
    if links:
        network = links.network and replace(links.network, gbit=links.network.gbit * between)
        node = replace(links.inside, gbps=links.inside.gbps * inside, pair_gbps=links.inside.pair_gbps * inside)
        links = replace(links, inside=node, network=network)
    curves = tuple(
        replace(curve, gbps=curve.gbps * (inside if curve.nodes == 1 else between)) for curve in fabric.curves
    )
    return replace(fabric, curves=curves, links=links)
