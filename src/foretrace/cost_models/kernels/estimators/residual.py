"""Estimators of kernel times: a scaled roofline, and trees, small nets and a blend that learn what the roofline
misses. Nets are smooth where trees have steps.

Each has `fit`, `predict_both` (microseconds with a cold and with a warm cache), `arrays` and `from_arrays`, and
`predict_with_signals`: beside the times, columns that tell how sure it is of each. A family uses the one with the least
held-out error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from foretrace._numpy_threads import single_threaded
from foretrace.cost_models.kernels.estimators.dataset import Dataset, log_residuals, with_cache_state
from foretrace.cost_models.kernels.estimators.forests import Forest, boost, boost_trait, out_of_fold_traits
from foretrace.cost_models.kernels.estimators.npz import finite
from foretrace.graph.tables import Floats

MAX_DEVIATIONS = 5.0
"""Standard deviations at which a column is clipped: a net knows nothing of where it was not fitted."""
WEIGHT_LEVELS = 63
"""Quantization levels of weights up and down, scaled per output: predictions move by a third of a per cent."""
MIN_DEVIATION = 1e-6
"""A column with a smaller standard deviation is constant."""
LOG_RATIO = 32.0
"""A column of positive numbers whose largest is so many times the smallest is taken by its logarithms."""
TINY = 1e-9
"""Stands for what is not positive where a logarithm is taken: no such number was seen at fitting."""
MAX_CATEGORIES = 24
"""A column of whole numbers with at most so many different ones is categorical: it is one-hot encoded."""

Purpose = Literal["time", "kernel", "time on a kernel"]
"""What nets predict: each takes another training effort."""
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


class WithoutSignals:
    """An estimator that does not tell how sure it is."""

    signals: ClassVar[int] = 0
    """Columns that `predict_with_signals` gives beside the times."""
    uses_prior: ClassVar[bool] = False
    """Whether it needs `Dataset.prior`."""

    def predict_both(self, calls: Dataset) -> Floats:
        """Microseconds of each call, a column per cache state."""
        raise NotImplementedError

    def predict_with_signals(self, calls: Dataset) -> tuple[Floats, Floats]:
        """Microseconds as by `predict_both`, and no signals."""
        return self.predict_both(calls), np.zeros((len(calls), 0))


class ScaledRoofline(WithoutSignals):
    """A start-up time, and bytes and flops at fitted rates: three numbers per op and cache state."""

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


class ResidualTrees(WithoutSignals):
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


class KernelChoice(NamedTuple):
    """The kernel that each row ran, and the outputs of a net that add up to each kernel's score."""

    ran: NDArray[np.int64]
    pieces: NDArray[np.int64]
    """A row per kernel: numbers of outputs, all of which are used."""


class NetEnsemble:
    """Nets of a few hidden layers on the same columns; their outputs are averaged."""

    def learn(
        self,
        columns: Floats,
        target: Floats,
        traits: Floats | None = None,
        choice: KernelChoice | None = None,
        purpose: Purpose = "time",
    ) -> Self:
        """Learn the logarithm of a time, and the scores of kernels where one is to be selected."""
        from foretrace.cost_models.kernels.estimators.net_training import train

        self.kinds_, self.logs_ = _categories(columns), _log_columns(columns)
        wide = self._encoded(columns)
        self.middle_, self.width_ = wide.mean(axis=0), wide.std(axis=0)
        # A column that never changed may change later: nothing was learned of it.
        self.width_[self.width_ < MIN_DEVIATION] = np.inf
        self.layers_ = train(self._scaled(wide), target, traits, choice, purpose)
        return self

    def outputs(self, columns: Floats) -> Floats:
        """For each row the logarithm of its time, followed by the pieces of the kernels' scores."""
        return np.asarray(self.outputs_of_each(columns).mean(axis=0, dtype=np.float64))

    def outputs_of_each(self, columns: Floats) -> NDArray[Any]:
        """The outputs of each net, which are the first dimension."""
        flow: NDArray[Any] = self._scaled(self._encoded(columns)).astype(np.float32)
        with single_threaded():
            for weights, biases in self.layers_[:-1]:
                flow = flow @ weights
                flow += biases
                flow /= 2
                flow += flow * np.tanh(flow)  # SiLU: x / (1 + exp(-x))
            weights, biases = self.layers_[-1]
            return np.asarray(flow @ weights + biases)

    def _encoded(self, columns: Floats) -> Floats:
        place, value = self.kinds_.T
        one_hot = columns[:, place.astype(int)] == value
        columns = columns.copy()
        columns[:, self.logs_] = np.log(np.maximum(columns[:, self.logs_], TINY))
        return np.hstack([columns, one_hot])

    def _scaled(self, wide: Floats) -> Floats:
        return np.asarray(np.clip((wide - self.middle_) / self.width_, -MAX_DEVIATIONS, MAX_DEVIATIONS))

    def quantized(self, name: str, levels: int = WEIGHT_LEVELS) -> dict[str, NDArray[Any]]:
        """The nets for a file, under names that begin with this one; weights at so many levels up and down."""
        found: dict[str, NDArray[Any]] = {
            f"{name}.{part}": getattr(self, f"{part}_") for part in ("kinds", "logs", "middle", "width")
        }
        for place, (weights, biases) in enumerate(self.layers_):
            scale = np.maximum(np.abs(weights).max(axis=1, keepdims=True) / levels, 1e-9).astype(np.float32)
            found |= {
                f"{name}.weights{place}": np.round(weights / scale).astype(np.int8),
                f"{name}.scale{place}": scale,
                f"{name}.biases{place}": biases.astype(np.float32),
            }
        return found

    @classmethod
    def from_quantized(cls, arrays: Mapping[str, NDArray[Any]], name: str) -> Self:
        """The nets that `quantized` gave."""
        made = cls()
        made.kinds_, made.middle_, made.width_ = (arrays[f"{name}.{part}"] for part in ("kinds", "middle", "width"))
        made.logs_ = arrays.get(f"{name}.logs", np.zeros(0, np.int64))
        count = sum(each.startswith(f"{name}.weights") for each in arrays)
        made.layers_ = [_layer(arrays, name, place) for place in range(count)]
        return made


class ResidualNet(NetEnsemble, WithoutSignals):
    """Nets on what the roofline misses."""

    def fit(self, calls: Dataset, traits: Floats | None = None) -> Self:
        """Fit for cold and warm caches at once; the cache state is the last column."""
        both = np.tile(traits, (2, 1)) if traits is not None else None
        return self.learn(with_cache_state(calls.features), log_residuals(calls), both)

    def predict_both(self, calls: Dataset) -> Floats:
        """Microseconds of each call, a column per cache state."""
        logs = self.outputs(with_cache_state(calls.features))[:, 0].reshape(2, len(calls))
        return np.asarray((calls.floored_us * np.exp(logs)).T)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted numbers, for a file."""
        return self.quantized("net")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The estimator that `arrays` came from."""
        return cls.from_quantized(arrays, "net")


def _layer(arrays: Mapping[str, NDArray[Any]], name: str, place: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights and biases of a layer, each with the nets as its first dimension."""
    weights = arrays[f"{name}.weights{place}"].astype(np.float32) * arrays[f"{name}.scale{place}"]
    return weights, arrays[f"{name}.biases{place}"]


def _log_columns(columns: Floats) -> NDArray[np.int64]:
    """Columns of positive numbers over orders of magnitude, of which logarithms are taken."""
    least, most = columns.min(axis=0), columns.max(axis=0)
    return np.flatnonzero((least > 0) & (most >= LOG_RATIO * least))


def _categories(columns: Floats) -> Floats:
    """Pairs of a categorical column and one of its values."""
    found = []
    for place, column in enumerate(columns.T):
        values = np.unique(column)
        if 2 < len(values) <= MAX_CATEGORIES and np.array_equal(values, np.round(values)):
            found += [(place, value) for value in values]
    return np.array(found, float).reshape(-1, 2)


class Blend:
    """Geometric mean of trees and a net: where one is off, the other seldom is in the same direction."""

    def fit(self, calls: Dataset, traits: Floats | None, trees: int, leaves: int) -> Self:
        """Fit both."""
        self.trees_ = ResidualTrees().fit(calls, traits, trees, leaves)
        self.net_ = ResidualNet().fit(calls, traits)
        return self

    signals: ClassVar[int] = 1
    uses_prior: ClassVar[bool] = False

    def predict_both(self, calls: Dataset) -> Floats:
        """Microseconds of each call, a column per cache state."""
        return self.predict_with_signals(calls)[0]

    def predict_with_signals(self, calls: Dataset) -> tuple[Floats, Floats]:
        """Microseconds as by `predict_both`, and how far trees and net are apart as signals."""
        by_trees, by_net = self.trees_.predict_both(calls), self.net_.predict_both(calls)
        apart = np.abs(np.log(by_trees / by_net)).mean(axis=1, keepdims=True)
        return np.sqrt(by_trees * by_net), apart

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted numbers, for a file."""
        return self.trees_.arrays() | self.net_.arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The estimator that `arrays` came from."""
        made = cls()
        made.trees_, made.net_ = ResidualTrees.from_arrays(arrays), ResidualNet.from_arrays(arrays)
        return made
