"""How far a family's model is off, and where: learned from calls that it was not fitted on.

Errors differ more between calls than between families: a convolution whose kernel is certain is predicted within a few
per cent, another of the same family within a factor of two. A small forest learns from held-out calls how difficult a
call is, from its features and from how much the parts of an estimator disagree; calls as difficult as it then give the
range of its error, and how often such calls are far off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.estimators.dataset import Dataset
from foretrace.cost_models.kernels.estimators.forests import Forest, boost_difficulty
from foretrace.cost_models.kernels.estimators.npz import finite
from foretrace.graph.tables import Floats

FAR_OFF = 0.3
"""Relative error from which on a call is far off."""
MAX_FAR_OFF = 0.1
"""Share of held-out calls that may be far off where a model is said to know its calls."""
LARGE_ERROR = 1.0
"""Errors of the logarithm above this are alike: a few such calls do not make all calls of their kind difficult."""
MIN_LEVELS, MAX_LEVELS, CALLS_PER_LEVEL = 2, 20, 50
"""Levels of difficulty, each with so many held-out calls where there are enough: fewer tell no 90th percentile."""
ERROR_ARRAYS = ("spread", "difficulty")
"""First words of the names that a file holds an `ErrorRange` under."""
SUPPORT_MARGIN = 0.1
"""Share of a feature's range by which a call may lie outside of it: sizes are drawn at random, and seldom reach it."""
MAX_LOG_ERROR = 50.0
"""Logarithm of the largest error that a file may hold: no model has it, and more can't be computed with."""


class ErrorRange(NamedTuple):
    """Errors of a model on held-out calls, by levels of their difficulty."""

    edges: Floats
    """Where one level ends and the next begins."""
    low: Floats
    """Logarithms of the 10th percentile of measured over predicted time, and of the 90th, by level."""
    high: Floats
    far: Floats
    """Share of calls far off, by level."""
    difficulty: Forest | None
    """Predicts the difficulty of a call; None in models of earlier versions, which go by the predicted time."""

    @classmethod
    def of(cls, calls: Dataset, us: Floats, signals: Floats) -> ErrorRange:
        """From predictions of calls that an estimator was not fitted on, and its signals.

        The difficulty that sorts a call into its level comes from a forest that has not seen the call either.
        """
        from sklearn.isotonic import IsotonicRegression

        columns, off = _columns(calls.features, us, signals), np.log(calls.us / us)
        target = np.minimum(np.abs(off), LARGE_ERROR).mean(axis=1)
        difficulty, forests = np.empty(len(calls)), []
        for inside, outside in calls.folds():
            forests.append(boost_difficulty(columns[inside], target[inside]))
            difficulty[outside] = forests[-1].predict(columns[outside])
        levels = int(np.clip(len(calls) // CALLS_PER_LEVEL, MIN_LEVELS, MAX_LEVELS))
        edges = np.quantile(difficulty, np.linspace(0, 1, levels + 1)[1:-1])
        level = np.searchsorted(edges, difficulty)
        found = [off[level == each].ravel() for each in range(levels)]
        low, high = (np.array([np.quantile(f, q) if len(f) else 0.0 for f in found]) for q in (0.1, 0.9))
        far = IsotonicRegression().fit_transform(np.arange(levels), [_far_off(f) for f in found])
        return cls(edges, low, high, far, Forest.mean_of(forests))

    def around(self, features: Floats, us: Floats, signals: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Logarithms of low and high over the predicted time of each call, and whether the model knows such calls."""
        scores = self.difficulty.predict(_columns(features, us, signals)) if self.difficulty else us.prod(axis=1) ** 0.5
        level = np.searchsorted(self.edges, scores)
        return np.minimum(self.low, 0.0)[level], np.maximum(self.high, 0.0)[level], (self.far <= MAX_FAR_OFF)[level]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The numbers, for a file."""
        if self.difficulty is None:
            return {"spread.edges_us": self.edges, "spread.low": self.low, "spread.high": self.high}
        numbers = {f"spread.{name}": getattr(self, name) for name in ("edges", "low", "high", "far")}
        return numbers | self.difficulty.arrays("difficulty")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], signals: int) -> ErrorRange:
        """As `arrays` gave it, for an estimator with so many signals; a ValueError for numbers that are no range."""
        learned = "spread.edges_us" not in arrays
        edges = finite(arrays, "spread.edges" if learned else "spread.edges_us", None)
        low, high = (finite(arrays, f"spread.{end}", len(edges) + 1) for end in ("low", "high"))
        if (low > high).any() or max(-low.min(), high.max()) > MAX_LOG_ERROR:
            raise ValueError("its error range is none")
        if not learned:
            return cls(edges, low, high, np.zeros(len(low)), None)
        columns = len(arrays["columns"]) + 2 + signals
        far, forest = finite(arrays, "spread.far", len(low)), Forest.from_arrays(arrays, "difficulty", columns)
        return cls(edges, low, high, far, forest)


def _columns(features: Floats, us: Floats, signals: Floats) -> Floats:
    """What the difficulty of calls is learned from."""
    return np.column_stack([features, np.log(us), signals])


def _far_off(log_errors: Floats) -> float:
    """The share of errors that are far off, given as logarithms of measured over predicted time."""
    return float(np.mean(np.abs(np.exp(-log_errors) - 1) > FAR_OFF)) if len(log_errors) else 0.0


class Support(NamedTuple):
    """Where a model's calls lie: the range of each feature, by the first one, which tells ops apart."""

    codes: Floats
    low: Floats
    """By code and column."""
    high: Floats

    @classmethod
    def of(cls, features: Floats) -> Support:
        """From the calls that a model was fitted on.

        >>> Support.of(np.array([[0.0, 4.0], [0.0, 14.0], [1.0, 3.0]])).high.tolist()
        [[0.0, 15.0], [1.0, 3.0]]
        """
        codes = np.unique(features[:, 0])
        rows = [features[features[:, 0] == code] for code in codes]
        low, high = (np.array([each(group, axis=0) for group in rows]) for each in (np.min, np.max))
        margin = SUPPORT_MARGIN * (high - low)
        return cls(codes, low - margin, high + margin)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Support | None:
        """As `FamilyModel.write` wrote it, None where it did not; a ValueError for arrays that do not fit."""
        if "support.codes" not in arrays:
            return None
        codes = finite(arrays, "support.codes", None)
        low, high = (arrays[f"support.{name}"].astype(np.float64) for name in ("low", "high"))
        if not len(codes) or low.shape != (len(codes), len(arrays["columns"])) or high.shape != low.shape:
            raise ValueError("the ranges of its features do not fit its columns")
        return cls(codes, low, high)

    def holds(self, features: Floats) -> NDArray[np.bool_]:
        """Whether each call lies inside, in every feature."""
        place = np.searchsorted(self.codes, features[:, 0]).clip(max=len(self.codes) - 1)
        inside = (self.low[place] <= features) & (features <= self.high[place])
        return np.asarray(inside.all(axis=1) & (self.codes[place] == features[:, 0]))
