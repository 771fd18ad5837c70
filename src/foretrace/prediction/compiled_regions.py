"""Compiled programs and CUDA graphs in a step: which calls are theirs, and what they cost the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.dispatched import DispatchedCalls
from foretrace.cost_models.host.pricing import HostCosts
from foretrace.graph import Graph
from foretrace.graph.op import GENERATED_KERNELS, PHASES
from foretrace.graph.tables import Ints
from foretrace.platform.device import CudaGraphCosts
from foretrace.platform.host import CompiledPrograms

SPREAD = 0.5
"""Standard deviation of the logarithm of an estimated time: it may be 1.9 times as long or as short (80 %)."""
MEASURED_SPREAD = 0.2
"""The same of a calibrated one: programs differ in what their guards check."""


class Span(NamedTuple):
    """Calls of a step that belong together."""

    first: int
    end: int
    arguments: int = 0
    """How many the program takes."""
    is_rest: bool = False
    """Whether all of the step after its mark is meant."""


def spans(graph: Graph, step: DispatchedCalls, name: str) -> list[Span]:
    """The spans that side calls of a name mark: as many calls after each as it says, all where it gives no number."""
    marks = graph.ops.names.matching(name.__eq__)
    found = []
    for row in np.flatnonzero(marks[graph.ops.name]).tolist() if len(graph.ops) and marks.any() else ():
        first, count = int(np.searchsorted(step.rows, row)), len(step.rows)
        numbers = [value for value in graph.ops[row].args if isinstance(value, int)]
        end = min(count, first + numbers[0]) if numbers else count
        if end > first:
            found.append(Span(first, end, sum(numbers[1:]), not numbers))
    return found


def members(some: Sequence[Span], count: int) -> NDArray[np.bool_]:
    """Which calls are in one of the spans."""
    inside = np.zeros(count, bool)
    for span in some:
        inside[span.first : span.end] = True
    return inside


def with_compiled_regions(host: HostCosts, regions: Sequence[Span], calls: Graph, costs: CompiledPrograms) -> HostCosts:
    """Host costs of calls if some are made by generated programs, without PyTorch's Python around each."""
    count = len(calls.ops)
    inside = members(regions, count)
    generated = inside & calls.ops.names.matching(lambda name: name.startswith(GENERATED_KERNELS))[calls.ops.name]
    before = np.where(inside, host.before - host.gap + costs.call, host.before)
    backward = calls.ops.phase == PHASES.index("backward")
    for span in regions:
        entered = costs.backward if backward[span.first] else costs.entry + costs.argument * span.arguments
        before[span.first] += entered
    spread = MEASURED_SPREAD if costs.measured else SPREAD
    return host._replace(
        before=before,
        gap=np.where(inside, costs.call, host.gap),
        to_launch=np.where(generated, np.maximum(0.0, costs.kernel - costs.call - host.launch), host.to_launch),
        after=np.where(generated, 0.0, host.after),
        spread=np.where(inside, np.maximum(host.spread, spread), host.spread),
    )


def with_graph_launches(
    host: HostCosts, graphs: Sequence[Span], launching: Ints, python_us: float
) -> tuple[HostCosts, int]:
    """Host costs of calls if some are in CUDA graphs, and how many kernels are.

    The first call of a graph pays for its launch, and the others nothing. ``launching`` has the call of each kernel. If
    the whole rest of the step is one graph, it takes ``python_us`` from one call before it to the next: no gradients
    are cleared, and no module is entered.
    """
    count, whole = len(host.before), any(graph.is_rest for graph in graphs)
    inside = members(graphs, count)
    to_launch = np.where(inside, 0.0, host.to_launch)
    before = np.where(inside, 0.0, python_us if whole else host.before)
    costs = CudaGraphCosts.shipped()
    for graph in graphs:
        to_launch[graph.first] = costs.launch(int(((launching >= graph.first) & (launching < graph.end)).sum()))
        if not whole:
            before[graph.first] = host.before[graph.first]
    return host._replace(
        before=before,
        to_launch=to_launch,
        launch=np.where(inside, 0.0, host.launch),
        between=np.where(inside, 0.0, host.between),
        after=np.where(inside, 0.0, host.after),
        cold_penalty=np.zeros(count) if whole else np.where(inside, 0.0, host.cold_penalty),
    ), int(inside[launching].sum())
