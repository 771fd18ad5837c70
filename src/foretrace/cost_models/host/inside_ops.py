"""T2 to T5, the host time inside calls, by op name: fitted to light profiles of small steps and to calls made alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import numpy as np

from foretrace.cost_models.host.pricing import HostCalls
from foretrace.graph.tables import Floats
from foretrace.platform.host import CallCost, Host
from foretrace.platform.measurements.host import HostRun, StepTimes

PRIOR_LAUNCHES = 10
"""Weight, in launches, of the average over all ops in the launch time of one: few launches of its own say little."""
SYNCHRONIZING = frozenset({
    "aten::_local_scalar_dense", "aten::_unique", "aten::_unique2", "aten::bincount", "aten::equal", "aten::is_nonzero",
    "aten::masked_select", "aten::nonzero", "aten::repeat_interleave", "aten::unique_consecutive", "aten::unique_dim",
})  # fmt: skip
"""Calls that wait for the device: alone, most of their time is not the host's."""
MIN_LATER_CALLS = 3
"""Later calls of a name that it takes to compare the first one with."""
DEFAULT_SPREAD = 0.1
"""Spread of a call's time if none was profiled twice."""


class ProfiledCall(NamedTuple):
    """A call of a small step: medians over its profiles, in microseconds."""

    to_launch: float
    """T2: from its start to its first launch."""
    launching: float
    """T4, launch overhead: in all its launches together."""
    between: float
    """T5: between its launches, together."""
    after: float
    """T3: from its last launch to its end."""
    launches: float
    """How many launches it makes."""
    tensors: float
    """Tensors in the lists that it is given."""
    spread: float
    """Standard deviation of the logarithm of its time; NaN if it was profiled once."""
    first: bool = False
    """Whether it is the first call of its name in its phase."""


TO_LAUNCH, LAUNCHING, BETWEEN, AFTER, LAUNCHES, TENSORS, SPREAD = range(7)
"""Columns of arrays whose rows are `ProfiledCall`."""


@dataclass
class MeasuredStep:
    """A small step that was measured, ready to be fitted on."""

    calls: HostCalls
    samples: list[tuple[str, ProfiledCall]]
    plain: Floats
    """Microseconds of each unprofiled step's parts: zeroing gradients, forward, backward, optimizer; where the first is
    NaN, the forward includes it."""

    @classmethod
    def of(cls, step: StepTimes) -> MeasuredStep:
        """From its measurements. A call that is in no profile launches as much as others of its name."""
        columns = np.array([[p.to_launch, p.launching, p.between, p.after, p.launches] for p in step.profiled])
        columns = np.where(columns[:, :1] < 0, np.nan, columns)
        shown = np.flatnonzero(np.isfinite(columns[:, 0]).any(axis=0))
        middle = np.full(columns.shape[1:], np.nan)
        middle[:, shown] = np.nanmedian(columns[:, :, shown], axis=0)
        spread = [_log_spread(times) for times in columns[:, :LAUNCHES].sum(axis=1).T]
        first = HostCalls.measured(step.calls, middle[LAUNCHES]).first
        each = np.vstack([middle, step.calls.tensors, spread, first]).T
        samples = [(step.calls.name[row], ProfiledCall._make(each[row].tolist())) for row in shown.tolist()]
        mean = mean_launches(samples)
        launches = middle[LAUNCHES]
        launches = np.where(np.isnan(launches), [mean.get(name, 0.0) for name in step.calls.name], launches)
        return cls(HostCalls.measured(step.calls, launches), samples, np.array(step.plain))

    @property
    def totals(self) -> Floats:
        """Microseconds of each unprofiled step."""
        return np.asarray(np.nansum(self.plain, axis=1))

    @property
    def typical(self) -> Floats:
        """The median of each part, in microseconds."""
        middle: Floats = np.median(self.plain, axis=0)
        return middle


def _log_spread(times: Floats) -> float:
    known = times[times > 0]
    return float(np.std(np.log(known), ddof=1)) if len(known) > 1 else np.nan


def mean_launches(samples: Iterable[tuple[str, ProfiledCall]]) -> dict[str, float]:
    """Mean number of launches of a call, by name."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, sample in samples:
        by_name[name].append(sample.launches)
    return {name: float(np.mean(launches)) for name, launches in by_name.items()}


def first_call_factor(steps: Iterable[MeasuredStep]) -> float:
    """How many times as long T2 is in the first call of a name in a phase as in later ones: the median over names."""
    ratios = []
    for step in steps:
        runs: dict[str, list[list[float]]] = defaultdict(list)
        for name, sample in step.samples:
            if sample.first or not runs[name]:
                runs[name].append([])
            runs[name][-1].append(sample.to_launch)
        for began, *later in (run for of_name in runs.values() for run in of_name):
            if len(later) >= MIN_LATER_CALLS and (typical := float(np.median(later))) > 0:
                ratios.append(began / typical)
    return max(1.0, float(np.median(ratios))) if ratios else 1.0


def costs_by_name(samples: Sequence[tuple[str, ProfiledCall]], first: float) -> dict[str, CallCost]:
    """The cost of the calls of each name, profiling overhead included.

    >>> mm = ProfiledCall(6.0, 4.0, 0.0, 1.0, launches=1, tensors=0, spread=0.1)
    >>> costs_by_name([("aten::mm", mm._replace(to_launch=9.0, first=True)), *[("aten::mm", mm)] * 3], first=1.5)[
    ...     "aten::mm"
    ... ].to_launch
    6.0
    """
    by_name: dict[str, list[ProfiledCall]] = defaultdict(list)
    for name, sample in samples:
        by_name[name].append(sample)
    everything = np.array([sample for _, sample in samples])
    launch, between = _per_launch(everything, 0.0, 0.0)
    known = everything[np.isfinite(everything[:, SPREAD]), SPREAD]
    spread = float(np.median(known)) if len(known) else DEFAULT_SPREAD
    costs = {}
    for name, found in sorted(by_name.items()):
        slower = np.array([first if sample.first else 1.0 for sample in found])
        costs[name] = _cost(np.array(found), slower, launch, between, spread)
    return costs


def _cost(found: Floats, slower: Floats, launch: float, between: float, spread: float) -> CallCost:
    to_launch, after, tensors = found[:, TO_LAUNCH], found[:, AFTER], found[:, TENSORS]
    tensor = _slope(tensors, to_launch)
    own_launch, own_between = _per_launch(found, launch, between)
    known = found[np.isfinite(found[:, SPREAD]), SPREAD]
    return CallCost(
        to_launch=max(0.0, _trimmed_mean((to_launch - tensor * tensors) / slower)),
        launch=own_launch,
        between=own_between,
        after=_trimmed_mean(after),
        tensor=tensor,
        spread=float(np.median(known)) if len(known) else spread,
    )


def _per_launch(found: Floats, launch: float, between: float) -> tuple[float, float]:
    """Time of a launch and between two launches, shrunk towards the given averages."""
    launches, pauses = found[:, LAUNCHES].sum(), np.maximum(found[:, LAUNCHES] - 1, 0).sum()
    prior = PRIOR_LAUNCHES if launch else 0
    return (
        float((found[:, LAUNCHING].sum() + prior * launch) / max(launches + prior, 1)),
        float((found[:, BETWEEN].sum() + prior * between) / max(pauses + prior, 1)),
    )


def _trimmed_mean(values: Floats) -> float:
    """Mean of the middle half: a call that was delayed once says nothing of the others."""
    ordered, cut = np.sort(values), len(values) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def _slope(lengths: Floats, times: Floats) -> float:
    """Time per tensor of a list, if lists of several lengths were seen: the median over pairs of calls (Theil-Sen)."""
    if len(np.unique(lengths)) < 3:
        return 0.0
    first, second = np.triu_indices(len(lengths), 1)
    apart = lengths[second] - lengths[first]
    steep = (times[second] - times[first])[apart != 0] / apart[apart != 0]
    return max(0.0, float(np.median(steep)))


def default_costs(calls: dict[str, CallCost], launches: dict[str, float]) -> tuple[CallCost, CallCost]:
    """The cost of a call of an unknown name, with launches and without: the median over names."""
    launching = [cost for name, cost in calls.items() if launches[name] >= 0.5]
    views = [cost for name, cost in calls.items() if launches[name] < 0.5]
    return _median(launching or views), _median(views or launching)


def _median(costs: list[CallCost]) -> CallCost:
    return CallCost(*(float(number) for number in np.median([astuple(cost) for cost in costs], axis=0)))


def with_calls_alone(host: Host, runs: Sequence[HostRun]) -> Host:
    """The host with the costs of names that no step has, and of lists that steps have in one length only.

    Calls made alone, in random order, take longer than in a step; how much longer is known from names that steps have.
    """
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for run in runs:
        if run.alone:
            launches = run.launched or [1.0] * len(run.single)
            for name, *call in zip(run.single.name, run.single.tensors, launches, np.median(run.alone, axis=0)):
                found[name].append((float(call[0]), float(call[1]), float(call[2])))
    times = {name: np.array(calls) for name, calls in found.items() if name not in SYNCHRONIZING}
    both = [name for name in times if name in host.calls]
    ratio = float(np.median([_in_step(host.calls[name], times[name]) for name in both])) if both else 1.0
    alone = {name: _cost_alone(calls * (1.0, 1.0, ratio), host) for name, calls in times.items()}
    known = {
        name: cost for name, cost in host.calls.items() if cost.tensor or name not in alone or not alone[name].tensor
    }
    return replace(host, calls=dict(sorted({**alone, **known}.items())))


def _in_step(cost: CallCost, found: Floats) -> float:
    """Time of calls in a step over their time alone."""
    tensors, launches, us = found.T
    inside = cost.to_launch + cost.tensor * tensors + cost.after + _launching(cost, launches)
    return float(np.median(inside / us))


def _launching(cost: CallCost, launches: Floats) -> Floats:
    return cost.launch * launches + cost.between * np.maximum(launches - 1, 0)


def _cost_alone(found: Floats, host: Host) -> CallCost:
    tensors, launches, us = found.T
    like = host.launching if launches.any() else host.view
    rest = us - _launching(like, launches) - like.after
    tensor = _slope(tensors, rest)
    return replace(like, to_launch=max(_trimmed_mean(rest - tensor * tensors), host.view.to_launch), tensor=tensor)
