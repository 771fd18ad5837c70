"""What can say how long a call takes: a heuristic, and learned ones. Which is used is decided by held-out error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.estimators.dataset import Floats, Rows, both_states
from foretrace.cost_models.kernels.estimators.forests import Forest
from foretrace.cost_models.kernels.estimators.nets import ResidualNet
from foretrace.cost_models.kernels.estimators.npz import finite


class ScaledRoofline:
    """A start-up time, and the bytes and flops at fitted rates: one set of three numbers per op and state.

    >>> us = np.array([[4.0, 4.0], [6.0, 6.0], [10.0, 10.0]])
    >>> rows = Rows(np.zeros((3, 1)), np.zeros(3), np.array([1.0, 2.0, 4.0]), us, [])
    >>> ScaledRoofline().fit(rows).predict_both(rows)[:, 0].round(3).tolist()
    [4.0, 6.0, 10.0]
    """

    def fit(self, rows: Rows) -> Self:
        """Least relative squares, no number below zero."""
        from scipy.optimize import nnls

        self.ops_ = np.unique(rows.features[:, 0])
        self.rates_ = np.zeros((len(self.ops_), 2, 3))
        for place, op in enumerate(self.ops_):
            here = np.flatnonzero(rows.features[:, 0] == op)
            terms = np.stack([np.ones(len(here)), rows.bytes_us[here], rows.flops_us[here]], axis=1)
            for state in (0, 1):
                us = rows.us[here, state]
                self.rates_[place, state], _ = nnls(terms / us[:, None], np.ones(len(here)))
        return self

    def predict_both(self, rows: Rows) -> Floats:
        """Microseconds of each row, a column per state; an op not seen at fitting is taken for the nearest."""
        place = np.searchsorted(self.ops_, rows.features[:, 0]).clip(0, len(self.ops_) - 1)
        terms = np.stack([np.ones(len(rows)), rows.bytes_us, rows.flops_us], axis=1)
        return np.asarray(np.maximum(0.1, np.einsum("rst,rt->rs", self.rates_[place], terms)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers, for a file."""
        return {"roofline.ops": self.ops_, "roofline.rates": self.rates_}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What `arrays` gave."""
        made = cls()
        made.ops_ = finite(arrays, "roofline.ops", None)
        made.rates_ = finite(arrays, "roofline.rates", len(made.ops_), 2, 3)
        return made


class ResidualTrees:
    """Boosted trees on what the roofline misses; with facts about the kernels that ran guessed first, if there are any.

    Which kernel a library picks decides much of the time and is not known beforehand. What its name tells (tiles,
    splitting) is therefore learned too, each fact by a small forest, and what those guess are columns of the last one.
    """

    def fit(self, rows: Rows, latents: Floats | None = None, trees: int = 500, leaves: int = 31) -> Self:
        """Fit on both states at once; the state is the last column."""
        from foretrace.cost_models.kernels.estimators.forests import boost, guess, out_of_fold

        self.latent_: list[Forest] = []
        features = rows.features
        if latents is not None:
            guessed = [out_of_fold(features, fact) for fact in latents.T]
            self.latent_ = [guess(features, fact) for fact in latents.T]
            features = np.column_stack([features, *guessed])
        target = np.log(rows.us / rows.floored_us[:, None])
        self.forest_ = boost(both_states(features), target.T.ravel(), trees, leaves)
        return self

    def predict_both(self, rows: Rows) -> Floats:
        """Microseconds of each row, a column per state."""
        guessed = [forest.predict(rows.features) for forest in self.latent_]
        columns = np.column_stack([rows.features, *guessed])
        said = self.forest_.predict(both_states(columns)).reshape(2, len(rows))
        return np.asarray((rows.floored_us * np.exp(said)).T)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers, for a file."""
        found = self.forest_.arrays("forest")
        for place, forest in enumerate(self.latent_):
            found |= forest.arrays(f"latent{place}")
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What `arrays` gave, beside the names of the ``columns`` it was fitted on."""
        made = cls()
        given = len(arrays["columns"])
        count = sum(name.startswith("latent") and name.endswith(".root") for name in arrays)
        made.latent_ = [Forest.from_arrays(arrays, f"latent{place}", given) for place in range(count)]
        made.forest_ = Forest.from_arrays(arrays, "forest", given + count + 1)
        return made


class Blend:
    """Halfway between trees and a net: where one is off, the other seldom is in the same direction."""

    def fit(self, rows: Rows, latents: Floats | None, trees: int, leaves: int) -> Self:
        """Fit both."""
        self.trees_ = ResidualTrees().fit(rows, latents, trees, leaves)
        self.net_ = ResidualNet().fit(rows, latents)
        return self

    def predict_both(self, rows: Rows) -> Floats:
        """Microseconds of each row, a column per state."""
        return np.asarray(np.sqrt(self.trees_.predict_both(rows) * self.net_.predict_both(rows)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers, for a file."""
        return self.trees_.arrays() | self.net_.arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What `arrays` gave."""
        made = cls()
        made.trees_, made.net_ = ResidualTrees.from_arrays(arrays), ResidualNet.from_arrays(arrays)
        return made
