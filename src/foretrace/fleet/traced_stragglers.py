"""Stragglers over all steps of a job's traces: how much slower it is than if all ranks and steps were equally fast.

The figures are those of span logs (`foretrace.fleet.stragglers`). Each step is simulated with its tasks as they were
measured, and with every task as long as the same one is in the mean over ranks and steps (the n-th of its kind for an
op or a kernel of that name) and all ranks beginning at once. Then back again for one rank, stage or part at a time: T1
to T5, a kernel family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from foretrace.analysis.collectives import ONE_SIDED, CollectiveTimes, collective_times
from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import Workings
from foretrace.errors import ForetraceError
from foretrace.fleet.response import COMMUNICATION, COMPONENTS, HOST_CAUSE, component_codes, with_waits
from foretrace.fleet.stragglers import StragglerReport, WorkerRow, ranked_slowdowns, removed_share, slowest_of
from foretrace.graph import Job
from foretrace.graph.tables import Floats, Longs
from foretrace.simulation.engine import simulate
from foretrace.simulation.task_graph import TRANSFER

NEGLIGIBLE = 1e-3
"""Share of the step below which a part has no row."""


class _Step:
    """One step of all ranks: its tasks, and what each rank spends in each part."""

    def __init__(self, job: Job, name: str) -> None:
        workings = measure_step(job, name).workings
        if workings is None or not len(workings.tasks):
            raise ForetraceError(f"{job.source}: {name} has no times", "Record it with times.")
        self.tasks, self.codes = with_waits(workings), component_codes(workings)
        self.duration: Floats = self.tasks.duration
        self.ranks = len(workings.graphs)
        # Transfers are of all ranks, and none's own.
        self.rank = np.where(self.tasks.kind == TRANSFER, self.ranks, self.tasks.rank)
        release, began = self.tasks.release, np.full(self.ranks + 1, np.inf)
        np.minimum.at(began, self.rank, np.where(np.isfinite(release), release, np.inf))
        late = np.where(np.isfinite(began), began - began.min(), 0.0)
        self.together: Floats = release - late[self.rank]
        """Earliest starts if all ranks began their step at once."""
        self.names = _task_names(workings)
        self.stages = _stages(collective_times(workings.graphs)[0], self.ranks)

    def keys(self, labels: dict[tuple[int, str], int]) -> Longs:
        """What each task is on all ranks and in all steps: a label of its part and name, and which of them it is."""
        pairs = zip(self.codes.tolist(), self.names)
        label = np.fromiter((labels.setdefault(pair, len(labels)) for pair in pairs), np.int64, len(self.tasks))
        order = np.lexsort((label, self.rank))
        new = np.ones(len(order), bool)
        new[1:] = (label[order[1:]] != label[order[:-1]]) | (self.rank[order[1:]] != self.rank[order[:-1]])
        begin = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order)) - begin
        return np.asarray(label << 32 | number)

    def seconds(self, ideal: Floats, as_measured: np.ndarray) -> float:
        """The step with some tasks as they were and all others ideal, ranks that begin late among them."""
        release = np.where(as_measured, self.tasks.release, self.together)
        return simulate(replace(self.tasks, release=release), np.where(as_measured, self.duration, ideal)).span / 1e6

    def of_ranks(self, places: Sequence[int]) -> np.ndarray:
        """The tasks of some ranks, by their places in the job."""
        return np.isin(self.rank, places)


Chosen = Callable[[_Step], np.ndarray]
"""Tasks of a step."""


def step_stragglers(job: Job, names: Sequence[str]) -> StragglerReport:
    """What stragglers cost a job of several ranks over some of its steps."""
    steps = [_Step(job, name) for name in names]
    ranks, stages = [graph.rank for graph in job.graphs], steps[0].stages
    ideals = _ideal_durations(steps)

    def seconds(as_measured: Chosen) -> Floats:
        """Each step with some tasks as they were and all others ideal."""
        return np.array([step.seconds(ideal, as_measured(step)) for step, ideal in zip(steps, ideals)])

    def without(places: Sequence[int]) -> float:
        """Share of the slowdown that goes away if some ranks take what they ideally would."""
        return removed_share(now, seconds(lambda step: ~step.of_ranks(places)), best)

    now, best = seconds(lambda step: np.ones(len(step.tasks), bool)), seconds(lambda step: step.of_ranks([]))
    by_rank = [seconds(partial(_Step.of_ranks, places=[place])) for place in range(len(ranks))]
    members = {stage: [at for at, one in enumerate(stages) if one == stage] for stage in sorted(set(stages))}
    by_stage = {stage: seconds(partial(_Step.of_ranks, places=places)) for stage, places in members.items()}
    spent = sum(np.bincount(step.codes, step.duration, len(COMPONENTS)) for step in steps)
    worth = np.flatnonzero(spent > NEGLIGIBLE * 1e6 * now.sum()).tolist()
    by_part = {COMPONENTS[code]: seconds(partial(_of_part, code=code)) for code in worth}
    rows = [WorkerRow(*one, float(each.mean() / best.mean())) for one, each in zip(zip(ranks, ranks, stages), by_rank)]
    workers = sorted(rows, key=lambda row: (-row.slowdown, row.rank))
    slowest = [row.rank for row in slowest_of(workers)]
    return StragglerReport(
        source=job.source,
        workers=len(ranks),
        steps=len(steps),
        step_s=float(now.mean()),
        explained_s=float(now.mean()),
        ideal_s=float(best.mean()),
        slowdown=float(now.mean() / best.mean()),
        by_optype=ranked_slowdowns(by_part, best),
        by_dp_rank={row.rank: row.slowdown for row in workers},
        by_stage=ranked_slowdowns(by_stage, best) if len(members) > 1 else {},
        by_worker=workers,
        slowest_workers=slowest,
        without_workers=without([ranks.index(rank) for rank in slowest]),
        last_stage=max(stages),
        without_last_stage=without(members[max(stages)]) if len(members) > 1 else 0.0,
        by_step={_number(name, place): float(ratio) for place, (name, ratio) in enumerate(zip(names, now / best))},
        heat=[(each / best).round(4).tolist() for _, each in sorted(zip(ranks, by_rank), key=lambda one: one[0])],
    )


def _ideal_durations(steps: Sequence[_Step]) -> list[Floats]:
    """For each step how long its tasks are if each is as long as the same one in the mean over ranks and steps.

    Of transfers and syncs it is the median: some wait, and a mean would count that. A pause with a cause of its own, as
    garbage collection, counts as none where it is not.
    """
    labels = dict[tuple[int, str], int]()
    keys = [step.keys(labels) for step in steps]
    found, place = np.unique(np.concatenate(keys), return_inverse=True)
    took, part = (np.concatenate([getattr(step, name) for step in steps]) for name in ("duration", "codes"))
    count = np.bincount(place, minlength=len(found))
    pause = np.zeros(len(found), bool)
    pause[place[part == COMPONENTS.index(HOST_CAUSE)]] = True
    mean = np.bincount(place, took) / np.where(pause, len(steps) * steps[0].ranks, count)
    took = took[np.lexsort((took, place))]
    begin = np.cumsum(count) - count
    middle = (took[begin + (count - 1) // 2] + took[begin + count // 2]) / 2
    waits = np.isin(part, [COMPONENTS.index(name) for name in (COMMUNICATION, "sync")])
    return np.split(np.where(waits, middle[place], mean[place]), np.cumsum([len(key) for key in keys])[:-1])


def _task_names(workings: Workings) -> list[str]:
    """The op of each task on a host, the kernel of each on a device."""
    tasks, names = workings.tasks, [""] * len(workings.tasks)
    for position, (graph, segments) in enumerate(zip(workings.graphs, workings.segments)):
        here = tasks.rank == position
        host, device = np.flatnonzero(here & tasks.on_host), np.flatnonzero(here & ~tasks.on_host)
        ops, kernels = [*graph.ops.names.items, ""], graph.kernels
        op = np.append(graph.ops.name, len(ops) - 1)[segments.op[tasks.row[host]]]
        for task, code in zip(host.tolist(), op.tolist()):
            names[task] = ops[code]
        for task, row in zip(device.tolist(), tasks.row[device].tolist()):
            whose = "transfer of " if tasks.kind[task] == TRANSFER else ""
            names[task] = whose + (kernels.names[kernels.name[row]] if 0 <= row < len(kernels) else "")
    return names


def _number(name: str, place: int) -> int:
    """The number of a step, from its name where it has one."""
    number = name.rpartition("#")[2]
    return int(number) if number.isdecimal() else place


def _of_part(step: _Step, code: int) -> np.ndarray:
    return np.asarray(step.codes == code)


def _stages(collectives: Sequence[CollectiveTimes], ranks: int) -> list[int]:
    """The pipeline stage of each rank: how many sends, each the first between two ranks, lead to it; 0 without any.

    Activations go from stage to stage before gradients come back.
    """
    first: dict[tuple[int, int], float] = {}
    for group in collectives:
        if len(group) and group.kinds[0] in ONE_SIDED:
            source, target = group.members
            first[source, target] = float(group.start.min())
    ways = [pair for pair, began in first.items() if began < first.get((pair[1], pair[0]), np.inf)]
    stages = [0] * ranks
    for _ in range(ranks):  # a circle ends here
        for source, target in ways:
            stages[target] = max(stages[target], min(stages[source] + 1, ranks - 1))
    return stages
