"""What calls cost the host inside, by name: from light profiles of small steps, and from calls made alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import numpy as np

from foretrace.cost_models.host.terms import HostCalls
from foretrace.graph.tables import Floats
from foretrace.platform.host import CallCost, Host
from foretrace.platform.host_measurements import HostRun, StepTimes

USUAL = 10
"""Launches of all calls that count as much as those of a name: few of its own say little."""
WAITING = frozenset({
    "aten::_local_scalar_dense", "aten::_unique", "aten::_unique2", "aten::bincount", "aten::equal", "aten::is_nonzero",
    "aten::masked_select", "aten::nonzero", "aten::repeat_interleave", "aten::unique_consecutive", "aten::unique_dim",
})  # fmt: skip
"""Calls that return only when the device has answered: alone, most of their time is a wait, and not the host's."""
OFTEN = 3
"""So many later calls of a name tell what a later one takes."""
SOME_SPREAD = 0.1
"""Spread of a call's time where none was profiled twice."""


class Sample(NamedTuple):
    """A call as profiles show it: medians over them."""

    to_launch: float
    launching: float
    between: float
    after: float
    launches: float
    tensors: float
    spread: float
    """Standard deviation of the logarithm of its time; NaN where it was profiled once."""
    first: bool = False
    """Whether it is the first call of its name in its phase."""


@dataclass
class Subject:
    """A small step, ready to be fitted on."""

    calls: HostCalls
    samples: list[tuple[str, Sample]]
    plain: Floats
    """Microseconds of each plain step's parts: clearing, forward, backward, optimizer; where the clearing is NaN, the
    forward holds it."""

    @classmethod
    def of(cls, step: StepTimes) -> Subject:
        """A step as it was measured. A call that no profile shows launches as much as others of its name."""
        columns = np.array([[p.to_launch, p.launching, p.between, p.after, p.launches] for p in step.profiled])
        columns = np.where(columns[:, :1] < 0, np.nan, columns)
        shown = np.flatnonzero(np.isfinite(columns[:, 0]).any(axis=0))
        middle = np.full(columns.shape[1:], np.nan)
        middle[:, shown] = np.nanmedian(columns[:, :, shown], axis=0)
        spread = [_log_spread(times) for times in columns[:, :4].sum(axis=1).T]
        first = HostCalls.measured(step.calls, middle[4]).first
        each = np.vstack([middle, step.calls.tensors, spread, first]).T
        samples = [(step.calls.name[row], Sample._make(each[row].tolist())) for row in shown.tolist()]
        usual = usual_launches(samples)
        launches = np.where(np.isnan(middle[4]), [usual.get(name, 0.0) for name in step.calls.name], middle[4])
        return cls(HostCalls.measured(step.calls, launches), samples, np.array(step.plain))

    @property
    def totals(self) -> Floats:
        """Microseconds of each plain step."""
        return np.asarray(np.nansum(self.plain, axis=1))

    @property
    def typical(self) -> Floats:
        """The median of each part."""
        middle: Floats = np.median(self.plain, axis=0)
        return middle


def _log_spread(times: Floats) -> float:
    known = times[times > 0]
    return float(np.std(np.log(known), ddof=1)) if len(known) > 1 else np.nan


def usual_launches(samples: Iterable[tuple[str, Sample]]) -> dict[str, float]:
    """Launches of a call of each name, on average."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, sample in samples:
        by_name[name].append(sample.launches)
    return {name: float(np.mean(launches)) for name, launches in by_name.items()}


def first_calls(subjects: Iterable[Subject]) -> float:
    """How many times as long T2 is in the first call of a name in a phase as in later ones: the median over names."""
    ratios = []
    for subject in subjects:
        runs: dict[str, list[list[float]]] = defaultdict(list)
        for name, sample in subject.samples:
            if sample.first or not runs[name]:
                runs[name].append([])
            runs[name][-1].append(sample.to_launch)
        for began, *later in (run for of_name in runs.values() for run in of_name):
            if len(later) >= OFTEN and (usual := float(np.median(later))) > 0:
                ratios.append(began / usual)
    return max(1.0, float(np.median(ratios))) if ratios else 1.0


def costs_by_name(samples: Sequence[tuple[str, Sample]], first: float) -> dict[str, CallCost]:
    """What the calls of each name cost, the profiler's weight still on it.

    >>> mm = Sample(6.0, 4.0, 0.0, 1.0, launches=1, tensors=0, spread=0.1)
    >>> costs_by_name([("aten::mm", mm._replace(to_launch=9.0, first=True)), *[("aten::mm", mm)] * 3], first=1.5)[
    ...     "aten::mm"
    ... ].to_launch
    6.0
    """
    by_name: dict[str, list[Sample]] = defaultdict(list)
    for name, sample in samples:
        by_name[name].append(sample)
    everything = np.array([sample for _, sample in samples])
    launch, between = _per_launch(everything, 0.0, 0.0)
    known = everything[np.isfinite(everything[:, 6]), 6]
    spread = float(np.median(known)) if len(known) else SOME_SPREAD
    costs = {}
    for name, found in sorted(by_name.items()):
        slower = np.array([first if sample.first else 1.0 for sample in found])
        costs[name] = _cost(np.array(found), slower, launch, between, spread)
    return costs


def _cost(found: Floats, slower: Floats, launch: float, between: float, spread: float) -> CallCost:
    to_launch, after, tensors = found[:, 0], found[:, 3], found[:, 5]
    tensor = _slope(tensors, to_launch)
    own_launch, own_between = _per_launch(found, launch, between)
    known = found[np.isfinite(found[:, 6]), 6]
    return CallCost(
        to_launch=max(0.0, _middle((to_launch - tensor * tensors) / slower)),
        launch=own_launch,
        between=own_between,
        after=_middle(after),
        tensor=tensor,
        spread=float(np.median(known)) if len(known) else spread,
    )


def _per_launch(found: Floats, launch: float, between: float) -> tuple[float, float]:
    """Time of a launch and of a pause between two: these calls', and the given ones as if seen a few times."""
    launches, pauses = found[:, 4].sum(), np.maximum(found[:, 4] - 1, 0).sum()
    usual = USUAL if launch else 0
    return (
        float((found[:, 1].sum() + usual * launch) / max(launches + usual, 1)),
        float((found[:, 2].sum() + usual * between) / max(pauses + usual, 1)),
    )


def _middle(values: Floats) -> float:
    """Mean of the middle half: a call that was held up once says nothing of the others."""
    ordered, cut = np.sort(values), len(values) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def _slope(lengths: Floats, times: Floats) -> float:
    """Time per tensor of a list, where lists of several lengths were seen: the median over pairs of calls."""
    if len(np.unique(lengths)) < 3:
        return 0.0
    first, second = np.triu_indices(len(lengths), 1)
    apart = lengths[second] - lengths[first]
    steep = (times[second] - times[first])[apart != 0] / apart[apart != 0]
    return max(0.0, float(np.median(steep)))


def costs_of_kinds(calls: dict[str, CallCost], launches: dict[str, float]) -> tuple[CallCost, CallCost]:
    """What a call of an unknown name costs, with launches and without: the median over names."""
    launching = [cost for name, cost in calls.items() if launches[name] >= 0.5]
    views = [cost for name, cost in calls.items() if launches[name] < 0.5]
    return _median(launching or views), _median(views or launching)


def _median(costs: list[CallCost]) -> CallCost:
    return CallCost(*(float(number) for number in np.median([astuple(cost) for cost in costs], axis=0)))


def with_calls_alone(host: Host, runs: Sequence[HostRun]) -> Host:
    """The host with the costs of names that no step has, and of lists where steps had them of one length only.

    Calls made alone, all in random order, take longer than in a step; how much longer is known from names that steps
    have too.
    """
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for run in runs:
        if run.alone:
            launches = run.launched or [1.0] * len(run.single)
            for name, *call in zip(run.single.name, run.single.tensors, launches, np.median(run.alone, axis=0)):
                found[name].append((float(call[0]), float(call[1]), float(call[2])))
    times = {name: np.array(calls) for name, calls in found.items() if name not in WAITING}
    both = [name for name in times if name in host.calls]
    ratio = float(np.median([_in_step(host.calls[name], times[name]) for name in both])) if both else 1.0
    alone = {name: _cost_alone(calls * (1.0, 1.0, ratio), host) for name, calls in times.items()}
    known = {name: cost for name, cost in host.calls.items() if cost.tensor or not _has_slope(alone.get(name))}
    return replace(host, calls=dict(sorted({**alone, **known}.items())))


def _has_slope(cost: CallCost | None) -> bool:
    return cost is not None and cost.tensor > 0


def _in_step(cost: CallCost, found: Floats) -> float:
    """How long calls take in a step, as a share of what they take alone."""
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
    return replace(like, to_launch=max(_middle(rest - tensor * tensors), host.view.to_launch), tensor=tensor)
