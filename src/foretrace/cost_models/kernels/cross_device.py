"""Times of one device carried over to another: what limits a call there, against what limits it where it was measured.

The models know how far a call stays from the roofline of the device they were fitted on. Another device is taken to
stay as far from its own: a time is start-up, which changes little, and work, which changes as the two rooflines do.
These know what either device reaches of its peaks, the waves that products fall into, the share of the data that comes
from the cache, and chains of memory trips, which no bandwidth shortens.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from foretrace.cost_models.kernels.decomposition import parts_of
from foretrace.cost_models.kernels.estimators.dataset import Floats
from foretrace.cost_models.kernels.families import FAMILIES, Work, facts_of, family_of
from foretrace.cost_models.kernels.families.lookups import spread_of_ids
from foretrace.cost_models.kernels.family import LATENCY_US
from foretrace.cost_models.kernels.l2_residency import USABLE
from foretrace.cost_models.kernels.roofline import work_of
from foretrace.graph import Graph, Indices, Op, Tf32
from foretrace.graph.op import signature
from foretrace.platform.carry import Carry
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform

SHARP = 2.0
"""How limits add up: 1 would be one after the other, infinity the largest alone."""
WAVES = ("ragged_128x128", "ragged_128x64", "ragged_64x64")
"""Columns of a family that say how much longer a last wave makes it, by tiles: a library takes those that fit best."""
CACHE_BYTES = 64
"""That a processor takes from the shared cache in a clock."""
PLAIN = ("float32", "float64")
"""What has no matrix units to be multiplied on, or is not given to them."""
PRODUCTS = frozenset(op for name in ("matrix", "convolutions", "attention") for op in FAMILIES[name].ops)


class Limits(NamedTuple):
    """What a call has to do on a device."""

    work: Work
    ragged: float
    """By how much its last wave makes it longer."""

    @classmethod
    def of(cls, op: Op, indices: Indices | None, tf32: Tf32, device: Device) -> Limits:
        """Of a call that is not made of others."""
        family = family_of(op)
        if family is None:
            return cls(work_of(op), 1.0)
        features, work = family.describe(op, facts_of(family, device, indices, tf32))
        waves = [features[family.columns.index(tile)] for tile in WAVES if tile in family.columns]
        return cls(work, min(waves, default=1.0))

    def us(self, device: Device, warm: float, carry: Carry | None = None) -> float:
        """The call's roofline, in microseconds: how long its arithmetic, its traffic and its trips take together."""
        tflops, gbps = reached(device, self.work.rate, carry)
        cache_gbps = max(gbps, device.sms * device.clock_mhz * CACHE_BYTES / 1e3)
        flops = self.work.flops * self.ragged / (tflops * 1e6)
        cached = min(warm * self.work.bytes, USABLE * device.l2_mb * 1e6)
        moved = ((self.work.bytes - cached) / gbps + cached / cache_gbps) / 1e3
        return _together(flops, moved, self.work.trips * LATENCY_US)


class Pair(NamedTuple):
    """What a call has to do on the measured device, and on the other one."""

    there: Limits
    here: Limits


def _together(*us: float) -> float:
    """How long things take that overlap: longer than the longest, less than one after the other."""
    return float(sum(one**SHARP for one in us) ** (1 / SHARP))


def reached(device: Device, rate: str, carry: Carry | None = None) -> tuple[float, float]:
    """TFLOP/s of products and GB/s of memory that a device reaches.

    Of one that nobody calibrated, somebody may have published what it reaches; else it is taken to reach the shares of
    its peaks that the measured one does. Either is corrected as its `Carry` says.

    >>> h200, a100 = Device.named("h200"), Device.named("a100")
    >>> reached(a100, "bfloat16", Carry(h200, products=0.5))
    (135.6, 2039.0)
    >>> reached(a100, "float16", Carry(h200, products=0.5))
    (156.0, 2039.0)
    """
    known = carry.source if carry else device
    plain = carry.plain if carry and rate in PLAIN else 1.0
    share = known.measured.tflops.get(rate, known.peak(rate)) / known.peak(rate)
    tflops = device.measured.tflops.get(rate, plain * share * device.peak(rate))
    share = (known.measured.memory_gbps or known.memory_gbps) / known.memory_gbps
    gbps = device.measured.memory_gbps or share * device.memory_gbps
    return (tflops * carry.products, gbps * carry.memory) if carry else (tflops, gbps)


def carried_work(us: float, call: Pair, warm: float, device: Device, carry: Carry) -> float:
    """What the work of a call takes on the other device.

    What takes longer than its roofline waits for the processors themselves, for indices, branches and the ends of
    tiles: that part changes as their number and their clock do.
    """
    roof, new_roof = call.there.us(carry.source, warm), call.here.us(device, warm, carry)
    if us <= roof or not roof:
        return us * new_roof / roof if roof else us
    busy = (us**SHARP - roof**SHARP) ** (1 / SHARP)
    slower = carry.source.sms * carry.source.clock_mhz / (device.sms * device.clock_mhz * carry.issue)
    return _together(new_roof, busy * slower)


def factors(
    ops: Sequence[Op], us: Floats, known: Sequence[Indices], tf32: Tf32, warm: Floats, device: Device, carry: Carry
) -> Floats:
    """For each call how many times as long its work takes on a device as on the one it is carried over from.

    Parameters
    ----------
    ops, us
        The calls, and how long the work of each takes on the measured device.
    known, tf32
        How their ids are spread, and which products may be rounded.
    warm
        The share of each call's data that comes from the cache.
    device, carry
        The other device, and the one that was measured.
    """
    ids = spread_of_ids(ops, known)
    seen: dict[Hashable, list[Pair]] = {}
    done: dict[Hashable, float] = {}
    result = np.ones(len(ops))
    for place in np.flatnonzero(us > 0).tolist():
        op, indices = ops[place], ids.get(place)
        key = signature(op), (indices.unique, indices.count, indices.reuse) if indices else None
        exactly = key, float(us[place]), float(warm[place])
        if exactly not in done:
            if key not in seen:
                on = (carry.source, device)
                seen[key] = [Pair(*(Limits.of(part, indices, tf32, one) for one in on)) for part in parts_of(op)]
            done[exactly] = _factor(seen[key], exactly[1], exactly[2], device, carry)
        result[place] = done[exactly]
    return result


def _factor(parts: Sequence[Pair], us: float, warm: float, device: Device, carry: Carry) -> float:
    """That of a call of some parts, whose time they share as their rooflines say."""
    roofs = [part.there.us(carry.source, warm) for part in parts]
    whole = sum(roofs)
    shares = [roof / whole if whole else 1 / len(roofs) for roof in roofs]
    return sum(carried_work(us * share, part, warm, device, carry) for share, part in zip(shares, parts)) / us


def carried(us: Floats, factor: Floats, start_us: float, carry: Carry) -> Floats:
    """Times of kernels on the other device: start-up as long as that takes there, the rest by its factor.

    >>> carry = Carry(Device.named("h200"))
    >>> carried(np.array([1.0, 2.0, 12.0]), np.full(3, 3.0), start_us=2.0, carry=carry).tolist()
    [1.0, 2.0, 32.0]
    """
    start = np.minimum(us, start_us)
    return np.asarray(start * carry.start + (us - start) * factor)


def doubt(factor: Floats, carry: Carry) -> Floats:
    """Standard deviation of the logarithm of carried times: the further they were carried, the larger.

    >>> doubt(np.array([1.0, 2.0, 0.1]), Carry(Device.named("h200"), spread=0.2)).tolist()
    [0.0, 0.2, 0.2]
    """
    return np.asarray(carry.spread * np.minimum(np.abs(np.log2(factor)), 1.0))


def notes(calls: Graph, platform: Platform) -> list[str]:
    """What the reader should know of times that were carried over; nothing where none were.

    >>> from foretrace.graph import OpTable
    >>> notes(Graph(OpTable.of([])), Platform.named("h100"))
    ['nobody calibrated h100: kernel times are carried over from h200']
    """
    carry, device = platform.carry, platform.device
    if carry is None:
        return []
    if device.name == carry.source.name:
        said = [f"{platform.name} is {device.name} on paper: what was measured is carried over to it"]
    else:
        said = [f"nobody calibrated {platform.name}: kernel times are carried over from {carry.source.name}"]
    used = {tensor.dtype for op in calls.ops if op.name in PRODUCTS for tensor in op.tensors}
    lacking = sorted(used & carry.source.peak_tflops.keys() - device.peak_tflops.keys())
    if lacking:
        said.append(f"{device.name} does not multiply {', '.join(lacking)}: taken at the rate of float32")
    return said
