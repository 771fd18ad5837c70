"""A model of what settings do to a figure of plans, learned from few of them: a Gaussian process."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from foretrace.graph.tables import Floats, Small

SPREADS = tuple(product((0.2, 0.5, 1.0), (0.03, 0.1, 0.2), (0.1, 0.3)))
"""Prior standard deviations of logarithms that are tried: what a setting changes, what two of them do together, and
what all of them do besides."""
NOISE = 0.01
"""How far a simulation is off, as a standard deviation."""
ALIKE = 4.0
"""Number of settings by which plans may differ and still tell much of each other."""
AT_ONCE = 8192
"""Plans that are predicted at once: of all of a large space, covariances would take a gigabyte."""


class SettingsModel:
    """A Gaussian process over settings: each has an effect, so have pairs, and plans with many in common deviate alike.

    How large these are is what makes the known values most likely, among a few combinations.
    """

    def __init__(self, known: Small, values: Floats) -> None:
        self._known, self._mean = known.astype(np.float64), float(values.mean())
        off = values - self._mean
        likely = -np.inf
        for spreads in SPREADS:
            covariance = _covariance(self._known, self._known, spreads) + NOISE**2 * np.eye(len(known))
            factor = np.linalg.cholesky(covariance)
            fitted = np.linalg.solve(covariance, off)
            evidence = -0.5 * off @ fitted - np.log(np.diag(factor)).sum()
            if evidence > likely:
                likely, self._spreads, self._weights = evidence, spreads, fitted
                self._inverse = np.linalg.inv(covariance)

    def predicted(self, asked: Small) -> tuple[Floats, Floats]:
        """Mean and standard deviation for what is asked."""
        some = [self._predicted(asked[first : first + AT_ONCE]) for first in range(0, len(asked) or 1, AT_ONCE)]
        mean, spread = (np.concatenate(part) for part in zip(*some))
        return mean, spread

    def _predicted(self, features: Small) -> tuple[Floats, Floats]:
        asked = features.astype(np.float64)
        near, count = _covariance(asked, self._known, self._spreads), asked.sum(axis=1)
        setting, pair, plan = (spread**2 for spread in self._spreads)
        prior = setting * count + pair * count * (count - 1) / 2 + plan
        left = prior - ((near @ self._inverse) * near).sum(axis=1)
        return self._mean + near @ self._weights, np.sqrt(np.maximum(left, NOISE**2))


def _covariance(some: Floats, others: Floats, spreads: tuple[float, float, float]) -> Floats:
    setting, pair, plan = (spread**2 for spread in spreads)
    shared = some @ others.T
    off = some.sum(axis=1)[:, None] + others.sum(axis=1)[None] - 2 * shared
    return np.asarray(setting * shared + pair * shared * (shared - 1) / 2 + plan * np.exp(-off / ALIKE))


def normal_density(x: Floats) -> Floats:
    """The density of the standard normal distribution."""
    return np.asarray(np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))


def normal_cdf(x: Floats) -> Floats:
    """The standard normal distribution, to five digits (Abramowitz and Stegun 26.2.17).

    >>> normal_cdf(np.array([0.0, 1.6449])).round(4).tolist()
    [0.5, 0.95]
    """
    t = 1 / (1 + 0.2316419 * np.abs(x))
    tail = t * (0.31938153 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    above = normal_density(x) * tail
    return np.asarray(np.where(x < 0, above, 1 - above))
