"""What passes on the host between calls: fitted to what the time inside calls leaves of plain steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.host_inside import Subject
from foretrace.cost_models.host_terms import BACKWARD, FORWARD, OPTIMIZER, HostCalls, terms
from foretrace.graph.tables import Floats
from foretrace.platform.host import TERMS, Before, CallCost, Host

LEAST_US = 300.0
"""A phase shorter than this is not worth more: its noise does not shrink with it."""
DOUBTFUL = 0.1
"""Share by which a phase may be off before it counts for less."""
IS_CLEARING = np.array([False, False, *(name in ("clearing", "cleared") for name in TERMS)])
LEAST_LAUNCH = 0.2
"""Share of a profiled launch that must be left when the profiler's weight is taken off."""


def inside_us(calls: HostCalls, host: Host) -> Floats:
    """Host time inside each call."""
    costs = [host.cost(calls.names[code], int(some > 0)) for code, some in zip(calls.name, calls.launches)]
    columns = np.array([[c.to_launch, c.tensor, c.launch, c.between, c.after] for c in costs]).reshape(-1, 5)
    pauses, once = np.maximum(calls.launches - 1, 0), np.ones(len(calls))
    amounts = np.stack([np.where(calls.first, host.first, 1.0), calls.tensors, calls.launches, pauses, once], axis=1)
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
    rows, left, weights = (np.concatenate(each) for each in zip(*(_explained(subject, host) for subject in subjects)))
    weight, *before = _robust(rows, left, weights)
    return replace(_lightened(host, weight), before=Before(*before))


def _explained(subject: Subject, host: Host) -> tuple[Floats, Floats, Floats]:
    """For each part of a step its launches and terms of T1, what they are to explain, and how much it counts."""
    calls, us = subject.calls, subject.typical
    each = np.column_stack([inside_us(calls, host), -calls.launches, terms(calls)])
    sums = np.array([each[calls.phase == phase].sum(axis=0) for phase in (FORWARD, BACKWARD, OPTIMIZER)])
    if np.isnan(us[0]):  # then it is in the forward
        us = us[1:]
    else:
        clearing = np.where(IS_CLEARING, sums[FORWARD], 0.0)
        sums[FORWARD] -= clearing
        sums = np.vstack([clearing, sums])
    return sums[:, 1:], us - sums[:, 0], 1 / np.maximum(us, LEAST_US)


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
