"""Estimators that start from the prior of a calibration: its times as they are, and with a learned difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.estimators.dataset import Dataset, with_cache_state
from foretrace.cost_models.kernels.estimators.forests import Forest, boost_difference
from foretrace.cost_models.kernels.estimators.npz import finite
from foretrace.cost_models.kernels.estimators.residual import WithoutSignals
from foretrace.graph.tables import Floats

PRIOR_STRENGTH = 10.0
"""Measured calls of an op that move its mean difference as far as the prior holds it back."""


class PriorTimes(WithoutSignals):
    """The times of the prior, as they are."""

    uses_prior: ClassVar[bool] = True

    def fit(self, calls: Dataset) -> Self:
        """Nothing is learned."""
        return self

    def predict_both(self, calls: Dataset) -> Floats:
        """Microseconds of each call, a column per cache state."""
        assert calls.prior is not None
        return calls.prior[:, :2].copy()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Nothing, for a file."""
        return {}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The estimator that `arrays` came from."""
        return cls()


class Difference(WithoutSignals):
    """Measurements over the prior: a factor for each op and cache state, and boosted trees on the rest.

    A factor that few calls were measured for stays near 1.
    """

    uses_prior: ClassVar[bool] = True

    def fit(self, calls: Dataset) -> Self:
        """Learn the logarithms of measured times over those of the prior."""
        assert calls.prior is not None
        left = np.log(calls.us / calls.prior[:, :2])
        self.ops_ = np.unique(calls.features[:, 0])
        self.factors_ = np.zeros((len(self.ops_), 2))
        for place, op in enumerate(self.ops_):
            here = left[calls.features[:, 0] == op]
            self.factors_[place] = np.median(here, axis=0) * len(here) / (len(here) + PRIOR_STRENGTH)
        left -= self._factors(calls)
        self.forest_ = boost_difference(_columns(calls), left.T.ravel())
        return self

    def predict_both(self, calls: Dataset) -> Floats:
        """Microseconds of each call, a column per cache state."""
        assert calls.prior is not None
        learned = self.forest_.predict(_columns(calls)).reshape(2, len(calls)).T
        return np.asarray(calls.prior[:, :2] * np.exp(self._factors(calls) + learned))

    def _factors(self, calls: Dataset) -> Floats:
        """Logarithms of the factors of each call; 0 for an op that was not seen."""
        place = np.searchsorted(self.ops_, calls.features[:, 0]).clip(0, len(self.ops_) - 1)
        seen = self.ops_[place] == calls.features[:, 0]
        return np.asarray(self.factors_[place] * seen[:, None])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted numbers, for a file."""
        return {"difference.ops": self.ops_, "difference.factors": self.factors_, **self.forest_.arrays("forest")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The estimator that `arrays` came from; ``columns`` among the arrays names the features."""
        made = cls()
        made.ops_ = finite(arrays, "difference.ops", None)
        made.factors_ = finite(arrays, "difference.factors", len(made.ops_), 2)
        made.forest_ = Forest.from_arrays(arrays, "forest", len(arrays["columns"]) + len(PRIOR_COLUMNS) + 1)
        return made


PRIOR_COLUMNS = ("us", "over the roofline", "warm over cold", "kernels")
"""Columns beside those of the family: the prior's time, and what it says of the call otherwise."""


def _columns(calls: Dataset) -> Floats:
    """Features and what the prior says, with the cache state."""
    assert calls.prior is not None
    cold, warm, kernels = calls.prior.T
    said = np.column_stack([np.log(cold), np.log(cold / calls.floored_us), np.log(warm / cold), kernels])
    return with_cache_state(np.column_stack([calls.features, said]))
