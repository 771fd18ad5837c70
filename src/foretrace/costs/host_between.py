"""What passes on the host between calls: fitted to what the time inside calls leaves of plain steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np
from numpy.typing import NDArray

from foretrace.costs.host_inside import Subject
from foretrace.costs.host_terms import HostCalls, terms
from foretrace.graph.tables import Floats
from foretrace.platform.host import Before, CallCost, Host

LEAST_US = 300.0
"""A phase shorter than this is not worth more: its noise does not shrink with it."""
DOUBTFUL = 0.1
"""Share by which a phase may be off before it counts for less."""
LEAST_LAUNCH = 0.2
"""Share of a profiled launch that must be left when the profiler's weight is taken off."""


def inside_us(calls: HostCalls, host: Host) -> Floats:
    """Host time inside each call."""
    costs = [host.cost(calls.names[code], int(some > 0)) for code, some in zip(calls.name, calls.launches)]
    columns = np.array([[c.to_launch, c.tensor, c.launch, c.between, c.after] for c in costs]).reshape(-1, 5)
    pauses = np.maximum(calls.launches - 1, 0)
    amounts = np.stack([np.ones(len(calls)), calls.tensors, calls.launches, pauses, np.ones(len(calls))], axis=1)
    summed: Floats = (columns * amounts).sum(axis=1)
    return summed


def step_us(calls: HostCalls, host: Host) -> float:
    """Host time of a whole step."""
    return float(inside_us(calls, host).sum() + terms(calls).sum(axis=0) @ np.array(astuple(host.before)))


def with_time_between(host: Host, subjects: Sequence[Subject]) -> Host:
    """The host with T1, and with launches that the profiler weighs on no more.

    Both come from one fit: a plain phase is the time inside its calls, less the profiler's weight on each of their
    launches, plus the terms of T1.
    """
    rows, left, weights = [], [], []
    for subject in subjects:
        inside, explained = inside_us(subject.calls, host), terms(subject.calls)
        for phase, us in enumerate(subject.typical):
            ours = subject.calls.phase == phase
            rows.append([-subject.calls.launches[ours].sum(), *explained[ours].sum(axis=0)])
            left.append(us - inside[ours].sum())
            weights.append(1 / max(us, LEAST_US))
    weight, *before = _robust(np.array(rows), np.array(left), np.array(weights))
    return replace(_lightened(host, weight), before=Before(*before))


def _lightened(host: Host, weight: float) -> Host:
    def lighter(cost: CallCost) -> CallCost:
        return replace(cost, launch=max(cost.launch - weight, LEAST_LAUNCH * cost.launch))

    calls = {name: lighter(cost) for name, cost in host.calls.items()}
    return replace(host, calls=calls, launching=lighter(host.launching), view=lighter(host.view))


def _robust(rows: Floats, left: Floats, weights: Floats) -> list[float]:
    """Coefficients that are nowhere below zero; what fits badly counts for less."""
    found, trust = np.zeros(rows.shape[1]), np.ones(len(left))
    for _ in range(12):
        scale = weights * trust
        found = nonnegative(rows * scale[:, None], left * scale)
        off = np.abs(rows @ found - left) * weights
        trust = np.sqrt(np.minimum(1.0, DOUBTFUL / np.maximum(off, 1e-9)))
    return [float(value) for value in found]


def nonnegative(rows: Floats, values: Floats) -> Floats:
    """Least squares with no coefficient below zero (Lawson and Hanson).

    >>> nonnegative(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    found = np.zeros(rows.shape[1])
    free: NDArray[np.bool_] = np.zeros(rows.shape[1], bool)
    for _ in range(3 * rows.shape[1]):
        pull = np.where(free, 0.0, rows.T @ (values - rows @ found))
        if pull.max(initial=0.0) <= 1e-9 * np.abs(rows).sum():
            break
        free[int(pull.argmax())] = True
        trial = _unbounded(rows, values, free)
        while (below := free & (trial <= 0)).any():
            # Go towards the trial until the first coefficient reaches zero, and keep that one there.
            reach = found[below] / np.maximum(found[below] - trial[below], 1e-300)
            found += float(reach.min()) * (trial - found)
            free &= found > 1e-12
            trial = _unbounded(rows, values, free)
        found = trial
    return found


def _unbounded(rows: Floats, values: Floats, free: NDArray[np.bool_]) -> Floats:
    solved = np.zeros(rows.shape[1])
    solved[free] = np.linalg.lstsq(rows[:, free], values, rcond=None)[0]
    return solved
