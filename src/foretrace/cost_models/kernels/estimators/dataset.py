"""Calls of a family as a table of features and rooflines, with their measured times: what estimators are fitted on.

A call that PyTorch makes of several others has a row for each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.decomposition import attribute_kernels, parts_of
from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.roofline import LATENCY_US
from foretrace.graph import Op
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device

if TYPE_CHECKING:
    from foretrace.cost_models.kernels.prior import PriorModels
    from foretrace.platform.measurements.kernels import Measurement, Repeat

FLOOR_US = 1.0
"""Below this, the time of a kernel has nothing to do with its work."""
FOLDS = 3
CELL = 8
"""Calls of a group that is held out as a whole."""


@dataclass
class Dataset:
    """A row per call or part of one; times with a cold and with a warm cache side by side."""

    features: Floats
    flops_us: Floats
    """Microseconds of the arithmetic at the device's peak rate."""
    bytes_us: Floats
    """Microseconds of the memory traffic at full bandwidth."""
    us: Floats
    """Measured times, a column per cache state; empty for calls to be predicted."""
    kernels: list[Repeat]
    """The kernels that ran with a cold cache."""
    call: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The call that a row is a part of; each row is its own call where this is left out."""

    prior: Floats | None = None
    """What the prior of a calibration says: microseconds with a cold and with a warm cache, and number of kernels."""

    def __post_init__(self) -> None:
        if not len(self.call):
            self.call = np.arange(len(self))

    def __len__(self) -> int:
        return len(self.features)

    @property
    def calls(self) -> int:
        """Number of calls, of one part or of several."""
        return len(np.unique(self.call))

    @property
    def roof_us(self) -> Floats:
        """The roofline."""
        return np.maximum(self.flops_us, self.bytes_us)

    @property
    def floored_us(self) -> Floats:
        """The roofline on a floor: what estimators predict times relative to."""
        return self.roof_us + FLOOR_US

    def subset(self, rows: NDArray[np.int64]) -> Dataset:
        """Some of the rows."""
        kernels = [self.kernels[row] for row in rows]
        flops_us, bytes_us = self.flops_us[rows], self.bytes_us[rows]
        prior = None if self.prior is None else self.prior[rows]
        return Dataset(self.features[rows], flops_us, bytes_us, self.us[rows], kernels, self.call[rows], prior)

    def per_call(self, us: Floats) -> Floats:
        """Times of calls, summed over their parts.

        >>> parts = Dataset(np.zeros((3, 1)), np.zeros(3), np.zeros(3), np.zeros((3, 2)), [], np.array([0, 0, 1]))
        >>> parts.per_call(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).tolist()
        [[4.0, 6.0], [5.0, 6.0]]
        """
        calls, place = np.unique(self.call, return_inverse=True)
        return np.stack([np.bincount(place, column, len(calls)) for column in us.T], axis=1)

    def folds(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows to fit on and rows to score on, so that each is scored once.

        All parts of a call are on one side, and so are calls that are much alike: models repeat each other's calls, and
        a call whose twin was fitted on says nothing of the calls of another model.
        """
        _, example, place = np.unique(self.call, return_index=True, return_inverse=True)
        groups = neighbours(self.features[example])[place]
        outside = [np.isin(groups, scored) for _, scored in folds(int(groups.max(initial=-1)) + 1)]
        return [(np.flatnonzero(~scored), np.flatnonzero(scored)) for scored in outside]


def dataset_of(
    family: Family, measurements: Iterable[Measurement], device: Device, prior: PriorModels | None = None
) -> Dataset:
    """The measured calls that a family covers, as a table; with what a prior says of them, where one is given.

    Calls that launched nothing, or whose kernels can't be attributed to their parts, are left out.
    """
    rows: list[tuple[Op, CallContext]] = []
    described: list[Description] = []
    us: list[tuple[float, float]] = []
    kernels: list[Repeat] = []
    call: list[int] = []
    for number, found in enumerate(measurements):
        parts = parts_of(found.case.op, device.kind)
        timed = not found.error and found.cold and found.warm and found.us("cold") and found.us("warm")
        if not timed or not all(map(family.matches, parts)):
            continue
        context = CallContext(device, found.indices, found.case.tf32, found.case.pinned)
        shares = attribute_kernels(found, len(parts))
        if shares is None:
            continue
        described += [family.describe(op, context) for op in parts]
        rows += [(op, context) for op in parts]
        us += [(share.cold * found.us("cold"), share.warm * found.us("warm")) for share in shares]
        kernels += [share.kernels for share in shares]
        call += [number] * len(parts)
    flops_us, bytes_us = roofline_terms(described, device)
    features = np.array([d.features for d in described], np.float64).reshape(len(described), len(family.columns))
    table = Dataset(features, flops_us, bytes_us, np.array(us).reshape(-1, 2), kernels, np.array(call, np.int64))
    return replace(table, prior=prior.columns(rows, device)) if prior else table


def roofline_terms(described: Sequence[Description], device: Device) -> tuple[Floats, Floats]:
    """Microseconds of arithmetic, and of memory traffic or latency, were each the only limit."""
    flops = [d.work.flops / device.peak(d.work.rate) / 1e6 for d in described]
    moved = [max(d.work.bytes / device.memory_gbps / 1e3, d.work.round_trips * LATENCY_US) for d in described]
    return np.array(flops, np.float64), np.array(moved, np.float64)


def with_cache_state(features: Floats) -> Floats:
    """Each row twice, with the cache state as its last column: all with a cold cache, then all with a warm one.

    >>> with_cache_state(np.array([[7.0]])).tolist()
    [[7.0, 0.0], [7.0, 1.0]]
    """
    count, width = features.shape
    both = np.empty((2, count, width + 1))
    both[:, :, :-1] = features
    both[0, :, -1], both[1, :, -1] = 0.0, 1.0
    return both.reshape(2 * count, width + 1)


def log_residuals(calls: Dataset) -> Floats:
    """Logarithms of measured times over rooflines: of all rows with a cold cache, then of all with a warm one."""
    return np.asarray(np.log(calls.us / calls.floored_us[:, None]).T.ravel())


def neighbours(features: Floats, most: int = CELL) -> NDArray[np.int64]:
    """The group of each row: rows are parted by what differs most among them, at the widest gap near the middle, until
    few are left.

    >>> neighbours(np.array([[1.0], [9.0], [1.1], [9.1]]), most=2).tolist()
    [0, 1, 0, 1]
    """
    group, count = np.zeros(len(features), np.int64), 0
    width = features.std(axis=0) if len(features) else np.ones(0)
    scaled = features / np.where(width > 0, width, 1.0)
    waiting = [np.arange(len(features))]
    while waiting:
        rows = waiting.pop()
        column = scaled[rows, np.ptp(scaled[rows], axis=0).argmax()] if len(rows) > most else np.zeros(len(rows))
        values = np.sort(column)
        gaps, quarter = np.diff(values), len(rows) // 4
        if not gaps.any():
            group[rows], count = count, count + 1
            continue
        inner = gaps[quarter : len(gaps) - quarter]
        left = column <= values[quarter + inner.argmax() if inner.any() else gaps.argmax()]
        waiting += [rows[~left], rows[left]]
    return group


def folds(count: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Numbers to fit on and numbers to score on, so that each is scored once."""
    fold = np.random.default_rng(7).permutation(count) % FOLDS
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(FOLDS)]
