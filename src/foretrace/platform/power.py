"""Power draw of a GPU: watts at rest, and more by the shares that are reached of its peak rate and of its bandwidth.

Bytes that come from the cache take no more than those from memory, SMs that are busy more than idle ones; arithmetic
takes at least in proportion to its rate, and more where a GPU that is asked for much of it raises its voltage with its
clock.

A draw above the power limit does not last: within a second the clock falls until the limit is kept.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import ForetraceError
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.platform.typed_json import Positive, read_as

POWER = Path(__file__).parent / "data" / "power.json"
SHARPNESS = 8.0
"""How closely the draw follows what is asked for until it meets the limit."""
MEASURED_SPREAD, SCALED_SPREAD = 0.15, 0.25
"""Standard deviation of the logarithm of the draw: of a GPU whose draw was measured, and of another one."""
ALIKE = 1.0
"""`unlikeness` of GPUs up to which one is taken to draw its power for the same things as another."""
Numbers = TypeVar("Numbers", float, NDArray[np.float64])


@dataclass(frozen=True)
class Draw:
    """Watts of one GPU."""

    rest_w: Positive
    full_w: Positive
    """More at the peak rate of its arithmetic."""
    memory_w: Positive
    """More at the full bandwidth of its memory."""
    cache_w: Positive
    """More for as many bytes a second from its cache."""
    active_w: float
    """More while all SMs are busy, whatever they do."""
    bend: Positive
    """Exponent of the share of the peak rate."""

    def above_rest(self, rate: Numbers, bandwidth: Numbers, cached: Numbers, busy: Numbers) -> Numbers:
        """Watts more than at rest, by shares of the peak rate, of the bandwidth from memory and from cache, of SMs."""
        arithmetic: Numbers = self.full_w * rate**self.bend
        return arithmetic + self.memory_w * bandwidth + self.cache_w * cached + self.active_w * busy

    def scaled(self, factor: float) -> Draw:
        """The draw of a GPU of so many times the power."""
        watts = {name: factor * value for name, value in asdict(self).items() if name.endswith("_w")}
        return replace(self, **watts)


@dataclass(frozen=True)
class PowerConstants:
    """Draws that were measured, and how much longer work takes that would draw more than the limit."""

    known: dict[str, Draw]
    slowdown: Positive
    """Exponent: twice the draw that the limit leaves room for takes so many times two as long."""
    provenance: str

    @classmethod
    @cache
    def shipped(cls) -> PowerConstants:
        """The constants that come with Foretrace."""
        return read_as(cls, POWER)


@dataclass(frozen=True)
class PowerModel:
    """The draw of a GPU with a power limit."""

    draw: Draw
    limit_w: float
    slowdown: float
    spread: float
    """Standard deviation of the logarithm of the watts."""

    @classmethod
    def of(cls, device: Device) -> PowerModel | None:
        """Of a device, as measured; or else in proportion to its own limit, as the GPU draws that is most like it, or
        all do on average where none is. None where its limit is not known.

        >>> h100 = PowerModel.of(Device.named("h100"))
        >>> h100.limit_w, h100.draw.rest_w > 100
        (700, True)
        """
        described = None if device.runs_on_host else Device.matching(device.matches.removesuffix(", scaled"))
        own_limit = device.power_w or (described.power_w if described else None)
        if own_limit is None:
            return None
        constants = PowerConstants.shipped()
        own = constants.known.get(device.name)
        if own is None:
            from foretrace.platform.hypothetical import unlikeness  # devices that were measured have their own

            known = {name: Device.named(name) for name in constants.known}
            near = min(known, key=lambda name: unlikeness(known[name], device))
            like = [near] if unlikeness(known[near], device) < ALIKE else list(known)
            limits = {name: known[name].power_w or own_limit for name in like}
            alike = [asdict(constants.known[name].scaled(own_limit / limits[name])) for name in like]
            own = Draw(**{name: sum(each[name] for each in alike) / len(alike) for name in alike[0]})
        spread = MEASURED_SPREAD if device.name in constants.known else SCALED_SPREAD
        return cls(own, device.power_limit_w or own_limit, constants.slowdown, spread)

    def slower(self, above_w: float) -> float:
        """How many times as long sustained work takes that would draw so much more than at rest, in a burst."""
        headroom_w = max(self.limit_w - self.draw.rest_w, 0.05 * self.limit_w)
        return float(max(1.0, above_w / headroom_w) ** self.slowdown)

    def drawn(self, above_w: float) -> float:
        """The draw of sustained work that would draw so much more than at rest."""
        return capped(self.draw.rest_w + above_w, self.limit_w)

    def watts(self, rate: float, bandwidth: float, cached: float = 0.0, busy: float = 1.0) -> float:
        """The draw of sustained work that reaches these shares of the peaks."""
        return self.drawn(self.draw.above_rest(rate, bandwidth, cached, busy))


def capped(watts: Numbers, limit_w: float) -> Numbers:
    """What is drawn of what is asked for, within a limit.

    >>> round(capped(100.0, 700.0)), round(capped(900.0, 700.0))
    (100, 683)
    """
    limited: Numbers = (watts**-SHARPNESS + (0.99 * limit_w) ** -SHARPNESS) ** (-1 / SHARPNESS)
    return limited


def with_power_limit(platform: Platform, watts: float) -> Platform:
    """A platform whose GPU is set to a lower power limit.

    >>> with_power_limit(Platform.named("h100"), 500).device.power_limit_w
    500
    """
    model = PowerModel.of(platform.device)
    if model is None:
        raise ForetraceError(f"nothing is known of what {platform.name} draws", "Leave the power limit out.")
    least, most = model.draw.rest_w, model.limit_w
    if not least < watts <= most:
        raise ForetraceError(
            f"{watts:g} W is no power limit of {platform.name}",
            f"It draws {least:.0f} W at rest, and its own limit is {most:g} W: give watts in between.",
        )
    return replace(platform, device=replace(platform.device, power_limit_w=watts))
