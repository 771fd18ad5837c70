"""Fitting a host's costs to a calibration: T2 to T5 from profiles, T1 from what those leave of unprofiled steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.host.inside_ops import (
    MeasuredStep,
    costs_by_name,
    default_costs,
    first_call_factor,
    mean_launches,
    with_calls_alone,
)
from foretrace.cost_models.host.pricing import BACKWARD, FORWARD, OPTIMIZER, HostCalls, t1_terms
from foretrace.errors import ForetraceError
from foretrace.graph.tables import SIGMAS_TO_P90, Floats, percentiles
from foretrace.platform.host import TERMS, BetweenCalls, CallCost, ColdHost, CompiledPrograms, Host, Sharded
from foretrace.platform.measurements.host import HostRun, StepTimes

MIN_COMMON = 0.01
"""No two steps take the same time."""
OTHER_STEPS = 0.1, 0.175
"""Standard deviation of the logarithm of a host's error at steps of kinds that it was not fitted on, towards shorter
and longer times: with it the ranges hold four in five of the zoo's steps."""
MEDIAN_TO_SIGMA = 1 / 0.6745
"""From the median of absolute errors to their standard deviation."""
MIN_PHASE_US = 300.0
"""Phases shorter than this are weighted like one so long: their noise does not shrink with them."""
TRUSTED_ERROR = 0.1
"""Relative error from which on a phase is weighted less."""
IS_CLEARING = np.array([False, False, *(name in ("clearing", "cleared") for name in TERMS)])
MIN_LAUNCH_SHARE = 0.2
"""Share of a profiled launch that is left at least when the profiling overhead is subtracted."""


def fit_host(runs: Sequence[HostRun], name: str = "host") -> Host:
    """The host that a calibration measured."""
    times = [step for run in runs for step in run.steps.values() if step.plain and step.profiled]
    steps = [step for step in map(MeasuredStep.of, times) if step.samples]
    if not steps:
        raise ForetraceError("no small step of the host was measured", "Measure it: `foretrace calibrate host`.")
    samples = [sample for step in steps for sample in step.samples]
    first = first_call_factor(steps)
    calls = costs_by_name(samples, first)
    defaults = default_costs(calls, mean_launches(samples))
    nothing = BetweenCalls(*[0.0] * len(TERMS))
    host = Host(name, calls, *defaults, nothing, common=1.0, provenance=_provenance(runs), first=first)
    host = with_calls_alone(with_t1(host, steps), runs)
    common = _common_spread(steps, host)
    faster, slower = _speeds(steps, host)
    host = replace(with_gaps(host, runs), common=common, faster=faster, slower=slower, inference=_inference(times))
    return _rounded(replace(host, rested=_cold_host(times), sharded=_fsdp_costs(runs), compiled=_compiled(runs)))


def inside_us(calls: HostCalls, host: Host) -> Floats:
    """Host time inside each call, T2 to T5."""
    costs = [host.cost(calls.names[code], int(some > 0)) for code, some in zip(calls.name, calls.launches)]
    columns = np.array([[c.to_launch, c.tensor, c.launch, c.between, c.after] for c in costs]).reshape(-1, 5)
    pauses, once = np.maximum(calls.launches - 1, 0), np.ones(len(calls))
    amounts = np.stack([np.where(calls.first, host.first, 1.0), calls.tensors, calls.launches, pauses, once], axis=1)
    summed: Floats = (columns * amounts).sum(axis=1)
    return summed


def step_us(calls: HostCalls, host: Host) -> float:
    """Host time of a whole step."""
    return float(inside_us(calls, host).sum() + t1_terms(calls).sum(axis=0) @ np.array(astuple(host.before)))


def with_t1(host: Host, steps: Sequence[MeasuredStep]) -> Host:
    """The host with T1, and with launches free of profiling overhead.

    Both come from one fit: an unprofiled phase is the time inside its calls, less the profiling overhead of each of
    their launches, plus the terms of T1.
    """
    rows, left, weights = (np.concatenate(each) for each in zip(*(_regression(step, host) for step in steps)))
    overhead, *before = _robust(rows, left, weights)
    return replace(_without_overhead(host, overhead), before=BetweenCalls(*before))


def _regression(step: MeasuredStep, host: Host) -> tuple[Floats, Floats, Floats]:
    """For each part of a step its launches and terms of T1, the time they explain, and its weight."""
    calls, us = step.calls, step.typical
    each = np.column_stack([inside_us(calls, host), -calls.launches, t1_terms(calls)])
    sums = np.array([each[calls.phase == phase].sum(axis=0) for phase in (FORWARD, BACKWARD, OPTIMIZER)])
    if np.isnan(us[0]):  # zeroing gradients is then part of the forward
        us = us[1:]
    else:
        clearing = np.where(IS_CLEARING, sums[FORWARD], 0.0)
        sums[FORWARD] -= clearing
        sums = np.vstack([clearing, sums])
    return sums[:, 1:], us - sums[:, 0], 1 / np.maximum(us, MIN_PHASE_US)


def _without_overhead(host: Host, overhead: float) -> Host:
    def lighter(cost: CallCost) -> CallCost:
        return replace(cost, launch=max(cost.launch - overhead, MIN_LAUNCH_SHARE * cost.launch))

    calls = {name: lighter(cost) for name, cost in host.calls.items()}
    return replace(host, calls=calls, launching=lighter(host.launching), view=lighter(host.view))


def _robust(rows: Floats, left: Floats, weights: Floats) -> list[float]:
    """Non-negative coefficients by reweighted least squares: what fits badly is weighted less."""
    found, trust = np.zeros(rows.shape[1]), np.ones(len(left))
    for _ in range(12):
        scale = weights * trust
        found = nonnegative(rows * scale[:, None], left * scale)
        off = np.abs(rows @ found - left) * weights
        trust = np.sqrt(np.minimum(1.0, TRUSTED_ERROR / np.maximum(off, 1e-9)))
    return [float(value) for value in found]


def nonnegative(rows: Floats, values: Floats) -> Floats:
    """Non-negative least squares (Lawson and Hanson), without scipy, which a calibration does not need.

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
            # Go towards the trial until the first coefficient reaches zero, and fix it there.
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


def with_gaps(host: Host, runs: Sequence[HostRun]) -> Host:
    """The host with the gaps between calls of a larger step, where they were measured: on a CPU small steps have none.

    >>> nothing = CallCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.1)
    >>> host = Host("mine", {}, nothing, nothing, BetweenCalls(*[0.0] * len(TERMS)), common=0.1, provenance="made up")
    >>> with_gaps(host, [HostRun({}, gaps=[[12.0, 8.0, 5.0], [14.0, 8.0, 5.0]])]).before.forward_view
    13.0
    """
    seen = [gaps for run in runs for gaps in run.gaps]
    if not seen:
        return host
    forward, backward, optimizer = np.mean(seen, axis=0).tolist()
    calls = {"forward_call": forward, "backward_call": backward, "optimizer_call": optimizer}
    views = {"forward_view": forward, "backward_view": backward}
    return replace(host, before=replace(host.before, **calls, **views))


def _fsdp_costs(runs: Sequence[HostRun]) -> Sharded:
    """Means of the measured costs of FSDP; zeros if none were measured."""
    updates, gathers = ([costs for run in runs for costs in getattr(run, kind)] for kind in ("sharded", "gathered"))
    return Sharded(*(us for seen in (updates, gathers) for us in np.mean(seen or [[0.0, 0.0]], axis=0).tolist()))


def _compiled(runs: Sequence[HostRun]) -> CompiledPrograms:
    """Medians of the measured costs of compiled programs; estimates if none were measured.

    They are measured once a round: as the host was slow in some rounds, each cost is divided by its round's pace.
    """
    found = [np.array(run.compiled) / round_paces(run, len(run.compiled))[:, None] for run in runs if run.compiled]
    if not found:
        return CompiledPrograms()
    entry, argument, kernel, call, backward = np.round(np.median(np.concatenate(found), axis=0), 3).tolist()
    return CompiledPrograms(entry, argument, kernel, call, backward, measured=True)


def round_paces(run: HostRun, rounds: int) -> Floats:
    """How much longer than usual the steps of each round of a calibration took; 1 where rounds can't be told apart.

    >>> from foretrace.platform.measurements.host import Calls
    >>> step = StepTimes(Calls(), plain=[[0.0, 10.0, 10.0, 10.0]] * 4 + [[0.0, 20.0, 20.0, 20.0]] * 2)
    >>> round_paces(HostRun({}, {"tiny": step}), 3).tolist()
    [1.0, 1.0, 2.0]
    """
    steps = [step.plain for step in run.steps.values() if step.plain and not len(step.plain) % rounds]
    totals = [np.nansum(plain, axis=1) for plain in steps]
    paces = [np.median(total.reshape(rounds, -1), axis=1) / np.median(total) for total in totals]
    return np.median(paces, axis=0) if paces else np.ones(rounds)


def _inference(times: Sequence[StepTimes]) -> float:
    """Host time of a forward without gradients over one with them: the median over steps; 1 if it was not measured."""
    found = [np.median(step.inference) / np.median([us[1] for us in step.plain]) for step in times if step.inference]
    return float(np.median(found)) if found else 1.0


def _cold_host(times: Sequence[StepTimes]) -> ColdHost:
    """Additional time of each part of a step after a wait: the median over steps, weighted by the wait."""
    longer, doublings = [np.zeros((0, 4))], [np.zeros(0)]
    for step in times:
        if step.rested:
            longer.append(np.array([after.us for after in step.rested]) - np.median(step.plain, axis=0))
            doublings.append(np.log2(1 + np.array([after.waited_ms for after in step.rested])))
    us, weight = np.concatenate(longer), np.concatenate(doublings)
    return (
        ColdHost(*(max(0.0, _weighted_median(part / weight, weight)) for part in us.T)) if len(weight) else ColdHost()
    )


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    summed = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(summed, summed[-1] / 2)])


def _common_spread(steps: Sequence[MeasuredStep], host: Host) -> float:
    """Spread of whole steps: among the repeats of one, and of the fit around their medians.

    The median over steps of both: a step that was delayed for long says little of the others.
    """
    totals = [step.totals for step in steps]
    repeats = [np.std(np.log(total / np.median(total))) for total in totals]
    misses = [abs(np.log(step_us(s.calls, host) / np.median(total))) for s, total in zip(steps, totals)]
    return max(MIN_COMMON, float(np.hypot(np.median(repeats), np.median(misses) * MEDIAN_TO_SIGMA)))


def _speeds(steps: Sequence[MeasuredStep], host: Host) -> list[float]:
    """How much faster, and how much slower, than its model a host may be, as standard deviations of logarithms.

    Steps alternate between the speeds of a host for a while each: their medians, and the spread of most, hide that.
    """
    off = np.concatenate([np.log(step.totals / step_us(step.calls, host)) for step in steps])
    low, high = percentiles(off, [10.0, 90.0])
    return [math.hypot(max(0.0, off / SIGMAS_TO_P90), other) for off, other in zip((-low, high), OTHER_STEPS)]


def _rounded(host: Host) -> Host:
    """Costs to the nanosecond: more digits are noise, and make the file hard to read."""

    def short(cost: CallCost) -> CallCost:
        return CallCost(*(round(number, 3) for number in astuple(cost)))

    return replace(
        host,
        calls={name: short(cost) for name, cost in host.calls.items()},
        launching=short(host.launching),
        view=short(host.view),
        before=BetweenCalls(*(round(number, 3) for number in astuple(host.before))),
        common=round(host.common, 4),
        faster=round(host.faster, 4),
        slower=round(host.slower, 4),
        first=round(host.first, 3),
        inference=round(host.inference, 3),
        rested=ColdHost(*(round(number, 3) for number in astuple(host.rested))),
        sharded=Sharded(*(round(number, 3) for number in astuple(host.sharded))),
    )


def _provenance(runs: Sequence[HostRun]) -> str:
    repeats = max(len(step.plain) for run in runs for step in run.steps.values())
    last = runs[-1].machine
    facts = [str(last[key]) for key in ("cpu", "device") if key in last]
    return ", ".join([*facts, f"torch {last.get('torch')}", f"{repeats} repeats of each step", str(last.get("made"))])
