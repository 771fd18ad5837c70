"""Gradient boosting by LightGBM, turned into plain arrays as soon as it is done."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretrace.cost_models.rows import Floats, Rows
from foretrace.cost_models.trees import Forest
from foretrace.graph import ForetraceError

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
