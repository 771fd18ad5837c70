"""What numpy does as well: the same as numpy does it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.graph.numbers import distinct, percentiles


@given(st.lists(st.integers(-9, 9)))
def test_different_numbers_are_those_of_numpy(values: list[int]) -> None:
    assert distinct(np.array(values, np.int32)).tolist() == np.unique(np.array(values, np.int32)).tolist()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.lists(st.floats(0, 100), min_size=1))
def test_percentiles_are_those_of_numpy(values: list[float], which: list[float]) -> None:
    assert percentiles(np.array(values), which) == pytest.approx(np.percentile(values, which).tolist(), abs=1e-6)
