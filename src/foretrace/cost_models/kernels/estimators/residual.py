"""Estimators of kernel times: a scaled roofline, and trees and a blend that learn what the roofline misses.

Each has `fit`, `predict_both` (microseconds with a cold and with a warm cache), `arrays` and `from_arrays`. A family
uses the one with the least held-out error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.estimators.dataset import Dataset, Floats, log_residuals, with_cache_state
from foretrace.cost_models.kernels.estimators.forests import Forest, boost, boost_trait, out_of_fold_traits
from foretrace.cost_models.kernels.estimators.nets import ResidualNet
from foretrace.cost_models.kernels.estimators.npz import finite


class ScaledRoofline:
    """A start-up time, and bytes and flops at fitted rates: three numbers per op and cache state.

    >>> us = np.array([[4.0, 4.0], [6.0, 6.0], [10.0, 10.0]])
    >>> calls = Dataset(np.zeros((3, 1)), np.zeros(3), np.array([1.0, 2.0, 4.0]), us, [])
    >>> ScaledRoofline().fit(calls).predict_both(calls)[:, 0].round(3).tolist()
    [4.0, 6.0, 10.0]
    """

    def fit(self, calls: Dataset) -> Self:
        """Non-negative least squares of the relative error; ops are told apart by the first column."""
        from scipy.optimize import nnls

        self.ops_ = np.unique(calls.features[:, 0])
        self.rates_ = np.zeros((len(self.ops_), 2, 3))
        for place, op in enumerate(self.ops_):
            here = np.flatnonzero(calls.features[:, 0] == op)
            terms = np.stack([np.ones(len(here)), calls.bytes_us[here], calls.flops_us[here]], axis=1)
            for state in (0, 1):
                us = calls.us[here, state]
                self.rates_[place, state], _ = nnls(terms / us[:, None], np.ones(len(here)))
        return self

    def predict_both(self, calls: Dataset) -> Floats:
        """Microseconds of each call, a column per cache state; an op not seen at fitting is taken for the nearest."""
        place = np.searchsorted(self.ops_, calls.features[:, 0]).clip(0, len(self.ops_) - 1)
        terms = np.stack([np.ones(len(calls)), calls.bytes_us, calls.flops_us], axis=1)
        return np.asarray(np.maximum(0.1, np.einsum("rst,rt->rs", self.rates_[place], terms)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted numbers, for a file."""
        return {"roofline.ops": self.ops_, "roofline.rates": self.rates_}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The estimator that `arrays` came from."""
        made = cls()
        made.ops_ = finite(arrays, "roofline.ops", None)
        made.rates_ = finite(arrays, "roofline.rates", len(made.ops_), 2, 3)
        return made


class ResidualTrees:
    """Boosted trees on what the roofline misses, with guessed traits of the kernels that run as further columns.

    Which kernel a library selects decides much of the time and is not known beforehand. The traits that its name tells
    (tile, split-K) are learned too, each by a small forest, and their predictions are columns of the last forest.
    """

    def fit(self, calls: Dataset, traits: Floats | None = None, trees: int = 500, leaves: int = 31) -> Self:
        """Fit for cold and warm caches at once; the cache state is the last column."""
        self.latent_: list[Forest] = []
        features = calls.features
        if traits is not None:
            guessed = [out_of_fold_traits(features, trait) for trait in traits.T]
            self.latent_ = [boost_trait(features, trait) for trait in traits.T]
            features = np.column_stack([features, *guessed])
        self.forest_ = boost(with_cache_state(features), log_residuals(calls), trees, leaves)
        return self

    def predict_both(self, calls: Dataset) -> Floats:
        """Microseconds of each call, a column per cache state."""
        guessed = [forest.predict(calls.features) for forest in self.latent_]
        columns = np.column_stack([calls.features, *guessed])
        logs = self.forest_.predict(with_cache_state(columns)).reshape(2, len(calls))
        return np.asarray((calls.floored_us * np.exp(logs)).T)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted numbers, for a file."""
        found = self.forest_.arrays("forest")
        for place, forest in enumerate(self.latent_):
            found |= forest.arrays(f"latent{place}")
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The estimator that `arrays` came from; ``columns`` among the arrays names the features."""
        made = cls()
        given = len(arrays["columns"])
        count = sum(name.startswith("latent") and name.endswith(".root") for name in arrays)
        made.latent_ = [Forest.from_arrays(arrays, f"latent{place}", given) for place in range(count)]
        made.forest_ = Forest.from_arrays(arrays, "forest", given + count + 1)
        return made


class Blend:
    """Geometric mean of trees and a net: where one is off, the other seldom is in the same direction."""

    def fit(self, calls: Dataset, traits: Floats | None, trees: int, leaves: int) -> Self:
        """Fit both."""
        self.trees_ = ResidualTrees().fit(calls, traits, trees, leaves)
        self.net_ = ResidualNet().fit(calls, traits)
        return self

    def predict_both(self, calls: Dataset) -> Floats:
        """Microseconds of each call, a column per cache state."""
        return np.asarray(np.sqrt(self.trees_.predict_both(calls) * self.net_.predict_both(calls)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted numbers, for a file."""
        return self.trees_.arrays() | self.net_.arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The estimator that `arrays` came from."""
        made = cls()
        made.trees_, made.net_ = ResidualTrees.from_arrays(arrays), ResidualNet.from_arrays(arrays)
        return made
