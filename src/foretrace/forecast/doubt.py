"""How sure a forecast is: the range that the spread of the host and the errors of the kernel models leave."""

from __future__ import annotations

import numpy as np

from foretrace.cost_models.ranges import TENTH
from foretrace.forecast.families import family
from foretrace.forecast.step import Step
from foretrace.forecast.timetable import KERNEL, Timetable
from foretrace.graph import Graph
from foretrace.graph.tables import Floats, Ints
from foretrace.simulation.forward import Doubt, draw

DRAWS = 300
"""Enough for the 10th and the 90th percentile to be known to a hundredth of the range, and quick."""
PERCENTILES = (10.0, 90.0)
OF_THE_FAMILY = 0.5
"""Share of a kernel model's variance that all kernels of a family have in common; the rest is that of equal calls."""


def draws(calls: Graph, step: Step, table: Timetable) -> Floats:
    """Ends of the step, in microseconds, if host and device are drawn anew each time."""
    return draw(table.program, doubts(calls, step, table), DRAWS)


def doubts(calls: Graph, step: Step, table: Timetable) -> Doubt:
    """What may be off in each task.

    The host's calls have a spread each, and one factor that a whole step shares. A kernel shares part of its error
    with its family, and the rest with those that the model can't tell from it.
    """
    families, alike = _groups(calls, step)
    host, device = np.hypot(step.spread, step.common), table.kind == KERNEL
    group = table.call.copy()
    group[device] = len(step) + alike[table.kernel[device]]

    _, example = np.unique(alike, return_index=True)
    work = step.work
    low, typical, high = (np.maximum(column[example], 1e-9) for column in (work.low, work.typical, work.high))
    return Doubt(
        group=group,
        down=np.concatenate([host, np.log(typical / np.minimum(low, typical)) / TENTH]),
        up=np.concatenate([host, np.log(np.maximum(high, typical) / typical) / TENTH]),
        common=np.concatenate([np.zeros(len(step), np.int32), families[example]]),
        weight=np.concatenate([
            np.divide(step.common**2, host**2, out=np.zeros(len(step)), where=host > 0),
            np.full(len(example), OF_THE_FAMILY),
        ]),
    )  # fmt: skip


def _groups(calls: Graph, step: Step) -> tuple[Ints, Ints]:
    """For each kernel the number of its family, from 1, and of those that are predicted the same."""
    work = step.work
    op_names = [calls.ops.names[code] for code in calls.ops.name[work.call].tolist()]
    families = _numbered([family(kernel, op) for kernel, op in zip(work.name, op_names)])
    alike = _numbered([f"{name} {us:.4f}" for name, us in zip(work.name, work.typical.tolist())])
    return families + 1, alike


def _numbered(words: list[str]) -> Ints:
    """The place that each word has among the different ones, in the order of the alphabet."""
    place = {word: place for place, word in enumerate(sorted(set(words)))}
    return np.array([place[word] for word in words], np.int32)
