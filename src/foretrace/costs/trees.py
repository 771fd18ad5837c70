"""Forests of decision trees as plain arrays: no library is needed to ask them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
        return _walker()(rows, self.feature, self.threshold, self.right, self.root)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Its arrays as a file holds them: splits and leaves apart, since leaves need less."""
        leaf = self.feature < 0
        return {
            f"{prefix}.feature": self.feature,
            f"{prefix}.split": self.threshold[~leaf],
            f"{prefix}.leaf": self.threshold[leaf].astype(np.float16),
            f"{prefix}.right": self.right[~leaf],
            f"{prefix}.root": self.root,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str, columns: int) -> Forest:
        """What `arrays` gave, for rows of so many columns."""
        feature, split, leaf, right, root = (
            arrays[f"{prefix}.{name}"] for name in ("feature", "split", "leaf", "right", "root")
        )
        threshold, ahead = np.empty(len(feature), np.float32), np.zeros(len(feature), np.int16)
        threshold[feature < 0], threshold[feature >= 0], ahead[feature >= 0] = leaf, split, right
        made = cls(feature, threshold, ahead, root)
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


_COMPILED: list[Callable[..., Floats]] = []


def _walker() -> Callable[..., Floats]:
    """The compiled loop: numba takes a third of a second to import, which only those pay who ask a forest."""
    if not _COMPILED:
        from foretrace.costs.walker import answers

        _COMPILED.append(answers)
    return _COMPILED[0]
