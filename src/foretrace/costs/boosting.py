"""Gradient boosting by LightGBM, turned into plain arrays as soon as it is done."""

from __future__ import annotations

import numpy as np

from foretrace.costs.rows import Floats
from foretrace.costs.trees import Forest
from foretrace.graph import ForetraceError

FOLDS = 3
FEW = 20_000
"""Rows up to which one thread is faster: several wait for each other longer than they work."""
MANY = 12
"""Columns from which on each tree looks at some of them only: with fewer, the one that matters would be missing."""
SETTINGS = {
    "alpha": 0.05,  # errors beyond five per cent count by their size, not its square: some kernels can't be foreseen
    "learning_rate": 0.1,
    "min_data_in_leaf": 4,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "seed": 7,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}


def boost(features: Floats, target: Floats, trees: int, leaves: int, objective: str = "huber") -> Forest:
    """A forest that says the target of a row.

    Parameters
    ----------
    features, target
        What to look at, and what to say: the logarithm of a time, or with ``objective="l2"`` anything.
    trees, leaves
        How many trees, and how many leaves each has at most.
    objective
        What is made least, in LightGBM's words.

    >>> x = np.arange(200.0)[:, None]
    >>> forest = boost(x, np.where(x[:, 0] < 100, 1.0, 3.0), trees=100, leaves=4, objective="l2")
    >>> forest.predict(np.array([[50.0], [150.0]])).round(1).tolist()
    [1.0, 3.0]
    """
    try:
        import lightgbm
    except ImportError:
        raise ForetraceError("fitting models needs LightGBM", "pip install 'foretrace[fit]'") from None
    data = lightgbm.Dataset(features, target, free_raw_data=True)
    rows, columns = features.shape
    chosen = {
        "objective": objective,
        "num_leaves": leaves,
        "num_threads": int(rows < FEW),
        "feature_fraction": 0.7 if columns > MANY else 1.0,
    }
    fitted = lightgbm.train(SETTINGS | chosen, data, trees)
    return Forest.of([tree["tree_structure"] for tree in fitted.dump_model()["tree_info"]])


def guess(features: Floats, fact: Floats) -> Forest:
    """A small forest that says a fact about the kernels of a row."""
    return boost(features, fact, 150, 31, objective="l2")


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
