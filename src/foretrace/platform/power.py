"""What a GPU draws: watts at rest, and more by the share of its peak rate and of its bandwidth that is reached.

A draw above the power limit does not last: within a second the clock falls until the limit is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
Watts = TypeVar("Watts", float, NDArray[np.float64])


@dataclass(frozen=True)
class Draw:
    """Watts of one GPU."""

    rest_w: Positive
    full_w: Positive
    """More at the peak rate of its arithmetic."""
    memory_w: Positive
    """More at the full bandwidth of its memory."""


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
        """Of a device, as measured or else in proportion to its own limit; None where that is not known.

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
            shares = [
                (each.rest_w / watts, each.full_w / watts, each.memory_w / watts)
                for name, each in constants.known.items()
                if (watts := Device.named(name).power_w)
            ]
            own = Draw(*(own_limit * sum(column) / len(column) for column in zip(*shares)))
        spread = MEASURED_SPREAD if device.name in constants.known else SCALED_SPREAD
        return cls(own, device.power_limit_w or own_limit, constants.slowdown, spread)

    def slower(self, rate: float, bandwidth: float) -> float:
        """How many times as long sustained work takes that reaches these shares of the peaks in a burst."""
        asked = self.draw.full_w * rate + self.draw.memory_w * bandwidth
        room = max(self.limit_w - self.draw.rest_w, 0.05 * self.limit_w)
        return float(max(1.0, asked / room) ** self.slowdown)

    def watts(self, rate: float, bandwidth: float) -> float:
        """The draw of sustained work that reaches these shares of the peaks."""
        asked = self.draw.rest_w + self.draw.full_w * rate + self.draw.memory_w * bandwidth
        return capped(asked, self.limit_w)


def capped(watts: Watts, limit_w: float) -> Watts:
    """What is drawn of what is asked for, within a limit.

    >>> round(capped(100.0, 700.0)), round(capped(900.0, 700.0))
    (100, 683)
    """
    limited: Watts = (watts**-SHARPNESS + (0.99 * limit_w) ** -SHARPNESS) ** (-1 / SHARPNESS)
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
