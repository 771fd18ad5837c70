"""What numpy also does, but not before it has loaded its masked arrays: that takes as long as reading a small trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The different numbers among some, in order: `numpy.unique`.

    >>> distinct(np.array([3, 1, 3])).tolist(), distinct(np.array([], np.int32)).tolist()
    ([1, 3], [])
    """
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def percentiles(values: NDArray[Any], which: Sequence[float]) -> list[float]:
    """Between the two values that lie next to each: `numpy.percentile`.

    >>> percentiles(np.array([30.0, 10.0, 20.0]), [0, 75, 100])
    [10.0, 25.0, 30.0]
    """
    places = np.array(which) / 100 * (len(values) - 1)
    return np.interp(places, np.arange(len(values)), np.sort(values)).tolist()  # type: ignore[no-any-return]
