"""Times of calls by the prior of a calibration: kernel models of another GPU, scaled to this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.cross_device import ScaledCalls
from foretrace.cost_models.kernels.decomposition import parts_of
from foretrace.cost_models.kernels.family import CallContext, Family
from foretrace.cost_models.kernels.model import DeviceModels, Launched, ModelledCalls, device_models
from foretrace.cost_models.kernels.pricing import Calls, KernelCosts, price_calls
from foretrace.cost_models.kernels.roofline import MODEL
from foretrace.graph import Op, Tf32
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Case
from foretrace.platform.prior import Prior

MIN_US = 0.1
"""Shortest time of a call: logarithms are taken of it."""


class PriorPrices(NamedTuple):
    """Prices of calls by a prior, a row each."""

    columns: Floats
    """As in `Dataset.prior`."""
    low: Floats
    """Logarithms of the 10th percentile over the time, and of the 90th."""
    high: Floats
    known: NDArray[np.bool_]
    """Whether its models know them."""
    launched: list[Launched]

    def outside(self, found: ModelledCalls) -> ModelledCalls:
        """A model's prices, where calls that it does not cover have the prior's ranges at least, and its word on
        whether it knows them."""
        low = np.where(found.covered, found.low, np.minimum(found.low, self.low))
        high = np.where(found.covered, found.high, np.maximum(found.high, self.high))
        known = np.where(found.covered, found.known, self.known)
        return ModelledCalls(found.us, low, high, found.covered | self.known, known)


@dataclass(frozen=True, eq=False)
class PriorModels:
    """The prior of a calibration, with its models read."""

    prior: Prior
    models: DeviceModels

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The prior that `Prior.write` wrote to a folder."""
        prior = Prior.read(folder)
        return cls(prior, device_models(folder)) if prior else None

    @classmethod
    def of(cls, prior: Prior) -> Self:
        """A prior that lies where its platform has it."""
        return cls(prior, device_models(prior.models))

    def price(self, calls: Calls, device: Device) -> KernelCosts:
        """The kernels of calls on a device, with the ranges of models and scaling."""
        scaling = self.prior.scaling
        costs = price_calls(calls, scaling.root if scaling else device, self.models)
        if scaling is None:
            return costs
        scaled = ScaledCalls(calls.ops, calls.ids, calls.tf32, calls.warm, self.prior.cuda_runtime)
        return scaled.scale(costs, self.models.fallback.start_us, device, scaling)

    def times(self, calls: Calls, device: Device) -> PriorPrices:
        """What it says of each call, with a cold and with a warm cache."""
        count = len(calls.ops)
        ids = {number + turn * count: found for number, found in calls.ids.items() for turn in (0, 1)}
        pinned = {number + turn * count for number in range(count) if number in calls.pinned for turn in (0, 1)}
        both = Calls([*calls.ops, *calls.ops], ids, calls.tf32, np.repeat([0.0, 1.0], count), pinned)
        costs = self.price(both, device)
        cold = np.flatnonzero(costs.op < count)
        low, us, high = (
            np.maximum(np.bincount(costs.op, of, 2 * count).reshape(2, count).T, MIN_US)
            for of in (costs.low, costs.typical, costs.high)
        )
        kernels = np.bincount(costs.op[cold], minlength=count)
        unknown = np.bincount(costs.op[cold], costs.source[cold] != MODEL, count)
        return PriorPrices(
            np.column_stack([us, kernels]),
            np.log(low / us).mean(axis=1),
            np.log(high / us).mean(axis=1),
            unknown == 0,
            _launched(costs, cold, calls.ops),
        )

    def uncertainty(self, family: Family, cases: Sequence[Case], device: Device) -> float:
        """How far off it may be at some cases of a family: half of its ranges, in the mean, as a logarithm."""
        found = [(part, case.tf32) for case in cases for part in parts_of(case.op, device.kind) if family.matches(part)]
        ranges = [
            self.times(Calls(ops, {}, Tf32(tf32, tf32), np.zeros(len(ops))), device)
            for tf32 in (False, True)
            if (ops := [op for op, may_use in found if may_use == tf32])
        ]
        return float(np.concatenate([(each.high - each.low) / 2 for each in ranges]).mean()) if ranges else 0.0

    def columns(self, calls: Sequence[tuple[Op, CallContext]], device: Device) -> Floats:
        """`Dataset.prior` of measured calls."""
        found = np.ones((len(calls), 3))
        for tf32 in (False, True):
            rows = [row for row, (_, context) in enumerate(calls) if context.tf32 == tf32]
            chosen = [calls[row] for row in rows]
            ids = {n: context.indices for n, (_, context) in enumerate(chosen) if context.indices}
            if rows:
                pinned = {n for n, (_, context) in enumerate(chosen) if context.pinned}
                wanted = Calls([op for op, _ in chosen], ids, Tf32(tf32, tf32), np.zeros(len(rows)), pinned)
                found[rows] = self.times(wanted, device).columns
        return found


def _launched(costs: KernelCosts, rows: NDArray[np.intp], ops: Sequence[Op]) -> list[Launched]:
    """The kernels of each call and their shares of its time; one of the call's name where there is none."""
    found: list[tuple[list[str], list[float]]] = [([], []) for _ in ops]
    for row, op, us in zip(rows.tolist(), costs.op[rows].tolist(), costs.typical[rows].tolist()):
        found[op][0].append(costs.name[row])
        found[op][1].append(us)
    return [
        (tuple(names), tuple(one / (sum(us) or 1.0) for one in us)) if names else ((op.name,), (1.0,))
        for (names, us), op in zip(found, ops)
    ]
