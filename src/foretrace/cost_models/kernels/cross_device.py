"""Cross-device scaling: kernel times of a GPU that was not calibrated, from the models of one that was.

The models know how far a call stays from the roofline of the device they were fitted on. Another device is taken to
stay as far from its own: a time is start-up, which changes little, and work, which changes as the two rooflines do. The
rooflines know what either device achieves of its peaks, wave quantization of GEMMs, the share of the data that the L2
cache holds, and chains of dependent loads, which no bandwidth shortens.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from foretrace.cost_models.kernels.decomposition import parts_of
from foretrace.cost_models.kernels.families import FAMILIES, context_of, family_of
from foretrace.cost_models.kernels.families.attention import on_device, tiles_of
from foretrace.cost_models.kernels.family import TENSOR_CORE_FAMILIES
from foretrace.cost_models.kernels.pricing import USABLE_SHARE, KernelCosts
from foretrace.cost_models.kernels.ratios import OLDER, is_older_cublas, ratios_of
from foretrace.cost_models.kernels.roofline import LATENCY_US, Work, work_of
from foretrace.graph import Graph, Indices, Op, Tf32
from foretrace.graph.op import signature
from foretrace.graph.tables import SIGMAS_TO_P90, Floats, Ints
from foretrace.platform.device import Device
from foretrace.platform.hypothetical import CrossDeviceScaling
from foretrace.platform.platform import Platform

SHARPNESS = 2.0
"""Exponent by which limits add up: 1 would be one after the other, infinity the largest alone."""
WAVE_COLUMNS = ("ragged_128x128", "ragged_128x64", "ragged_64x64")
"""Columns of a family that hold the wave quantization of a tile: a library takes the tile that fits best."""
L2_BYTES_PER_CLOCK = 64
"""That an SM reads from the L2 cache in a clock."""
LINK_REACHED = 0.8
"""Share of the bandwidth of the link to the host that copies from page-locked memory reach: packets have headers."""
ATTENTION = "attention"
"""In the names of calls that a library of attention serves."""
CUDA_CORE_DTYPES = ("float32", "float64")
"""Dtypes that Tensor Cores do not multiply, or are not given."""
TRANSFERS = FAMILIES["transfers"]
TENSOR_CORE_OPS = frozenset(op for name in TENSOR_CORE_FAMILIES for op in FAMILIES[name].ops)


class CallRoofline(NamedTuple):
    """The limits of a call on a device."""

    work: Work
    wave_quantization: float
    """Factor by which a last wave that is not full lengthens the arithmetic."""

    @classmethod
    def of(cls, op: Op, indices: Indices | None, tf32: Tf32, device: Device) -> CallRoofline:
        """Of a call that is not made of others."""
        family = family_of(op)
        if family is None:
            return cls(work_of(op), 1.0)
        features, work = family.describe(op, context_of(family, device, indices, tf32))
        waves = [features[family.columns.index(tile)] for tile in WAVE_COLUMNS if tile in family.columns]
        return cls(family.least_work(op) or work, min(waves, default=1.0))

    def us(self, device: Device, warm: float, scaling: CrossDeviceScaling | None = None) -> float:
        """Microseconds that arithmetic, traffic and latency take together, a share of the data being in the cache."""
        tflops, gbps = achieved_rates(device, self.work.rate, scaling)
        cache_gbps = max(gbps, device.cache_gbps or device.sms * device.clock_mhz * L2_BYTES_PER_CLOCK / 1e3)
        flops = self.work.flops * self.wave_quantization / (tflops * 1e6)
        cached = min(warm * self.work.bytes, USABLE_SHARE * device.l2_mb * 1e6)
        moved = ((self.work.bytes - cached) / gbps + cached / cache_gbps) / 1e3
        return _overlapped(flops, moved, self.work.round_trips * LATENCY_US, self.work.link_us(device) / LINK_REACHED)


class RooflinePair(NamedTuple):
    """The limits of a call on the measured device, and on the other one."""

    measured: CallRoofline
    other: CallRoofline


def _overlapped(*us: float) -> float:
    """Time of limits that overlap: longer than the longest, less than one after the other."""
    return float(sum(one**SHARPNESS for one in us) ** (1 / SHARPNESS))


def achieved_rates(device: Device, rate: str, scaling: CrossDeviceScaling | None = None) -> tuple[float, float]:
    """TFLOP/s of GEMMs and GB/s of memory that a device achieves.

    For a device that was not calibrated, published rates are used where there are some; else it is taken to achieve the
    same shares of its peaks as the measured one. Either is corrected by its `CrossDeviceScaling`.
    """
    known = scaling.root if scaling else device
    plain = scaling.no_tensor_cores if scaling and rate in CUDA_CORE_DTYPES else 1.0
    like = scaling.source if scaling and rate in scaling.source.measured.tflops else known
    share = like.measured.tflops.get(rate, like.peak(rate)) / like.peak(rate)
    tflops = device.measured.tflops.get(rate, plain * share * device.peak(rate))
    share = (known.measured.memory_gbps or known.memory_gbps) / known.memory_gbps
    gbps = device.measured.memory_gbps or share * device.memory_gbps
    return (tflops * scaling.gemm, gbps * scaling.memory) if scaling else (tflops, gbps)


@dataclass(frozen=True)
class ScaledCalls:
    """Calls whose kernels were priced on the calibrated device, to be scaled to another one."""

    ops: Sequence[Op]
    ids: Mapping[int, Indices]
    """Statistics of their ids by position, where they have some."""
    tf32: Tf32
    warm: Floats
    """For each the share of its data that the cache holds."""
    cuda_runtime: int = 0
    """As in `Graph`."""

    def scale(self, costs: KernelCosts, start_us: float, device: Device, scaling: CrossDeviceScaling) -> KernelCosts:
        """Kernel times scaled to another device, with wider ranges; by published ratios where there are some."""
        if scaling.attention_rate != 1.0:
            return self._with_own_attention(costs, start_us, device, scaling)
        measured = costs
        if scaling.base:
            costs = self.scale(costs, start_us, scaling.source, scaling.base)
            start_us *= scaling.base.start
        work = np.bincount(costs.op, np.maximum(costs.typical - start_us, 0.0), len(self.ops)).astype(np.float64)
        factor = scale_factors(self.ops, work, self.ids, self.tf32, self.warm, device, scaling)[costs.op]
        low, typical, high = (scaled_us(us, factor, start_us, scaling) for us in (costs.low, costs.typical, costs.high))
        spread = scaling_spread(factor, scaling)
        if not scaling.base:  # whose times have it already
            spread = np.hypot(spread, self._machine_spread(costs.op, typical, start_us * scaling.start, scaling))
        wider = np.exp(SIGMAS_TO_P90 * spread)
        scaled = costs._replace(low=low / wider, typical=typical, high=high * wider)
        if not scaling.ratios:
            return scaled
        return self._by_ratios(scaled, measured, start_us * scaling.start, device, scaling)

    def _machine_spread(self, op: Ints, us: Floats, start_us: float, scaling: CrossDeviceScaling) -> Floats:
        """Standard deviation of the logarithm of kernels' times by drivers and hosts: of their start, which takes so
        long, and of the link to the host."""
        started = np.minimum(1.0, start_us / us)
        copied = np.array([each.name in TRANSFERS.ops and TRANSFERS.matches(each) for each in self.ops], np.bool_)
        return np.asarray(np.hypot(scaling.start_spread * started, scaling.link_spread * copied[op]))

    def _with_own_attention(
        self, costs: KernelCosts, start_us: float, device: Device, scaling: CrossDeviceScaling
    ) -> KernelCosts:
        """The same where attention keeps another share of the rate than GEMMs."""
        others = replace(scaling, attention_rate=1.0)
        own = replace(others, gemm=scaling.gemm * scaling.attention_rate)
        one, other = (self.scale(costs, start_us, device, each) for each in (own, others))
        attends = np.array([ATTENTION in op.name for op in self.ops], np.bool_)[costs.op]
        us = {name: np.where(attends, getattr(one, name), getattr(other, name)) for name in ("low", "typical", "high")}
        return other._replace(**us)

    def _by_ratios(
        self, scaled: KernelCosts, costs: KernelCosts, start_us: float, device: Device, scaling: CrossDeviceScaling
    ) -> KernelCosts:
        """Calls that published tables know: their times on the calibrated device, times the ratio."""
        assert scaling.ratios
        known = ratios_of(self.ops, scaling.ratios, device, self.cuda_runtime)
        kept = scaling.ratio_gemm / scaling.gemm
        number = np.full(len(self.ops), -1)
        number[known.place] = np.arange(len(known.place))
        rows = np.flatnonzero(number[costs.op] >= 0)
        which, us = number[costs.op[rows]], costs.typical[rows]
        result = scaled._replace(**{name: getattr(scaled, name).copy() for name in ("low", "typical", "high")})
        typical = us * known.ratio[which] * kept
        whole = np.bincount(costs.op[rows], typical, len(self.ops))[known.place]
        typical *= np.maximum(1.0, self._least_us(known.place.tolist(), device) / whole)[which]
        machine = self._machine_spread(costs.op[rows], typical, start_us, scaling)
        besides = SIGMAS_TO_P90 * np.hypot(scaling.table_spread, machine)
        low, high = (np.exp(np.hypot(logs[which], besides)) for logs in (known.low, known.high))
        result.typical[rows] = typical
        result.low[rows] = typical * np.minimum(costs.low[rows] / us, 1 / low)
        result.high[rows] = typical * np.maximum(costs.high[rows] / us, high)
        return result

    def _least_us(self, places: Sequence[int], device: Device) -> Floats:
        """What some calls take at least on a device; 0 where the rooflines that models know tell all of it."""
        works = ((family := family_of(self.ops[place])) and family.least_work(self.ops[place]) for place in places)
        return np.array([work.us(device) if work else 0.0 for work in works])


def scale_factors(
    ops: Sequence[Op],
    us: Floats,
    ids: Mapping[int, Indices],
    tf32: Tf32,
    warm: Floats,
    device: Device,
    scaling: CrossDeviceScaling,
) -> Floats:
    """For each call how many times as long its work takes on a device as on the measured one.

    Of each call the time of its work on the measured device is given, and the share of its data that the cache holds;
    and the statistics of its ids, by position, where it has some.
    """
    seen: dict[Hashable, list[RooflinePair]] = {}
    done: dict[Hashable, float] = {}
    result = np.ones(len(ops))
    for place in np.flatnonzero(us > 0).tolist():
        op, indices = ops[place], ids.get(place)
        key = signature(op), (indices.unique, indices.count, indices.reuse) if indices else None
        exactly = key, float(us[place]), float(warm[place])
        if exactly not in done:
            if key not in seen:
                seen[key] = [
                    RooflinePair(*(CallRoofline.of(part, indices, tf32, one) for one in (scaling.source, device)))
                    for part in parts_of(op)
                ]
            done[exactly] = _scale_factor(seen[key], exactly[1], exactly[2], device, scaling)
            if scaling.attention != 1.0 and (tiles := tiles_of(op)):
                besides = tiles / device.sms * scaling.attention_tile_us
                done[exactly] = done[exactly] * scaling.attention + besides / exactly[1]
        result[place] = done[exactly]
    return result


def _scale_factor(
    parts: Sequence[RooflinePair], us: float, warm: float, device: Device, scaling: CrossDeviceScaling
) -> float:
    """The factor of a call of some parts, which share its time in proportion to their rooflines."""
    roofs = [part.measured.us(scaling.source, warm, scaling.base) for part in parts]
    whole = sum(roofs)
    shares = [roof / whole if whole else 1 / len(roofs) for roof in roofs]
    return sum(scaled_work_us(us * share, part, warm, device, scaling) for share, part in zip(shares, parts)) / us


def scaled_work_us(us: float, call: RooflinePair, warm: float, device: Device, scaling: CrossDeviceScaling) -> float:
    """Microseconds of a call's work on the other device.

    What it takes beyond its roofline waits for the SMs themselves, for indices, branches and tile edges: that part
    changes as their number and their clock do.
    """
    over_link = call.measured.work.link_bytes > 0
    if over_link and not (scaling.source.host_gbps and device.host_gbps):
        return us
    roof = call.measured.us(scaling.source, warm, scaling.base)
    new_roof = call.other.us(device, warm, scaling)
    if us <= roof or not roof:
        return us * new_roof / roof if roof else us
    busy = (us**SHARPNESS - roof**SHARPNESS) ** (1 / SHARPNESS)
    slower = scaling.source.sms * scaling.source.clock_mhz / (device.sms * device.clock_mhz * scaling.issue)
    return _overlapped(new_roof, busy if over_link else busy * slower)  # beside a link it is the host's


def scaled_us(us: Floats, factor: Floats, start_us: float, scaling: CrossDeviceScaling) -> Floats:
    """Times of kernels on the other device: start-up as long as it takes there, the rest by its factor.

    >>> scaling = CrossDeviceScaling(Device.named("h200"))
    >>> scaled_us(np.array([1.0, 2.0, 12.0]), np.full(3, 3.0), start_us=2.0, scaling=scaling).tolist()
    [1.0, 2.0, 32.0]
    """
    start = np.minimum(us, start_us)
    return np.asarray(start * scaling.start + (us - start) * factor)


def scaling_spread(factor: Floats, scaling: CrossDeviceScaling) -> Floats:
    """Standard deviation of the logarithm of scaled times: the further from 1 the factor, the larger.

    >>> scaling_spread(np.array([1.0, 2.0, 0.1]), CrossDeviceScaling(Device.named("h200"), spread=0.2)).tolist()
    [0.0, 0.2, 0.2]
    """
    return np.asarray(np.maximum(scaling.least_spread, scaling.spread * np.minimum(np.abs(np.log2(factor)), 1.0)))


def scaling_notes(calls: Graph, platform: Platform) -> list[str]:
    """Notes for the reader on scaled kernel times; none where the platform's device was calibrated.

    >>> from foretrace.graph import OpTable
    >>> scaling_notes(Graph(OpTable.of([])), Platform.named("v100"))
    ['v100 was not calibrated: kernel times are scaled from h200']
    """
    scaling, device = platform.cross_device, platform.device
    if scaling is None:
        return []
    if device.name == scaling.source.name:
        notes = [f"{platform.name} is hypothetical: kernel times are scaled from {device.name}"]
    else:
        notes = [f"{platform.name} was not calibrated: kernel times are scaled from {scaling.source.name}"]
    if any(on_device(op, device.attention) is not op for op in calls.ops):
        notes.append(f"attention of cuDNN is priced as {device.attention}, PyTorch's default on {device.name}")
    index = scaling.tables
    if index:
        whose = device.name if scaling.ratios else scaling.source.name
        sources = ", ".join(sorted({table.table for kind, table in index.kinds.items() if kind != OLDER}))
        notes.append(f"GEMMs and attention of {whose} are fitted on published tables: {sources}")
        if OLDER in index.kinds and is_older_cublas(calls.cuda_runtime):
            version = f"{calls.cuda_runtime // 1000}.{calls.cuda_runtime % 1000 // 10}"
            notes.append(f"16-bit GEMMs are those of an older cuBLAS ({index.kinds[OLDER].table}): of CUDA {version}")
    used = {tensor.dtype for op in calls.ops if op.name in TENSOR_CORE_OPS for tensor in op.tensors}
    lacking = sorted(used & scaling.source.peak_tflops.keys() - device.peak_tflops.keys())
    if lacking:
        notes.append(f"{device.name} has no {', '.join(lacking)} arithmetic: the rate of float32 is taken")
    return notes
