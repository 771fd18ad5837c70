"""What is needed to carry times from the device they were measured on over to another one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from foretrace.platform.device import Device
from foretrace.platform.files import Positive, read_as

CONSTANTS = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Constants:
    """What descriptions do not say; most of it fitted on published times of models by ``benchmarks/other_gpus.py``."""

    narrow: Positive
    """How many times the share of its float32 peak a GPU reaches whose processors have half as many lanes to feed: what
    was published of one such GPU, over what was measured of the H200."""
    energy_pj: Positive
    """Picojoules that a lane takes in a clock while a GPU multiplies, for each nanometre of its process."""
    other_maker: Positive
    """Share of what is reached at best that products keep on another maker's GPU."""
    start: Positive
    """How many times as many clocks a kernel takes to start and end."""
    other_start: Positive
    """The same on another maker's GPU."""
    spread: Positive
    """Standard deviation of the logarithm of a time that is carried over by a factor of two or more."""
    other_spread: Positive
    """The same on another maker's GPU."""
    provenance: str

    @classmethod
    def shipped(cls) -> Constants:
        """Those that come with Foretrace."""
        return read_as(cls, CONSTANTS)


@dataclass(frozen=True)
class Carry:
    """The device that was measured, and how the other one does beside it, apart from what descriptions say.

    All are 1 where the other device reaches what was published of it, or else the same shares of its peaks as the
    measured one does of its own. Who knows better replaces them.

    >>> from dataclasses import replace
    >>> carry = Carry.over(Device.named("h200"), Device.named("a100"))
    >>> replace(carry, products=0.95, memory=0.9).memory
    0.9
    """

    source: Device
    """Whose kernel models are asked."""
    products: Positive = 1.0
    """Share of that reach that matrix products, convolutions and attention keep."""
    plain: Positive = 1.0
    """The same, on top, of products that do without matrix units."""
    memory: Positive = 1.0
    """The same of what moves data."""
    issue: Positive = 1.0
    """The same of what processors do in a clock, where a call waits for them."""
    start: Positive = 1.0
    """How many times as long a kernel takes to start and end."""
    spread: float = 0.15
    """Standard deviation of the logarithm of a time that is carried over by a factor of two or more."""

    @classmethod
    def over(cls, source: Device, device: Device, constants: Constants | None = None) -> Carry:
        """From a measured device to another, as GPUs like it are known to do.

        >>> Carry.over(Device.named("h200"), Device.named("h100")).plain
        1.0
        """
        known = constants or Constants.shipped()
        clocks, ours = source.clock_mhz / device.clock_mhz, device.maker == source.maker
        return cls(
            source,
            products=held_clock(device, known.energy_pj) if ours else known.other_maker,
            plain=known.narrow if ours and 2 * device.lanes <= source.lanes else 1.0,
            start=clocks * (known.start if ours else known.other_start),
            spread=known.spread if ours else known.other_spread,
        )


def held_clock(device: Device, energy_pj: float) -> float:
    """Share of its clock that a device holds while it multiplies: its lanes can't take more than it may draw.

    >>> held_clock(Device.named("a100"), 2.8), round(held_clock(Device.named("t4"), 2.8), 2)
    (1.0, 0.51)
    """
    return min(1.0, budget_pj(device) / energy_pj)


def budget_pj(device: Device) -> float:
    """Picojoules that a device has for a lane in a clock, for each nanometre of its process.

    >>> round(budget_pj(Device.named("h200")), 1)
    5.2
    """
    if device.power_w is None or device.process_nm is None:
        return math.inf
    return device.power_w * 1e6 / (device.process_nm * device.sms * device.lanes * device.clock_mhz)
