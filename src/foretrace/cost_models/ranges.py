"""Ranges of predicted times: 10th percentile, median, 90th percentile."""

from __future__ import annotations

import math
from typing import NamedTuple

SIGMAS_TO_P90 = 1.2816
"""Standard deviations from the median to the 10th and the 90th percentile of a normal distribution."""


class Range(NamedTuple):
    """Microseconds: the 10th percentile, the median and the 90th."""

    low: float
    typical: float
    high: float

    @classmethod
    def around(cls, typical: float, spread: float) -> Range:
        """The range of a time whose logarithm has this standard deviation.

        >>> Range.around(100.0, 0.0)
        Range(low=100.0, typical=100.0, high=100.0)
        """
        factor = math.exp(SIGMAS_TO_P90 * spread)
        return cls(typical / factor, typical, typical * factor)
