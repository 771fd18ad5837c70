"""The loops over rows, trees and nodes, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.compiling import compiled

BLOCK = 256
"""Rows that pass all trees together: these, and a tree, stay in the cache."""


@compiled
def answers(
    rows: NDArray[np.float64],
    feature: NDArray[np.int16],
    threshold: NDArray[np.float32],
    right: NDArray[np.int16],
    root: NDArray[np.int32],
) -> Any:
    """For each row, the sum of the leaves it falls into."""
    result = np.zeros(len(rows))
    for first in range(0, len(rows), BLOCK):
        for tree in range(len(root)):
            for row in range(first, min(first + BLOCK, len(rows))):
                node = root[tree]
                while feature[node] >= 0:
                    node += 1 if rows[row, feature[node]] <= threshold[node] else right[node]
                result[row] += threshold[node]
    return result


@compiled
def right_of(feature: NDArray[np.int16]) -> Any:
    """For each split, how far ahead the node is that it sends rows to which do not go to the next one.

    A split is followed by all of its left branch: where that ends, the right one begins.
    """
    right = np.zeros(len(feature), np.int16)
    waiting = np.empty(len(feature), np.int64)
    count = 0
    for node in range(len(feature)):
        if feature[node] >= 0:
            waiting[count] = node
            count += 1
        elif count:
            count -= 1
            right[waiting[count]] = node + 1 - waiting[count]
    return right
