"""The step time as a function of how long its parts take: what a fleet's what-ifs are answered from.

For a fixed task graph the step is the longest of all paths, and each path is a sum of parts: host overheads, kernels by
family, communication. Scaling the parts, the step is the maximum of linear functions. A record keeps those of them that
are critical in a dozen settings; their maximum is exact there and never too long elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from foretrace.analysis.breakdown import KERNEL_GROUPS, kernel_family
from foretrace.analysis.host_time import OVERHEADS
from foretrace.analysis.report import Workings
from foretrace.graph import Graph
from foretrace.graph.tables import COLLECTIVE, Floats, Ints
from foretrace.simulation.critical_path import critical_path
from foretrace.simulation.engine import simulate
from foretrace.simulation.task_graph import SYNC, TRANSFER, TaskGraph

HOST_CAUSE, GAP = "host: other", "gap"
"""Host time with a cause of its own, as data loading; and time in which nothing that is known of was running."""
HOST = (*OVERHEADS, HOST_CAUSE)
COMPONENTS = (*HOST, *KERNEL_GROUPS, "sync", GAP)
"""The parts of a path, in the order of a record's rows."""
COMMUNICATION = "communication"
NEGLIGIBLE = 0.02
"""Share of the longest path below which a family has no setting of its own."""
_PLACE = {name: place for place, name in enumerate(COMPONENTS)}
SETTINGS: dict[str, dict[str, float]] = {
    "device twice as slow": dict.fromkeys(KERNEL_GROUPS, 2.0),
    "device twice as fast": dict.fromkeys(KERNEL_GROUPS, 0.5),
    "arithmetic twice as slow": dict.fromkeys(("matrix product", "convolution", "attention"), 2.0),
    "hosts twice as slow": dict.fromkeys(HOST, 2.0),
}
"""Changes that a suite shall respond to as the fleet does: what other platforms are made of."""


def component_factors(scale: Mapping[str, float]) -> Floats:
    """A factor for each of `COMPONENTS`, 1 where none is given."""
    factors = np.ones(len(COMPONENTS))
    for name, factor in scale.items():
        factors[_PLACE[name]] = factor
    return factors


@dataclass(frozen=True, eq=False)
class StepResponse:
    """Critical paths of a step in several settings, each as milliseconds by component.

    >>> rows = np.zeros((2, len(COMPONENTS)))
    >>> rows[0, COMPONENTS.index("T1")], rows[1, COMPONENTS.index("matrix product")] = 8.0, 6.0
    >>> step = StepResponse(rows)
    >>> step.ms(), step.ms({"T1": 0.9}), step.ms({"T1": 0.5}), step.ms({"T1": 0.5, "matrix product": 0.5})
    (8.0, 7.2, 6.0, 4.0)
    """

    paths: Floats

    def ms(self, scale: Mapping[str, float] | None = None) -> float:
        """The step time with some components scaled: 0.9 for one that takes a tenth less."""
        return float((self.paths @ component_factors(scale or {})).max()) if len(self.paths) else 0.0

    def with_host(self, factor: float) -> StepResponse:
        """The same step with a host that takes ``factor`` times as long."""
        paths = self.paths.copy()
        paths[:, : len(HOST)] *= factor
        return StepResponse(paths)

    def host_factor(self, step_ms: float) -> float:
        """How much of its host time a step of this length has left: 1 where it is as long as this one or longer.

        A profiled step is longer than others, and by host time only.
        """
        low, high = 0.0, 1.0
        if not len(self.paths) or step_ms >= self.ms():
            return 1.0
        if step_ms <= self.with_host(0.0).ms():  # its device was faster, too
            return step_ms / self.ms()
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.with_host(middle).ms() < step_ms else (low, middle)
        return high


def component_codes(workings: Workings) -> Ints:
    """The component of each task, as a place in `COMPONENTS`."""
    tasks = workings.tasks
    code = np.full(len(tasks), _PLACE[GAP], np.int32)
    ranks = tasks.rank if len(tasks.rank) else np.zeros(len(tasks), np.int32)
    for position, (graph, segments) in enumerate(zip(workings.graphs, workings.segments)):
        here = ranks == position
        host, device = np.flatnonzero(here & tasks.on_host), np.flatnonzero(here & ~tasks.on_host)
        rows = tasks.row[host]
        kinds = np.where(tasks.kind[host] == SYNC, _PLACE["sync"], tasks.kind[host])
        code[host] = np.where((segments.cause[rows] >= 0) & (tasks.kind[host] != SYNC), _PLACE[HOST_CAUSE], kinds)
        code[device] = np.append(kernel_families(graph), _PLACE[GAP])[tasks.row[device]]
    code[tasks.kind == TRANSFER] = _PLACE[COMMUNICATION]
    return code


def kernel_families(graph: Graph) -> Ints:
    """The family of each kernel, as a place in `COMPONENTS`."""
    kernels, names = graph.kernels, [*graph.ops.names.items, ""]
    if not len(kernels):
        return np.zeros(0, np.int32)
    op = np.append(graph.ops.name, len(names) - 1)[kernels.op]
    pairs, which = np.unique(kernels.name.astype(np.int64) * len(names) + op, return_inverse=True)
    families = [kernel_family(kernels.names[pair // len(names)], names[pair % len(names)]) for pair in pairs.tolist()]
    codes = np.array([_PLACE[family] for family in families], np.int32)[which]
    return np.where(kernels.kind == COLLECTIVE, _PLACE[COMMUNICATION], codes).astype(np.int32)


def with_waits(workings: Workings) -> TaskGraph:
    """The tasks of a measured or simulated step, each with the time it waited for no task as a lag.

    Simulated as they are they take the times that they had.
    """
    tasks, times = workings.tasks, workings.timeline
    ready = np.full(len(tasks), -np.inf)
    np.maximum.at(ready, tasks.after, times.end[tasks.before])
    free = np.isneginf(ready)
    begin = float(times.start.min()) if len(tasks) else 0.0
    wait = times.start - np.where(free, begin, ready)
    return replace(
        tasks, duration=times.end - times.start, lag=wait[tasks.after], release=np.where(free, wait, -np.inf)
    )


def step_response(workings: Workings) -> StepResponse:
    """The critical paths of a step as it was, and with its host, its device or one of its families faster or slower."""
    tasks, codes = with_waits(workings), component_codes(workings)
    if not len(tasks):
        return StepResponse(np.zeros((0, len(COMPONENTS))))
    path = partial(_path, tasks, codes)
    spent = np.bincount(codes, tasks.duration, len(COMPONENTS))
    families = [name for name in KERNEL_GROUPS if spent[_PLACE[name]] > NEGLIGIBLE * workings.timeline.span]
    everything = dict.fromkeys(KERNEL_GROUPS, 1.0)
    settings: list[dict[str, float]] = [
        {},
        *(dict.fromkeys(HOST, factor) for factor in (0.0, 0.25, 0.5, 0.75, 2.0)),
        *({**everything, **dict.fromkeys(KERNEL_GROUPS, factor)} for factor in (0.25, 0.5, 0.75, 2.0)),
        dict.fromkeys((*HOST, COMMUNICATION), 0.0),
        *({name: 0.5} for name in families),
        *({name: 0.0 if name == COMMUNICATION else 2.0} for name in families),
    ]
    rows = {tuple(np.round(path(scale), 4).tolist()): None for scale in settings}
    return StepResponse(np.array(list(rows)))


def _path(tasks: TaskGraph, codes: Ints, scale: Mapping[str, float]) -> Floats:
    """The critical path of a setting: milliseconds by component, with the durations as measured."""
    factors = component_factors(scale)
    times = simulate(tasks, tasks.duration * factors[codes])
    path = critical_path(tasks, times).task
    us = np.bincount(codes[path], tasks.duration[path], len(COMPONENTS)).astype(np.float64)
    # Whatever of the path is no task does not scale: waits, and tasks that began before what they waited for had ended.
    us[_PLACE[GAP]] += float(times.end[path[-1]]) - float((us * factors).sum())
    return us / 1e3


def balanced_ms(workings: Workings) -> float | None:
    """The step time if every rank's host and kernels took what they take in the mean over ranks; None for one rank.

    What is left is what the job takes without stragglers.
    """
    ranks = len(workings.graphs)
    if ranks < 2:
        return None
    tasks, codes = with_waits(workings), component_codes(workings)
    scalable = tasks.kind != TRANSFER
    place = tasks.rank * len(COMPONENTS) + codes
    size = ranks * len(COMPONENTS)
    spent = np.bincount(place[scalable], tasks.duration[scalable], size).reshape(ranks, -1)
    mean = spent.mean(axis=0)
    factor = np.divide(mean, spent, out=np.ones_like(spent), where=spent > 0).ravel()
    times = simulate(tasks, np.where(scalable, tasks.duration * factor[place], tasks.duration))
    return times.span / 1e3
