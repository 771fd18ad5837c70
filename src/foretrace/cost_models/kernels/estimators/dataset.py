"""Measured calls of a family as a table: what a model looks at, and what it should say.

A call that is made of others has a row for each of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.decomposition import parts_of
from foretrace.cost_models.kernels.families import Described, Facts, Family
from foretrace.cost_models.kernels.family import LATENCY_US
from foretrace.platform.device import Device

if TYPE_CHECKING:
    from foretrace.platform.measurements import Measurement, Repeat

Floats = NDArray[np.float64]
FLOOR_US = 1.0
"""Below this, what a kernel takes has nothing to do with its work."""


@dataclass
class Rows:
    """A row per call; both states side by side."""

    features: Floats
    flops_us: Floats
    """Microseconds that the arithmetic takes at the device's peak rate."""
    bytes_us: Floats
    """Microseconds that the bytes take at the memory's full rate."""
    us: Floats
    """Measured, a column per state."""
    kernels: list[Repeat]
    """What ran, with a cold cache."""
    call: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Which call a row is a part of: each is one of its own, where nothing else is said."""

    def __post_init__(self) -> None:
        if not len(self.call):
            self.call = np.arange(len(self))

    def __len__(self) -> int:
        return len(self.features)

    @property
    def calls(self) -> int:
        """How many calls they are, of one part or of several."""
        return len(np.unique(self.call))

    @property
    def roof_us(self) -> Floats:
        """What no kernel can beat."""
        return np.maximum(self.flops_us, self.bytes_us)

    @property
    def floored_us(self) -> Floats:
        """The roofline on a floor: what the logarithm of a time is taken against."""
        return self.roof_us + FLOOR_US

    def pick(self, rows: NDArray[np.int64]) -> Rows:
        """Some of the rows."""
        kernels = [self.kernels[row] for row in rows]
        flops_us, bytes_us = self.flops_us[rows], self.bytes_us[rows]
        return Rows(self.features[rows], flops_us, bytes_us, self.us[rows], kernels, self.call[rows])

    def whole(self, us: Floats) -> Floats:
        """Times of calls, from those of their parts.

        >>> rows = Rows(np.zeros((3, 1)), np.zeros(3), np.zeros(3), np.zeros((3, 2)), [], np.array([0, 0, 1]))
        >>> rows.whole(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).tolist()
        [[4.0, 6.0], [5.0, 6.0]]
        """
        calls, place = np.unique(self.call, return_inverse=True)
        return np.stack([np.bincount(place, column, len(calls)) for column in us.T], axis=1)


def rows_of(family: Family, measurements: Iterable[Measurement], device: Device) -> Rows:
    """The calls among the measurements that the family answers for, with all that they are made of.

    Those that launched nothing, or whose kernels don't tell what each part took, are left out.
    """
    from foretrace.cost_models.kernels.decomposition import cut  # who asks models does without measurements

    described: list[Described] = []
    us: list[tuple[float, float]] = []
    kernels: list[Repeat] = []
    call: list[int] = []
    for number, found in enumerate(measurements):
        made_of = parts_of(found.case.op, device.kind)
        timed = not found.error and found.cold and found.warm and found.us("cold") and found.us("warm")
        if not timed or not all(map(family.answers, made_of)):
            continue
        facts = Facts(device, found.indices, found.case.tf32, found.case.pinned)
        shares = cut(found, len(made_of))
        if shares is None:
            continue
        described += [family.describe(op, facts) for op in made_of]
        us += [(share.cold * found.us("cold"), share.warm * found.us("warm")) for share in shares]
        kernels += [share.kernels for share in shares]
        call += [number] * len(made_of)
    flops_us, bytes_us = ceilings(described, device)
    features = np.array([d.features for d in described], np.float64).reshape(len(described), len(family.columns))
    return Rows(features, flops_us, bytes_us, np.array(us).reshape(-1, 2), kernels, np.array(call, np.int64))


def ceilings(described: Sequence[Described], device: Device) -> tuple[Floats, Floats]:
    """Microseconds of arithmetic and of memory, its traffic or its trips, were each the only limit."""
    flops = [d.work.flops / device.peak(d.work.rate) / 1e6 for d in described]
    moved = [max(d.work.bytes / device.memory_gbps / 1e3, d.work.trips * LATENCY_US) for d in described]
    return np.array(flops, np.float64), np.array(moved, np.float64)


def both_states(features: Floats) -> Floats:
    """Each row twice, with the state as its last column: all with a cold cache, then all with a warm one.

    >>> both_states(np.array([[7.0]])).tolist()
    [[7.0, 0.0], [7.0, 1.0]]
    """
    count, width = features.shape
    both = np.empty((2, count, width + 1))
    both[:, :, :-1] = features
    both[0, :, -1], both[1, :, -1] = 0.0, 1.0
    return both.reshape(2 * count, width + 1)
