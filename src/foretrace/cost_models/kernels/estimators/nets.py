"""Small neural networks on the same columns as the trees: smooth where those have steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from foretrace._numpy_threads import one_thread
from foretrace.cost_models.kernels.estimators.dataset import Floats, Rows, both_states

FARTHEST = 5.0
"""Standard deviations beyond which a column says no more: a net knows nothing of where it was not fitted."""
FINEST = 63
"""Weights are kept as so many steps up and down, of a size for each output: answers move by a third of a per cent."""
LEAST = 1e-6
"""A column with less of a standard deviation than this is the same for all rows."""
FAR = 32.0
"""A column of positive numbers whose largest is so many times the least is taken by its logarithms."""
TINY = 1e-9
"""Stands for what is not positive where a logarithm is taken: no such number was seen at fitting."""
KINDS = 24
"""A column of whole numbers with at most so many different ones names kinds: each gets a column of its own."""


Purpose = Literal["time", "kernel", "time on a kernel"]
"""What nets are to say of a call: they take other efforts to train."""
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


class Choice(NamedTuple):
    """Which of some kernels each row ran, and which of a net's answers speak for a kernel, together."""

    ran: NDArray[np.int64]
    pieces: NDArray[np.int64]
    """A row per kernel: numbers of answers, all of which are used."""


class Nets:
    """Nets of a few hidden layers on the same columns; their answers are averaged."""

    def learn(
        self,
        columns: Floats,
        target: Floats,
        facts: Floats | None = None,
        choice: Choice | None = None,
        purpose: Purpose = "time",
    ) -> Self:
        """Learn to say the logarithm of a time, and what speaks for each kernel, where one is to be chosen."""
        from foretrace.cost_models.kernels.estimators.net_training import train

        self.kinds_, self.logs_ = _kinds(columns), _far_apart(columns)
        wide = self._wide(columns)
        self.middle_, self.width_ = wide.mean(axis=0), wide.std(axis=0)
        self.width_[self.width_ < LEAST] = np.inf  # what never changed may change later: nothing was learned of it
        self.layers_ = train(self._scaled(wide), target, facts, choice, purpose)
        return self

    def answers(self, columns: Floats) -> Floats:
        """For each row the logarithm of its time, and after it what speaks for the pieces of a choice."""
        flow: NDArray[Any] = self._scaled(self._wide(columns)).astype(np.float32)
        with one_thread():
            for weights, biases in self.layers_[:-1]:
                flow = flow @ weights
                flow += biases
                flow /= 2
                flow += flow * np.tanh(flow)  # of x: x / (1 + exp(-x))
            weights, biases = self.layers_[-1]
            return np.asarray((flow @ weights + biases).mean(axis=0, dtype=np.float64))

    def _wide(self, columns: Floats) -> Floats:
        place, value = self.kinds_.T
        kinds = columns[:, place.astype(int)] == value
        columns = columns.copy()
        columns[:, self.logs_] = np.log(np.maximum(columns[:, self.logs_], TINY))
        return np.hstack([columns, kinds])

    def _scaled(self, wide: Floats) -> Floats:
        return np.asarray(np.clip((wide - self.middle_) / self.width_, -FARTHEST, FARTHEST))

    def kept(self, name: str, finest: int = FINEST) -> dict[str, NDArray[Any]]:
        """Their numbers, for a file, by names that begin with this one; weights in so many steps up and down."""
        found: dict[str, NDArray[Any]] = {
            f"{name}.{part}": getattr(self, f"{part}_") for part in ("kinds", "logs", "middle", "width")
        }
        for place, (weights, biases) in enumerate(self.layers_):
            scale = np.maximum(np.abs(weights).max(axis=1, keepdims=True) / finest, 1e-9).astype(np.float32)
            found |= {
                f"{name}.weights{place}": np.round(weights / scale).astype(np.int8),
                f"{name}.scale{place}": scale,
                f"{name}.biases{place}": biases.astype(np.float32),
            }
        return found

    @classmethod
    def of_kept(cls, arrays: Mapping[str, NDArray[Any]], name: str) -> Self:
        """What `kept` gave."""
        made = cls()
        made.kinds_, made.middle_, made.width_ = (arrays[f"{name}.{part}"] for part in ("kinds", "middle", "width"))
        made.logs_ = arrays.get(f"{name}.logs", np.zeros(0, np.int64))
        count = sum(each.startswith(f"{name}.weights") for each in arrays)
        made.layers_ = [_layer(arrays, name, place) for place in range(count)]
        return made


class ResidualNet(Nets):
    """Nets on what the roofline misses.

    >>> size = np.linspace(1, 9, 400)
    >>> us = np.stack([2.0 + 2**size, 1.0 + 2**size], axis=1)
    >>> rows = Rows(size[:, None], np.zeros(400), 2**size, us, [])
    >>> bool(np.abs(ResidualNet().fit(rows).predict_both(rows) / us - 1).mean() < 0.05)
    True
    """

    def fit(self, rows: Rows, latents: Floats | None = None) -> Self:
        """Fit on both states at once; the state is the last column."""
        facts = np.tile(latents, (2, 1)) if latents is not None else None
        return self.learn(both_states(rows.features), missed(rows), facts)

    def predict_both(self, rows: Rows) -> Floats:
        """Microseconds of each row, a column per state."""
        said = self.answers(both_states(rows.features))[:, 0].reshape(2, len(rows))
        return np.asarray((rows.floored_us * np.exp(said)).T)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers, for a file."""
        return self.kept("net")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What `arrays` gave."""
        return cls.of_kept(arrays, "net")


def missed(rows: Rows) -> Floats:
    """The logarithm of what the roofline misses: of all rows with a cold cache, then of all with a warm one."""
    return np.asarray(np.log(rows.us / rows.floored_us[:, None]).T.ravel())


def _layer(arrays: Mapping[str, NDArray[Any]], name: str, place: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights and biases of a layer, each with the nets as its first dimension."""
    weights = arrays[f"{name}.weights{place}"].astype(np.float32) * arrays[f"{name}.scale{place}"]
    return weights, arrays[f"{name}.biases{place}"]


def _far_apart(columns: Floats) -> NDArray[np.int64]:
    """Columns of positive numbers over orders of magnitude: their logarithms are what differs evenly.

    >>> _far_apart(np.array([[1.0, 1.0, 0.0], [1000.0, 2.0, 1000.0]])).tolist()
    [0]
    """
    least, most = columns.min(axis=0), columns.max(axis=0)
    return np.flatnonzero((least > 0) & (most >= FAR * least))


def _kinds(columns: Floats) -> Floats:
    """Pairs of a column and one of the kinds that it names."""
    found = []
    for place, column in enumerate(columns.T):
        values = np.unique(column)
        if 2 < len(values) <= KINDS and np.array_equal(values, np.round(values)):
            found += [(place, value) for value in values]
    return np.array(found, float).reshape(-1, 2)
