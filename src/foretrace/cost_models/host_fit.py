"""Fits a host to what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np

from foretrace.cost_models.host_between import step_us, with_time_between
from foretrace.cost_models.host_inside import (
    Subject,
    costs_by_name,
    costs_of_kinds,
    first_calls,
    usual_launches,
    with_calls_alone,
)
from foretrace.graph import ForetraceError
from foretrace.graph.tables import Floats
from foretrace.platform.host import TERMS, Before, CallCost, Host, Rested, Sharded
from foretrace.platform.host_measurements import HostRun, StepTimes

LEAST_COMMON = 0.01
"""No two steps take the same time."""
TO_DEVIATION = 1 / 0.6745
"""From the median of errors' sizes to their standard deviation."""


def fit_host(runs: Sequence[HostRun], name: str = "host") -> Host:
    """The host that runs of a calibration measured.

    Parameters
    ----------
    runs
        What `foretrace.platform.host_measurements.read_runs` gives.
    name
        What to call it.
    """
    steps = [step for run in runs for step in run.steps.values() if step.plain and step.profiled]
    subjects = [subject for subject in map(Subject.of, steps) if subject.samples]
    if not subjects:
        raise ForetraceError("no small step of the host was measured", "Measure it: `foretrace calibrate host`.")
    samples = [sample for subject in subjects for sample in subject.samples]
    first = first_calls(subjects)
    calls = costs_by_name(samples, first)
    kinds = costs_of_kinds(calls, usual_launches(samples))
    nothing = Before(*[0.0] * len(TERMS))
    host = Host(name, calls, *kinds, nothing, common=1.0, provenance=_provenance(runs), first=first)
    host = with_calls_alone(with_time_between(host, subjects), runs)
    common = _common(subjects, host)
    return _rounded(replace(with_gaps(host, runs), common=common, rested=_rested(steps), sharded=_sharded(runs)))


def with_gaps(host: Host, runs: Sequence[HostRun]) -> Host:
    """The host with what was seen between calls of a larger step, where that was: small steps do not tell it there.

    >>> nothing = CallCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.1)
    >>> host = Host("mine", {}, nothing, nothing, Before(*[0.0] * len(TERMS)), common=0.1, provenance="made up")
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


def _sharded(runs: Sequence[HostRun]) -> Sharded:
    """The means of what was seen; nothing where nobody measured it."""
    updates, gathers = ([costs for run in runs for costs in getattr(run, kind)] for kind in ("sharded", "gathered"))
    return Sharded(*(us for seen in (updates, gathers) for us in np.mean(seen or [[0.0, 0.0]], axis=0).tolist()))


def _rested(steps: Sequence[StepTimes]) -> Rested:
    """What each part of a step takes longer after a wait: the median over steps, where long waits count more."""
    longer, doublings = [np.zeros((0, 4))], [np.zeros(0)]
    for step in steps:
        if step.rested:
            longer.append(np.array([after.us for after in step.rested]) - np.median(step.plain, axis=0))
            doublings.append(np.log2(1 + np.array([after.waited_ms for after in step.rested])))
    us, weight = np.concatenate(longer), np.concatenate(doublings)
    return Rested(*(max(0.0, _weighted_median(part / weight, weight)) for part in us.T)) if len(weight) else Rested()


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    summed = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(summed, summed[-1] / 2)])


def _common(subjects: Sequence[Subject], host: Host) -> float:
    """Spread of whole steps: among the repeats of one, and of the fit around their medians.

    Of both the median over steps: one that was held up for long says little of the others.
    """
    totals = [subject.totals for subject in subjects]
    repeats = [np.std(np.log(total / np.median(total))) for total in totals]
    misses = [abs(np.log(step_us(s.calls, host) / np.median(total))) for s, total in zip(subjects, totals)]
    return max(LEAST_COMMON, float(np.hypot(np.median(repeats), np.median(misses) * TO_DEVIATION)))


def _rounded(host: Host) -> Host:
    """Costs to the nanosecond: more digits are noise, and make the file hard to read."""

    def short(cost: CallCost) -> CallCost:
        return CallCost(*(round(number, 3) for number in astuple(cost)))

    return replace(
        host,
        calls={name: short(cost) for name, cost in host.calls.items()},
        launching=short(host.launching),
        view=short(host.view),
        before=Before(*(round(number, 3) for number in astuple(host.before))),
        common=round(host.common, 4),
        first=round(host.first, 3),
        rested=Rested(*(round(number, 3) for number in astuple(host.rested))),
        sharded=Sharded(*(round(number, 3) for number in astuple(host.sharded))),
    )


def _provenance(runs: Sequence[HostRun]) -> str:
    repeats = max(len(step.plain) for run in runs for step in run.steps.values())
    last = runs[-1].machine
    facts = [str(last[key]) for key in ("cpu", "device") if key in last]
    return ", ".join([*facts, f"torch {last.get('torch')}", f"{repeats} repeats of each step", str(last.get("made"))])
