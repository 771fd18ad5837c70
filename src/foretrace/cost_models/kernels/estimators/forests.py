"""Decision forests: stored as flat arrays, evaluated without a library, and grown by LightGBM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace._jit import compiled, jit_budget
from foretrace.cost_models.kernels.estimators.dataset import folds
from foretrace.errors import ForetraceError
from foretrace.graph.tables import Floats, Longs

Nodes = NDArray[Any]
"""An array of a `Forest`."""

QUANTUM = 2.0**-12
"""Leaf values are rounded to this: over a thousand trees it adds up to a fifth of a per cent, and files are half as
large."""
INTERPRETED_MS = 2e-4
"""Time of one row in one tree where all rows step at once in numpy."""
ROWS_TOGETHER = 1 << 16
"""Pairs of a row and a tree that step at once: so many stay in the cache."""
NODES_TOGETHER = 1 << 15
"""Nodes of whole trees that are decoded at once: what is made on the way stays in the cache."""
BLOCK = 256
"""Rows that pass all trees one after the other in compiled code: these, and a tree, stay in the cache."""

ONE_THREAD_ROWS = 20_000
"""Rows up to which LightGBM is faster on one thread: several wait for each other longer than they work."""
LEARNING_RATE = 0.1
HUBER_ALPHA = 0.05
"""Errors of the logarithm beyond which the loss is linear: which kernel runs can't always be predicted."""
MANY_COLUMNS = 12
"""Columns from which on each tree sees a random part of them: with fewer, the one that matters would be missing."""
DIFFERENCE_FOREST = 300, 31
"""Trees and leaves of the difference to a prior."""
SETTINGS = {
    "learning_rate": LEARNING_RATE,
    "min_data_in_leaf": 4,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "seed": 7,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}


class Forest(NamedTuple):
    """Trees one after the other in flat arrays; the prediction for a row is the sum over them.

    A node with ``feature`` -1 is a leaf, and its ``threshold`` the value. Any other sends a row to the next node if its
    feature is at most the threshold, and ``right`` nodes ahead otherwise.

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
        """From nested nodes, as LightGBM dumps them."""
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
        """The sum of all trees' values for each row."""
        forest = self.feature, self.threshold, self.right, self.root
        if not jit_budget.allows(len(rows) * len(self.root) * INTERPRETED_MS):
            return evaluate_compiled(rows, *forest)
        rows_at_once = max(ROWS_TOGETHER // len(self.root), 1)
        parts = [
            evaluate_stepwise(rows[first : first + rows_at_once], *forest)
            for first in range(0, len(rows), rows_at_once)
        ]
        return np.concatenate([np.zeros(0), *parts])

    @classmethod
    def mean_of(cls, forests: Sequence[Forest]) -> Forest:
        """A forest that predicts the mean of what others do."""
        begins = np.cumsum([0, *(len(forest.feature) for forest in forests)])
        value = [np.where(each.feature < 0, each.threshold / len(forests), each.threshold) for each in forests]
        feature, right = (np.concatenate([getattr(each, name) for each in forests]) for name in ("feature", "right"))
        root = np.concatenate([each.root + begin for each, begin in zip(forests, begins)])
        return cls(feature, np.concatenate(value).astype(np.float32), right, root.astype(np.int32))

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The forest as a file holds it: splits and leaves apart, since leaves need less.

        A column has few thresholds, and many nodes split at each: thresholds are stored once, and nodes have their
        numbers. Where right branches begin follows from the order of the nodes.
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
        """The forest that `arrays` came from, for rows of so many columns.

        Arrays on which an evaluation would leave the tree are refused: a file may be damaged or malicious.
        """
        feature, level, leaf, root = (arrays[f"{prefix}.{name}"] for name in ("feature", "level", "leaf", "root"))
        if feature.ndim != 1:
            raise ValueError(f"the trees of {prefix!r} are no list of nodes")
        ends = np.append(root[1:], len(feature))
        inside = len(root) and root[0] == 0 and (ends > root).all()
        if not inside or feature.min() < -1 or feature.max() >= columns:
            raise ValueError(f"the trees of {prefix!r} lead nowhere")
        splits = int(np.count_nonzero(feature >= 0))
        if leaf.shape != (len(feature) - splits,):
            raise ValueError(f"the trees of {prefix!r} have other leaves than values")
        first, count, levels = _levels(arrays, prefix, int(feature.max()) + 1, splits)
        threshold, right = np.empty(len(feature), np.float32), np.empty(len(feature), np.int16)
        leaf = leaf.astype(np.float32)
        begin = tree = passed = 0  # nodes, trees and splits before the block
        for last in [*np.flatnonzero(np.diff(ends // NODES_TOGETHER)).tolist(), len(ends) - 1]:
            block = slice(begin, int(ends[last]))
            is_split = feature[block] >= 0
            split, leaves = np.flatnonzero(is_split), np.flatnonzero(~is_split)
            column, number = feature[block].take(split).astype(np.intp), level[passed : passed + len(split)]
            if (number >= count.take(column)).any():
                raise ValueError(f"the trees of {prefix!r} split at nothing")
            ahead = _right_branches(split, is_split, ends[tree : last + 1] - begin - 1)
            if ahead is None:
                raise ValueError(f"the trees of {prefix!r} lead nowhere")
            threshold[block][split], right[block] = levels.take(first.take(column) + number), ahead
            threshold[block][leaves] = leaf[begin - passed : begin - passed + len(leaves)]
            begin, tree, passed = block.stop, last + 1, passed + len(split)
        if not np.isfinite(threshold).all():
            raise ValueError(f"the trees of {prefix!r} lead nowhere")
        return cls(feature.astype(np.int16), threshold, right, root.astype(np.int32))


def evaluate_stepwise(rows: Floats, feature: Nodes, threshold: Nodes, right: Nodes, root: Nodes) -> Floats:
    """Sum of the leaves that each row falls into; all rows step down all trees at once, in numpy."""
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
    # Summed in the order of the trees, as the compiled evaluation does.
    return np.asarray(np.cumsum(threshold[node].reshape(len(root), count), axis=0, dtype=np.float64)[-1])


@compiled
def evaluate_compiled(rows: Floats, feature: Nodes, threshold: Nodes, right: Nodes, root: Nodes) -> Floats:
    """`evaluate_stepwise` one row after the other, as machine code."""
    result = np.zeros(len(rows))
    for first in range(0, len(rows), BLOCK):
        for tree in range(len(root)):
            for row in range(first, min(first + BLOCK, len(rows))):
                node = root[tree]
                while feature[node] >= 0:
                    node += 1 if rows[row, feature[node]] <= threshold[node] else right[node]
                result[row] += threshold[node]
    return result


def boost(features: Floats, target: Floats, trees: int, leaves: int) -> Forest:
    """A gradient-boosted forest that predicts the logarithm of a time.

    The Huber loss lets each tree move a prediction by a few thousandths at most. Where that would not reach the
    farthest target, a few small trees first come close by least squares.

    >>> x = np.arange(200.0)[:, None]
    >>> forest = boost(x, np.where(x[:, 0] < 100, 1.0, 9.0), trees=200, leaves=4)
    >>> forest.predict(np.array([[50.0], [150.0]])).round(1).tolist()
    [1.0, 9.0]
    """
    close = []
    if np.abs(target - target.mean()).max() > trees * LEARNING_RATE * HUBER_ALPHA:
        close = _grow(features, target, 20, min(leaves, 15), {"objective": "l2", "learning_rate": 0.2})
        target = target - Forest.of(close).predict(features)
    return Forest.of(close + _grow(features, target, trees, leaves, {"objective": "huber", "alpha": HUBER_ALPHA}))


def boost_difference(features: Floats, difference: Floats) -> Forest:
    """A forest that predicts a small difference from few rows: each leaf has many of them, and trees move it slowly."""
    settings = {"objective": "huber", "alpha": HUBER_ALPHA, "learning_rate": 0.05, "min_data_in_leaf": 10}
    trees, leaves = DIFFERENCE_FOREST
    return Forest.of(_grow(features, difference, trees, leaves, settings))


def boost_trait(features: Floats, trait: Floats) -> Forest:
    """A small forest that predicts a trait of the kernels of a call."""
    return Forest.of(_grow(features, trait, 150, 31, {"objective": "l2"}))


def boost_difficulty(features: Floats, error: Floats) -> Forest:
    """A very small forest that predicts how far off a prediction is: errors are mostly chance."""
    return Forest.of(_grow(features, error, 30, 8, {"objective": "l2", "min_data_in_leaf": 20}))


def out_of_fold_traits(features: Floats, trait: Floats) -> Floats:
    """Predictions of a trait by forests that were not fitted on the row they predict."""
    predicted = np.empty(len(trait))
    for inside, outside in folds(len(trait)):
        predicted[outside] = boost_trait(features[inside], trait[inside]).predict(features[outside])
    return predicted


def _grow(features: Floats, target: Floats, trees: int, leaves: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Trees as LightGBM dumps them."""
    try:
        import lightgbm
    except ImportError:
        raise ForetraceError("fitting models needs LightGBM", "pip install 'foretrace[fit]'") from None
    rows, columns = features.shape
    chosen = {
        "num_leaves": leaves,
        "num_threads": int(rows < ONE_THREAD_ROWS),
        "feature_fraction": 0.8 if columns > MANY_COLUMNS else 1.0,
    }
    fitted = lightgbm.train(SETTINGS | chosen | settings, lightgbm.Dataset(features, target), trees)
    return [tree["tree_structure"] for tree in fitted.dump_model()["tree_info"]]


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


def _right_branches(splits: Longs, is_split: NDArray[np.bool_], ends: NDArray[Any]) -> NDArray[np.int16] | None:
    """For each node of trees with these last nodes, how many nodes ahead its right branch begins; None where the nodes
    form no trees.

    A split is followed by all of its left branch. Each split below opens a branch more, and each leaf closes one, so
    the left branch is over at the first leaf after which as many are open as before the split. By depth, and among
    equals by place, the splits and the leaves that close their left branches therefore come in the same order.
    """
    if is_split[ends].any() or 2 * len(splits) != len(is_split) - len(ends):
        return None
    rises = 2 * is_split.astype(np.int8) - 1
    rises[ends] = 0  # a tree's last leaf closes no left branch
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
    right = np.zeros(len(is_split), np.int16)
    right[splits] = ahead
    return right


def _levels(arrays: Mapping[str, NDArray[Any]], prefix: str, columns: int, splits: int) -> tuple[Longs, Longs, Floats]:
    """Where the thresholds of each column begin, how many it has, and all of them."""
    given, counts, levels, level = (arrays[f"{prefix}.{name}"] for name in ("columns", "counts", "levels", "level"))
    if len(level) != splits or len(given) != len(counts) or counts.sum() != len(levels):
        raise ValueError(f"the trees of {prefix!r} split at nothing")
    first, count = np.zeros((2, columns), np.int64)
    used = (given >= 0) & (given < columns)
    first[given[used]], count[given[used]] = (np.cumsum(counts) - counts)[used], counts[used]
    return first, count, levels
