"""Rank correlation: whether forecasts order things as measurements do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rank_correlation(some: Sequence[float], others: Sequence[float]) -> float:
    """Spearman's, of values without ties.

    >>> round(rank_correlation([1.0, 2.0, 3.0], [1.1, 1.2, 1.5]), 6)
    1.0
    """
    places = [np.argsort(np.argsort(values)) for values in (some, others)]
    return float(np.corrcoef(places[0], places[1])[0, 1])
