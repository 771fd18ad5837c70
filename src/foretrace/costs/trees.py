"""Forests of decision trees as plain arrays: no library is needed to ask them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

QUANTUM = 2.0**-12
"""Answers of leaves are rounded to this: over a thousand trees it adds up to a fifth of a per cent, and files are half
as large."""


@dataclass(frozen=True)
class Forest:
    """Trees one after the other; a row's answer is the sum over them.

    A node with ``feature`` -1 is a leaf, and its ``threshold`` the answer. Others send a row to the node after them
    where its feature is at most the threshold, and ``right`` nodes ahead else.

    >>> stump = Forest.of([{"split_feature": 0, "threshold": 2.0,
    ...                     "left_child": {"leaf_value": 1.0}, "right_child": {"leaf_value": 5.0}}])
    >>> stump.predict(np.array([[1.0], [3.0]])).tolist()
    [1.0, 5.0]
    """

    feature: NDArray[np.int16]
    threshold: NDArray[np.float32]
    right: NDArray[np.int16]
    root: NDArray[np.int32]

    @classmethod
    def of(cls, trees: Sequence[Mapping[str, Any]]) -> Forest:
        """From nested nodes, as LightGBM writes them out."""
        nodes: list[tuple[int, float, int]] = []
        roots = []
        for tree in trees:
            roots.append(len(nodes))
            _flatten(tree, nodes)
        feature, threshold, right = zip(*nodes) if nodes else ((), (), ())
        return cls(
            np.array(feature, np.int16),
            np.array(threshold, np.float32),
            np.array(right, np.int16),
            np.array(roots, np.int32),
        )

    def predict(self, rows: Floats) -> Floats:
        """The sum of all trees' answers for each row."""
        from foretrace.costs.walker import answers  # numba takes a third of a second to import

        found: Floats = answers(rows, self.feature, self.threshold, self.right, self.root)
        return found

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Its arrays as a file holds them: splits and leaves apart, since leaves need less.

        A column has few thresholds, and many nodes split at each: they are kept once, and by number in the nodes. Where
        right branches begin follows from the order of the nodes.
        """
        leaf = self.feature < 0
        column, threshold = self.feature[~leaf], self.threshold[~leaf]
        columns = np.unique(column)
        level, levels = np.zeros(len(column), np.int64), []
        for each in columns:
            found, level[column == each] = np.unique(threshold[column == each], return_inverse=True)
            levels.append(found)
        return {
            f"{prefix}.feature": self.feature.astype(np.min_scalar_type(-int(self.feature.max(initial=0)) - 1)),
            f"{prefix}.columns": columns,
            f"{prefix}.counts": np.array([len(found) for found in levels], np.int32),
            f"{prefix}.levels": np.concatenate(levels or [np.zeros(0, np.float32)]),
            f"{prefix}.level": level.astype(np.min_scalar_type(int(level.max(initial=0)))),
            f"{prefix}.leaf": self.threshold[leaf].astype(np.float16),
            f"{prefix}.root": self.root,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str, columns: int) -> Forest:
        """What `arrays` gave, for rows of so many columns."""
        from foretrace.costs.walker import right_of

        feature, level, leaf, root = (arrays[f"{prefix}.{name}"] for name in ("feature", "level", "leaf", "root"))
        if feature.ndim != 1:
            raise ValueError(f"the trees of {prefix!r} are no list of nodes")
        split, threshold = feature >= 0, np.empty(len(feature), np.float32)
        threshold[~split], threshold[split] = leaf, _levels(arrays, prefix, feature[split], level)
        made = cls(feature.astype(np.int16), threshold, right_of(feature.astype(np.int16)), root)
        made.check(prefix, columns)
        return made

    def check(self, name: str, columns: int) -> None:
        """Refuse arrays that a walk would leave: a file may be damaged, or mean harm."""
        split, nodes = self.feature >= 0, len(self.feature)
        inside = (self.right[split] > 1) & (np.flatnonzero(split) + self.right[split] < nodes)
        rooted = len(self.root) and (self.root >= 0).all() and (self.root < nodes).all()
        known = (self.feature >= -1).all() and (self.feature < columns).all()
        if not (rooted and known and inside.all() and np.isfinite(self.threshold).all()):
            raise ValueError(f"the trees of {name!r} lead nowhere")


def _levels(arrays: Mapping[str, NDArray[Any]], prefix: str, column: NDArray[Any], level: NDArray[Any]) -> Floats:
    """The thresholds of nodes, from the number that each has among those of its column."""
    columns, counts, levels = (arrays[f"{prefix}.{name}"] for name in ("columns", "counts", "levels"))
    place = np.searchsorted(columns, column)
    whole = len(level) == len(column) and len(columns) == len(counts) and counts.sum() == len(levels)
    if not whole or not np.isin(column, columns).all() or (level >= counts[place]).any():
        raise ValueError(f"the trees of {prefix!r} split at nothing")
    found: Floats = levels[(np.cumsum(counts) - counts)[place] + level]
    return found


def _flatten(node: Mapping[str, Any], nodes: list[tuple[int, float, int]]) -> None:
    place = len(nodes)
    if "leaf_value" in node:
        nodes.append((-1, float(np.float16(round(node["leaf_value"] / QUANTUM) * QUANTUM)), 0))
        return
    nodes.append((0, 0.0, 0))
    _flatten(node["left_child"], nodes)
    right = len(nodes)
    _flatten(node["right_child"], nodes)
    threshold = np.float32(node["threshold"])
    if float(threshold) < node["threshold"]:
        # Rounded up: a value that equals the threshold must still go left.
        threshold = np.nextafter(threshold, np.float32(np.inf))
    nodes[place] = (int(node["split_feature"]), float(threshold), right - place)
