"""Walks through forests: of few rows all at once, step by step; of many one after the other, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.compiling import compiled, patience

Floats = NDArray[np.float64]
Nodes = NDArray[Any]
"""What a `Forest` has of its nodes."""

WALK_MS = 2e-4
"""What one row takes through one tree where many take each step together."""
WALKS = 1 << 16
"""So many do: they stay in the cache."""
BLOCK = 256
"""Rows that pass all trees one after the other: these, and a tree, stay in the cache."""


def answers(rows: Floats, feature: Nodes, threshold: Nodes, right: Nodes, root: Nodes) -> Floats:
    """For each row, the sum of the leaves it falls into."""
    forest = feature, threshold, right, root
    if not patience.allows(len(rows) * len(root) * WALK_MS):
        return one_by_one(rows, *forest)
    together = max(WALKS // len(root), 1)
    parts = [all_at_once(rows[first : first + together], *forest) for first in range(0, len(rows), together)]
    return np.concatenate([np.zeros(0), *parts])


def all_at_once(rows: Floats, feature: Nodes, threshold: Nodes, right: Nodes, root: Nodes) -> Floats:
    """Every row is in every tree; those that are not at a leaf yet take a step, and so on."""
    count, columns = rows.shape
    values, begins = rows.ravel(), np.tile(np.arange(count) * columns, len(root))
    node = at = np.repeat(root.astype(np.intp), count)
    walking = np.arange(len(at))
    while len(at):
        column = feature.take(at)
        further = np.flatnonzero(column >= 0)
        if len(further) < len(at):
            node[walking] = at
            at, walking, begins, column = (some.take(further) for some in (at, walking, begins, column))
        goes_on = values.take(begins + column) <= threshold.take(at)
        at = at + np.where(goes_on, 1, right.take(at))
    # Added up in the order of the trees, as the compiled walk does it.
    return np.asarray(np.cumsum(threshold[node].reshape(len(root), count), axis=0, dtype=np.float64)[-1])


@compiled
def one_by_one(rows: Floats, feature: Nodes, threshold: Nodes, right: Nodes, root: Nodes) -> Floats:
    """The same, compiled."""
    result = np.zeros(len(rows))
    for first in range(0, len(rows), BLOCK):
        for tree in range(len(root)):
            for row in range(first, min(first + BLOCK, len(rows))):
                node = root[tree]
                while feature[node] >= 0:
                    node += 1 if rows[row, feature[node]] <= threshold[node] else right[node]
                result[row] += threshold[node]
    return result
