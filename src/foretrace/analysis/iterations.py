"""Iterations of a trace that marks no steps: annotations or functions that come again and launch its device work.

A server or a benchmark that no profiler's `step()` is called in decodes many tokens in one trace; what its authors
annotate around each of them shows how many there are.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from foretrace.analysis.report import IterationRow
from foretrace.graph import Graph, Job, Span
from foretrace.graph.graph import NO_STEP_MARKS
from foretrace.graph.tables import ANNOTATION, Floats, Ints, Longs, median
from foretrace.simulation.task_graph import outermost

HOLDS = 0.8
"""Share of a trace's device work that its iterations launch."""
NAMED = 60
"""Characters of a name in a note."""
LEAST_REPEATED, LEAST_LAUNCHES, MOST_CANDIDATES = 3, 4, 100
"""How often launches come again, how many of them, and how many kernels are tried as the first of them."""
FEWEST_KERNELS = LEAST_REPEATED * LEAST_LAUNCHES
"""With fewer launches nothing comes again."""
ALIKE = 1.1
"""Launches that come again are so many times as many, at most, and are other ones at most as often."""
_NUMBER = re.compile(r"\d+")
_PART = re.compile(r"(?i)layer|block|expert|head|chunk|shard|stage|bucket|micro|## Call Compiled")
"""Parts of an iteration, of which it may have as many as a trace has iterations."""
_FUNCTION = re.compile(r": (\w*(execute_model|run_batch|train_step|training_step|decode|generate|forward)\w*)$")
"""Functions that one calls an iteration; annotations around all of the work are one by whatever name."""


class Iterations(NamedTuple):
    """What comes again, and when."""

    name: str
    spans: list[Span]
    """Each up to the next one; the last up to its end."""


def find_iterations(graph: Graph) -> Iterations | None:
    """The annotations of one name on one thread, or the functions, that launch most of the device work. Of several the
    ones that take longest, or annotations inside these. None where steps are marked, and where nothing comes again.
    """
    table, kernels = graph.activities, graph.kernels
    launched = kernels.call >= 0
    if graph.steps or not len(table) or not launched.any():
        return None
    at, us = graph.calls.start[kernels.call[launched]], (kernels.end - kernels.start)[launched]
    order = np.argsort(at, kind="stable")
    at, done = at[order], np.append(0.0, np.cumsum(us[order]))
    found: list[tuple[float, bool, Longs]] = []
    for rows in _families(graph):
        rows = rows[outermost(table.start[rows], table.end[rows])]
        start, end = table.start[rows], table.end[rows]
        work = done[np.searchsorted(at, end)] - done[np.searchsorted(at, start)]
        rows = rows[work > 0]
        if len(rows) < 2 or work.sum() < HOLDS * done[-1]:
            continue
        found.append((float((end - start).sum()), bool(table.kind[rows[0]] == ANNOTATION), rows))
    if not found:
        return None
    found.sort(key=lambda one: -one[0])
    alike = [one for one in found if len(one[2]) == len(found[0][2])]
    return _iterations(graph, next((one for one in alike if one[1]), found[0])[2])


def _families(graph: Graph) -> list[Longs]:
    """Rows of the activities whose names differ in numbers only, thread by thread, in time order."""
    table = graph.activities
    kinds = [_NUMBER.sub("#", name) for name in table.names.items]
    functions = [bool(_FUNCTION.search(name)) for name in table.names.items]
    codes = {kind: code for code, kind in enumerate(dict.fromkeys(kinds))}
    family = np.array([codes[kind] for kind in kinds])[table.name]
    parts = np.array([bool(_PART.search(name)) for name in table.names.items])
    rows = np.flatnonzero(((table.kind == ANNOTATION) & ~parts[table.name]) | np.array(functions)[table.name])
    each: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for key in zip(family[rows].tolist(), table.thread[rows].tolist(), table.kind[rows].tolist(), rows.tolist()):
        each[key[:3]].append(key[3])
    return [np.array(some) for some in each.values() if len(some) > 1]


def _iterations(graph: Graph, rows: Longs) -> Iterations:
    table = graph.activities
    names = list(dict.fromkeys(table.names[code] for code in table.name[rows].tolist()))
    name = names[0] if len(names) == 1 else _NUMBER.sub("#", names[0])
    starts: Floats = table.start[rows]
    borders = [*pairwise(starts.tolist()), (float(starts[-1]), float(table.end[rows[-1]]))]
    return Iterations(name, [Span(f"{name} {n}", *border) for n, border in enumerate(borders)])


def iteration_row(job: Job) -> IterationRow | None:
    """How many iterations the first rank that shows any has, and how far they lie apart; where none does, those of
    launches that come again and again, which have no name.
    """
    for found in map(find_iterations, job.graphs):
        if found is not None:
            apart = np.array([span.ms for span in found.spans[:-1]])
            return IterationRow(found.name, len(found.spans), float(median(apart)))
    return next(filter(None, map(repeated_launches, job.graphs)), None)


def repeated_launches(graph: Graph) -> IterationRow | None:
    """How often the same launches seem to come again in a trace without step marks; None where they do not.

    Between any two launches of one kernel the same kernels are launched, but for the first time, and as many or fewer
    before and after. These may be steps, or the layers of one: what they are, no mark says.
    """
    kernels = graph.kernels
    if graph.steps or len(kernels) < FEWEST_KERNELS:
        return None
    launched = np.append(graph.calls.start, np.nan)[kernels.call]
    order = np.lexsort((kernels.start, np.where(kernels.call >= 0, launched, kernels.start)))
    name, start = kernels.name[order], kernels.start[order]
    counts = np.bincount(name)
    # Of names with as many launches the first one stands for all.
    codes = {int(counts[code]): code for code in np.flatnonzero(counts >= LEAST_REPEATED)[::-1].tolist()}
    for count in sorted(codes, reverse=True)[:MOST_CANDIDATES]:
        at = np.flatnonzero(name == codes[count])
        length = float(median(np.diff(at)))
        if max(at[0], len(name) - at[-1]) <= ALIKE * length and _alike(name, at, length):
            times = count - 1 + round((at[0] + len(name) - at[-1]) / length)
            return IterationRow("", times, float(median(np.diff(start[at]))) / 1e3)
    return None


def _alike(name: Ints, at: Longs, length: float) -> bool:
    """Whether the launches between rows are alike: as many, and of the same names; but for the first of them."""
    lengths = np.diff(at)[1:]
    if length < LEAST_LAUNCHES or (lengths > ALIKE * length).any() or (ALIKE * lengths < length).any():
        return False
    usual = np.bincount(name[at[-2] : at[-1]], minlength=int(name.max()) + 1)
    for begin, end in pairwise(at[1:].tolist()):
        other = np.bincount(name[begin:end], minlength=len(usual))
        if np.minimum(usual, other).sum() * ALIKE < max(usual.sum(), other.sum()):
            return False
    return True


def with_iterations(job: Job) -> Job:
    """The job with its iterations as its steps, where all ranks show as many and none marks steps. The last of several
    goes on to no next one, and is left out.
    """
    each = [find_iterations(graph) for graph in job.graphs]
    known = [one for one in each if one is not None]
    if not known or len(known) < len(each) or len({len(one.spans) for one in known}) > 1:
        return job
    names = [span.name for span in known[0].spans]
    names = names[:-1] if len(names) > 2 else names
    graphs = [
        replace(
            graph,
            steps=[span._replace(name=name) for span, name in zip(one.spans, names)],
            notes=[note for note in graph.notes if note != NO_STEP_MARKS],
        )
        for graph, one in zip(job.graphs, known)
    ]
    note = f"no step is marked: each is from one {known[0].name[:NAMED]} to the next"
    return replace(job, graphs=graphs, notes=[*job.notes, note])


def with_step(job: Job, step: str | None) -> Job:
    """The job with its iterations as its steps, where a step is asked for and none is marked."""
    return with_iterations(job) if step is not None and not any(graph.steps for graph in job.graphs) else job
