"""Parts of a recording that may stand in a suite by themselves: a phase, a module, a range of calls.

A part's figures are those of its calls run alone: its tasks are simulated without the others, so that its kernels queue
behind nothing that came before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np

from foretrace.analysis.report import Workings
from foretrace.fleet.record import PartRecord
from foretrace.fleet.response import (
    COMPONENTS,
    HOST,
    SETTINGS,
    component_codes,
    component_factors,
    kernel_families,
    with_waits,
)
from foretrace.graph import PHASES, Graph
from foretrace.graph.calls import dispatched, enclosing_calls
from foretrace.graph.tables import Floats, Ints, StorageTable
from foretrace.simulation.engine import simulate
from foretrace.simulation.task_graph import TaskGraph

RANGES = 4
"""Ranges of calls that a step is cut into, each with as much device time."""
MAX_MODULES = 6
"""Modules that are parts: the largest, since each is simulated alone in several settings."""
SMALLEST, LARGEST = 0.05, 0.95
"""Shares of the device time that a part has: less is not worth a benchmark, more is the whole step."""
SHORTEST_MS = 0.5
"""Device time of a part: what is shorter finds in the device's caches, run alone, what it does not find in the step."""
FLOATING = ("float", "bfloat", "complex")
BY_CONTENTS = ("sort/index", "lookup")
"""Families whose kernels take as long as their indices say."""


def parts_of(workings: Workings, group: Ints, host: float, busy: float, memory_bytes: int) -> list[PartRecord]:
    """The parts of a step of one rank, with the figures that a suite is chosen by.

    Parameters
    ----------
    workings
        The measured or simulated step.
    group
        For each kernel its place in the record's groups.
    host
        How many times its host time a step takes that is not profiled.
    busy
        Share of the kernels' time in which the device works: less than one where kernels overlap.
    memory_bytes
        The most that the whole step has allocated.
    """
    if len(workings.graphs) != 1 or not len(workings.graphs[0].kernels):
        return []
    step = PartTimes(workings, host)
    us, per_call = step.us, step.per_call
    live = _allocated(workings.graphs[0], step.rows)
    whole, indices, found = float(per_call.sum()), step.index_writers(), list[PartRecord]()
    for part in step.cuts():
        inside = step.calls(part)
        if not max(SMALLEST * whole, 1e3 * SHORTEST_MS) <= float(per_call[inside].sum()) <= LARGEST * whole:
            continue
        if any(inside[reader] and not inside[list(writers)].all() for reader, writers in indices.items()):
            continue
        of_part = np.append(inside, False)[step.call]
        step_ms, *settings_ms = step.ms(part, {}, *SETTINGS.values())
        spent = np.bincount(group[of_part], us[of_part], int(group.max()) + 1) / 1e3
        groups = np.flatnonzero(spent > 0)
        share = float(live[inside].max() / live.max()) if live.max() > 0 else 1.0
        found.append(
            replace(
                part,
                step_ms=step_ms,
                active_ms=min(float(spent.sum()) * busy, step_ms),
                memory_bytes=round(memory_bytes * share),
                settings_ms=settings_ms,
                groups=groups.tolist(),
                ms=np.round(spent[groups], 5).tolist(),
            )
        )
    return found


class PartTimes:
    """A measured or simulated step of one rank, of which parts are simulated alone."""

    def __init__(self, workings: Workings, host: float = 1.0) -> None:
        (self.graph,), (segments,) = workings.graphs, workings.segments
        self.host = host
        self.rows = dispatched(self.graph)
        """The dispatcher calls; parts are made of these."""
        kernels = self.graph.kernels
        self.owner = enclosing_calls(self.graph, self.rows)
        self.us: Floats = kernels.end - kernels.start
        self.call = self.owner[kernels.op]
        """The call of each kernel; -1 where it has none."""
        known = self.call >= 0
        self.per_call: Floats = np.bincount(self.call[known], self.us[known], len(self.rows)).astype(np.float64)
        self.tasks, self.codes = with_waits(workings), component_codes(workings)
        on_host, row = self.tasks.on_host, self.tasks.row
        first = np.append(_first_calls(self.graph, self.rows, self.owner)[segments.op], -1)
        self.call_of_task = np.where(
            on_host, first[np.where(on_host, row, -1)], np.append(self.call, -1)[np.where(on_host, -1, row)]
        )

    def cuts(self) -> Iterator[PartRecord]:
        """The phases, the largest modules, and ranges of calls with as much device time each."""
        phases = np.unique(self.graph.ops.phase[self.rows]).tolist()
        yield from (PartRecord(PHASES[code], phase=PHASES[code]) for code in phases)
        if self.graph.programs:  # what was compiled is one call of a benchmark, whatever of it is asked for
            return
        yield from self._modules()
        ends = np.searchsorted(np.cumsum(self.per_call), np.arange(1, RANGES) / RANGES * self.per_call.sum()) + 1
        bounds, labels = np.unique([0, *ends, len(self.rows)]).tolist(), self._labels()
        for begin, end in pairwise(bounds):
            first, last = labels[begin], labels[end - 1]
            yield PartRecord(f"{first} to {last}", first=first, last=last)

    def _modules(self) -> Iterator[PartRecord]:
        """The modules with most device time below the first that has several with some."""
        paths = [tuple(name.split(".")) if name else () for name in self.graph.ops.modules.items]
        us = np.bincount(self.graph.ops.module[self.rows], self.per_call, len(paths))
        for depth in range(1, max(map(len, paths), default=0) + 1):
            sums: dict[tuple[str, ...], float] = defaultdict(float)
            for path, spent in zip(paths, us.tolist()):
                if len(path) >= depth:
                    sums[path[:depth]] += spent
            large = [path for path in sums if sums[path] > SMALLEST * us.sum()]
            if len(large) > 1:
                for path in sorted(large, key=lambda path: (-sums[path], path))[:MAX_MODULES]:
                    yield PartRecord(".".join(path), module=".".join(path))
                return

    def _labels(self) -> list[str]:
        """The calls by name and number, as a selection of calls names them."""
        seen, labels = Counter[str](), []
        for name in (self.graph.ops.names[code] for code in self.graph.ops.name[self.rows].tolist()):
            labels.append(f"{name}#{seen[name]}")
            seen[name] += 1
        return labels

    def calls(self, part: PartRecord) -> np.ndarray:
        """Which of the calls are in a part."""
        ops = self.graph.ops
        inside = np.ones(len(self.rows), bool)
        if part.phase:
            inside &= ops.phase[self.rows] == PHASES.index(part.phase)
        if part.module:
            in_module = [name == part.module or name.startswith(f"{part.module}.") for name in ops.modules.items]
            inside &= np.array(in_module)[ops.module[self.rows]]
        if part.first or part.last:
            labels = self._labels()
            inside[: labels.index(part.first)] = False
            inside[labels.index(part.last) + 1 :] = False
        return inside

    def index_writers(self) -> dict[int, set[int]]:
        """For calls that read indices which the step makes, all calls that these come from.

        A benchmark knows what was in tensors before the step, and not what calls outside of it have written.
        """
        table = StorageTable.of(self.graph.storages)
        born = dict(zip(table.id.tolist(), table.birth.tolist()))

        @cache
        def writers(call: int) -> frozenset[int]:
            tensors = self.graph.ops[int(self.rows[call])].tensors
            births = {born.get(one.storage, -1) for one in tensors if not one.dtype.startswith(FLOATING)}
            direct = {int(self.owner[birth]) for birth in births if birth >= 0} - {call, -1}
            return frozenset(direct.union(*(writers(other) for other in direct if other < call)))

        sensitive = np.isin(kernel_families(self.graph), [COMPONENTS.index(name) for name in BY_CONTENTS])
        readers = np.unique(self.call[sensitive & (self.call >= 0)]).tolist()
        return {reader: set(found) for reader in readers if (found := writers(reader))}

    def ms(self, part: PartRecord, *settings: Mapping[str, float]) -> list[float]:
        """What a part takes alone in some settings, on a host that is not profiled."""
        tasks, places = _subset(self.tasks, np.append(self.calls(part), False)[self.call_of_task])
        profiled, found = component_factors(dict.fromkeys(HOST, self.host)), []
        for scale in settings:
            factors = (profiled * component_factors(scale))[self.codes[places]]
            found.append(round(simulate(tasks, tasks.duration * factors).span / 1e3, 5))
        return found


def _first_calls(graph: Graph, rows: Ints, owner: Ints) -> Ints:
    """For each op a call that stands for it: the one that it is part of, or of an op around calls the first of them."""
    found = owner.copy()
    for place in range(len(rows) - 1, -1, -1):
        row = int(graph.ops.parent[rows[place]])
        while row >= 0:
            found[row] = place
            row = int(graph.ops.parent[row])
    return found


def _subset(tasks: TaskGraph, mask: np.ndarray) -> tuple[TaskGraph, Ints]:
    """Some of the tasks with the edges among them, and their places in all.

    A host runs them one behind the other, as a benchmark does, and so does each stream.
    """
    places = np.flatnonzero(mask)
    new = np.full(len(tasks), -1, np.int32)
    new[places] = np.arange(len(places))
    after, before = new[tasks.after], new[tasks.before]
    inside = (after >= 0) & (before >= 0)
    lane = np.where(tasks.on_host[places], -1, tasks.lane[places])
    order = np.argsort(lane, kind="stable").astype(np.int32)
    same = lane[order[1:]] == lane[order[:-1]]
    behind = np.stack([order[:-1][same], order[1:][same]], axis=1)
    edges = np.concatenate([np.stack([before[inside], after[inside]], axis=1), behind])
    lag = np.concatenate([tasks.lag[inside], np.zeros(len(behind))])
    return TaskGraph.of(tasks.duration[places], lane, edges, lag), places.astype(np.int32)


def _allocated(graph: Graph, rows: Ints) -> Floats:
    """Bytes that are allocated on devices during each of some calls."""
    table = StorageTable.of(graph.storages)
    on_device = np.array([not name.startswith("cpu") for name in table.devices.items] or [False])
    held = on_device[table.device] if len(table) else np.zeros(0, bool)
    change = np.zeros(len(graph.ops) + 2)
    np.add.at(change, table.birth[held] + 1, table.nbytes[held])
    freed = held & (table.death >= 0)
    np.add.at(change, table.death[freed] + 1, -table.nbytes[freed])
    return np.asarray(np.cumsum(change)[rows + 1])
