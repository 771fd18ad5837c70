"""What the calls of a recorded step gave the device to do: an edit that leaves a call as it was may keep that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping

import numpy as np

from foretrace.graph.dispatched import dispatched, owner
from foretrace.graph.graph import Graph
from foretrace.graph.signature import signature
from foretrace.graph.tables import COLLECTIVE

Launched = tuple[tuple[str, float], ...]
"""Kernels in order, each with its microseconds."""


def seen_calls(graph: Graph) -> Mapping[Hashable, Launched]:
    """The kernels that each recorded call launched, by the signature of the call; nothing for a graph without kernels.

    Of calls that are alike, each kernel has its median time.

    >>> from foretrace.graph import OpTable
    >>> seen_calls(Graph(OpTable.of([])))
    {}
    """
    kernels, rows = graph.kernels, dispatched(graph)
    known = np.flatnonzero((kernels.op >= 0) & (kernels.kind != COLLECTIVE))
    if not len(known):
        return {}
    call = owner(graph, rows)[kernels.op[known]]
    launched: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for place in np.lexsort((kernels.start[known], call)).tolist():
        row = known[place]
        took = float(kernels.end[row] - kernels.start[row])
        launched[int(call[place])].append((kernels.names[kernels.name[row]], took))
    alike: dict[Hashable, list[list[tuple[str, float]]]] = defaultdict(list)
    for place, theirs in launched.items():
        if place >= 0:
            alike[signature(graph.ops[int(rows[place])])].append(theirs)
    return {key: _median(each) for key, each in alike.items()}


def _median(each: list[list[tuple[str, float]]]) -> Launched:
    """The median time of each kernel, over the repeats that launch as many as the first one does."""
    names = [name for name, _ in each[0]]
    times = [[us for _, us in one] for one in each if len(one) == len(names)]
    return tuple(zip(names, np.median(np.array(times), axis=0).tolist()))
