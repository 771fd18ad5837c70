"""Small neural networks on the same columns as the trees: smooth where those have steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from foretrace.costs.one_thread import one_thread
from foretrace.costs.rows import Floats, Rows, both_states

FARTHEST = 5.0
"""Standard deviations beyond which a column says no more: a net knows nothing of where it was not fitted."""
FINEST = 127
"""Weights are kept as so many steps up and down, of a size for each output: answers move by a fifth of a per cent."""
FAR = 32.0
"""A column of positive numbers whose largest is so many times the least is taken by its logarithms."""
TINY = 1e-9
"""Stands for what is not positive where a logarithm is taken: no such number was seen at fitting."""
KINDS = 24
"""A column of whole numbers with at most so many different ones names kinds: each gets a column of its own."""


class ResidualNet:
    """Nets of a few hidden layers on what the roofline misses; their answers are averaged.

    >>> size = np.linspace(1, 9, 400)
    >>> us = np.stack([2.0 + 2**size, 1.0 + 2**size], axis=1)
    >>> rows = Rows(size[:, None], np.zeros(400), 2**size, us, [])
    >>> bool(np.abs(ResidualNet().fit(rows).predict_both(rows) / us - 1).mean() < 0.05)
    True
    """

    def fit(self, rows: Rows, latents: Floats | None = None) -> Self:
        """Fit on both states at once; the state is the last column."""
        from foretrace.costs.net_fit import train

        both = both_states(rows.features)
        self.kinds_, self.logs_ = _kinds(both), _far_apart(both)
        wide = self._wide(both)
        self.middle_, self.width_ = wide.mean(axis=0), wide.std(axis=0) + 1e-6
        target = np.log(rows.us / rows.floored_us[:, None]).T.ravel()
        self.layers_ = train(self._scaled(wide), target, np.tile(latents, (2, 1)) if latents is not None else None)
        return self

    def predict_both(self, rows: Rows) -> Floats:
        """Microseconds of each row, a column per state."""
        said = self._forward(both_states(rows.features)).reshape(2, len(rows))
        return np.asarray((rows.floored_us * np.exp(said)).T)

    def _wide(self, columns: Floats) -> Floats:
        place, value = self.kinds_.T
        kinds = columns[:, place.astype(int)] == value
        columns = columns.copy()
        columns[:, self.logs_] = np.log(np.maximum(columns[:, self.logs_], TINY))
        return np.hstack([columns, kinds])

    def _scaled(self, wide: Floats) -> Floats:
        return np.asarray(np.clip((wide - self.middle_) / self.width_, -FARTHEST, FARTHEST))

    def _forward(self, columns: Floats) -> Floats:
        flow: NDArray[Any] = self._scaled(self._wide(columns)).astype(np.float32)
        with one_thread():
            for weights, biases in self.layers_[:-1]:
                flow = flow @ weights + biases
                flow = flow * (1 + np.tanh(flow / 2)) / 2
            weights, biases = self.layers_[-1]
            return np.asarray((flow @ weights + biases)[:, :, 0].mean(axis=0, dtype=np.float64))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers, for a file."""
        found: dict[str, NDArray[Any]] = {
            f"net.{name}": getattr(self, f"{name}_") for name in ("kinds", "logs", "middle", "width")
        }
        for place, (weights, biases) in enumerate(self.layers_):
            scale = np.maximum(np.abs(weights).max(axis=1, keepdims=True) / FINEST, 1e-9).astype(np.float32)
            found |= {
                f"net.weights{place}": np.round(weights / scale).astype(np.int8),
                f"net.scale{place}": scale,
                f"net.biases{place}": biases.astype(np.float32),
            }
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What `arrays` gave."""
        made = cls()
        made.kinds_, made.middle_, made.width_ = (arrays[f"net.{name}"] for name in ("kinds", "middle", "width"))
        made.logs_ = arrays.get("net.logs", np.zeros(0, np.int64))
        count = sum(name.startswith("net.weights") for name in arrays)
        made.layers_ = [_layer(arrays, place) for place in range(count)]
        return made


def _layer(arrays: Mapping[str, NDArray[Any]], place: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights and biases of a layer, each with the nets as its first dimension."""
    weights = arrays[f"net.weights{place}"].astype(np.float32) * arrays[f"net.scale{place}"]
    return weights, arrays[f"net.biases{place}"]


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
