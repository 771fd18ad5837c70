"""Forests of decision trees as plain arrays: no library is needed to ask them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrace._jit import compiled, jit_budget
from foretrace.cost_models.kernels.estimators.dataset import Floats, Rows
from foretrace.graph import ForetraceError

if TYPE_CHECKING:
    pass

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

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
        return answers(rows, self.feature, self.threshold, self.right, self.root)

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
        """What `arrays` gave, for rows of so many columns.

        Arrays that a walk would leave are refused: a file may be damaged, or mean harm.
        """
        feature, level, leaf, root = (arrays[f"{prefix}.{name}"] for name in ("feature", "level", "leaf", "root"))
        if feature.ndim != 1:
            raise ValueError(f"the trees of {prefix!r} are no list of nodes")
        inside = len(root) and root.min() >= 0 and root.max() < len(feature)
        if not inside or feature.min() < -1 or feature.max() >= columns:
            raise ValueError(f"the trees of {prefix!r} lead nowhere")
        splits, leaves = np.flatnonzero(feature >= 0), np.flatnonzero(feature < 0)
        if leaf.shape != leaves.shape:
            raise ValueError(f"the trees of {prefix!r} have other leaves than values")
        threshold = np.empty(len(feature), np.float32)
        threshold[leaves] = leaf.astype(np.float32)
        threshold[splits] = _levels(arrays, prefix, feature.take(splits).astype(np.intp), level)
        right = _right_of(splits, feature >= 0, root)
        if right is None or not np.isfinite(threshold).all():
            raise ValueError(f"the trees of {prefix!r} lead nowhere")
        return cls(feature.astype(np.int16), threshold, right, root.astype(np.int32))


def _right_of(splits: Longs, is_split: NDArray[np.bool_], root: NDArray[Any]) -> NDArray[np.int16] | None:
    """For each node, how far ahead the one is where its right branch begins; None where some have none.

    A split is followed by all of its left branch. Each split below opens a branch more, and each leaf ends one, so that
    the left branch is over at the first leaf behind which as many are open as before the split. By depth, and among
    equals by place, the splits and the leaves that end their left branches therefore come in the same order.
    """
    nodes = len(is_split)
    rises = 2 * is_split.astype(np.int16) - 1
    ends = np.append(root[1:], nodes) - 1  # a tree's last leaf ends no left branch
    if is_split[ends].any() or 2 * len(splits) != nodes - len(ends):
        return None
    rises[ends] = 0
    left_ends = np.flatnonzero(rises < 0)
    depth = np.cumsum(rises, dtype=np.int16)
    if depth.min(initial=0) < 0:
        return None
    if depth.max(initial=0) <= np.iinfo(np.uint8).max:
        depth = depth.astype(np.uint8)  # sorted twice as fast
    splits = splits.take(np.argsort(depth.take(splits), kind="stable"))
    begins = left_ends.take(np.argsort(depth.take(left_ends), kind="stable")) + 1
    ahead = begins - splits
    if len(splits) and (ahead.min() < 2 or ahead.max() > np.iinfo(np.int16).max):
        return None
    right = np.zeros(nodes, np.int16)
    right[splits] = ahead
    return right


def _levels(arrays: Mapping[str, NDArray[Any]], prefix: str, column: NDArray[Any], level: NDArray[Any]) -> Floats:
    """The thresholds of nodes, from the number that each has among those of its column."""
    columns, counts, levels = (arrays[f"{prefix}.{name}"] for name in ("columns", "counts", "levels"))
    first, count = np.zeros((2, int(column.max(initial=-1)) + 1), np.int64)
    whole = len(level) == len(column) and len(columns) == len(counts) and counts.sum() == len(levels)
    if whole:
        used = (columns >= 0) & (columns < len(first))
        first[columns[used]], count[columns[used]] = (np.cumsum(counts) - counts)[used], counts[used]
    if not whole or (level >= count.take(column)).any():
        raise ValueError(f"the trees of {prefix!r} split at nothing")
    found: Floats = levels.take(first.take(column) + level)
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


# --- was cost_models.walker: Walks through forests: of few rows all at once, step by step; of many one after the other, compiled.

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
    if not jit_budget.allows(len(rows) * len(root) * WALK_MS):
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


# --- was cost_models.boosting: Gradient boosting by LightGBM, turned into plain arrays as soon as it is done.

FOLDS = 3
FEW = 20_000
"""Rows up to which one thread is faster: several wait for each other longer than they work."""
STEP = 0.1
"""Share of an error that a tree takes away."""
LARGE = 0.05
"""Errors of the logarithm beyond which an error counts by its size: which kernel runs can't always be foreseen."""
MANY = 12
"""Columns from which on each tree looks at some of them only: with fewer, the one that matters would be missing."""
SETTINGS = {
    "learning_rate": STEP,
    "min_data_in_leaf": 4,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "seed": 7,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}


def boost(features: Floats, target: Floats, trees: int, leaves: int) -> Forest:
    """A forest that says the logarithm of a time.

    Large errors count by their size, not its square, so that each tree moves an answer by a few thousandths at most.
    Where that would not reach the farthest target, a few small trees first come close in the sense of least squares.

    >>> x = np.arange(200.0)[:, None]
    >>> forest = boost(x, np.where(x[:, 0] < 100, 1.0, 9.0), trees=200, leaves=4)
    >>> forest.predict(np.array([[50.0], [150.0]])).round(1).tolist()
    [1.0, 9.0]
    """
    close = []
    if np.abs(target - target.mean()).max() > trees * STEP * LARGE:
        close = _grown(features, target, 20, min(leaves, 15), {"objective": "l2", "learning_rate": 0.2})
        target = target - Forest.of(close).predict(features)
    return Forest.of(close + _grown(features, target, trees, leaves, {"objective": "huber", "alpha": LARGE}))


def _grown(features: Floats, target: Floats, trees: int, leaves: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Trees as LightGBM writes them out."""
    try:
        import lightgbm
    except ImportError:
        raise ForetraceError("fitting models needs LightGBM", "pip install 'foretrace[fit]'") from None
    rows, columns = features.shape
    chosen = {"num_leaves": leaves, "num_threads": int(rows < FEW), "feature_fraction": 0.8 if columns > MANY else 1.0}
    fitted = lightgbm.train(SETTINGS | chosen | settings, lightgbm.Dataset(features, target), trees)
    return [tree["tree_structure"] for tree in fitted.dump_model()["tree_info"]]


def guess(features: Floats, fact: Floats) -> Forest:
    """A small forest that says a fact about the kernels of a row."""
    return Forest.of(_grown(features, fact, 150, 31, {"objective": "l2"}))


def out_of_fold(features: Floats, target: Floats) -> Floats:
    """What forests say of rows that they were not fitted on."""
    guessed = np.empty(len(target))
    for inside, outside in folds(len(target)):
        guessed[outside] = guess(features[inside], target[inside]).predict(features[outside])
    return guessed


def folds(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit on and rows to score on, so that each is scored once.

    >>> sum(len(outside) for _, outside in folds(10))
    10
    """
    fold = np.random.default_rng(7).permutation(count) % FOLDS
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(FOLDS)]


def folds_of(rows: Rows) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same, with all parts of a call on one side."""
    calls, place = np.unique(rows.call, return_inverse=True)
    outside = [np.isin(place, out) for _, out in folds(len(calls))]
    return [(np.flatnonzero(~out), np.flatnonzero(out)) for out in outside]
