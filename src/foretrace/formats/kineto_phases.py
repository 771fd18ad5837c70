"""Which part of the step each op belongs to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import PHASES, OpTable
from foretrace.graph.tables import distinct

FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))


def phases(ops: OpTable) -> NDArray[np.int8]:
    """The phase of each row: backward below autograd's nodes and on autograd's threads, optimizer below its step.

    What is left is forward, unless the step's last backward has already begun and nothing but clean-up is left.
    """
    if not len(ops):
        return np.zeros(0, np.int8)
    node = ops.names.matching(lambda name: name.startswith("autograd::engine::"))[ops.name]
    optimizer = ops.names.matching(lambda name: name.startswith("Optimizer."))[ops.name]
    step = ops.names.matching(lambda name: name.startswith("ProfilerStep#"))[ops.name]
    backward = below(node, ops.parent) | np.isin(ops.thread, _autograd_threads(ops, node))
    in_optimizer = below(optimizer, ops.parent)
    borders = np.sort(np.concatenate([ops.start[step], ops.end[optimizer]]))
    window = np.searchsorted(borders, ops.start, side="right")
    last_backward = np.full(len(borders) + 1, -np.inf)
    np.maximum.at(last_backward, window[backward], ops.start[backward])
    last_backward[np.isneginf(last_backward)] = np.inf
    phase = np.where(ops.start < last_backward[window], FORWARD, OTHER)
    phase[backward] = BACKWARD
    phase[in_optimizer] = OPTIMIZER
    return phase.astype(np.int8)


def below(mark: NDArray[np.bool_], parent: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Rows that are marked or lie below a marked row.

    >>> below(np.array([False, True, False]), np.array([-1, 0, 1])).tolist()
    [False, True, True]
    """
    inside = mark.copy()
    above = parent.copy()
    looking = np.flatnonzero(~inside & (above >= 0))
    while len(looking):
        inside[looking] = mark[above[looking]]
        above[looking] = parent[above[looking]]
        looking = looking[~inside[looking] & (above[looking] >= 0)]
    return inside


def _autograd_threads(ops: OpTable, node: NDArray[np.bool_]) -> list[int]:
    """Threads on which most of what is outermost is autograd's."""
    outermost = ops.parent < 0
    return [
        code
        for code in distinct(ops.thread[node & outermost]).tolist()
        if node[outermost & (ops.thread == code)].mean() > 0.5
    ]
