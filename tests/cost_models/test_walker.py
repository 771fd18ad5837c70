"""Walks through forests: few rows at once and many one by one say the same, to the last bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace._jit import JitBudget
from foretrace.cost_models.kernels.estimators import forests as walker
from foretrace.cost_models.kernels.estimators.forests import Forest

COLUMNS = 3
values = st.floats(-8, 8, width=16)
leaves = st.builds(lambda value: {"leaf_value": value}, values)
trees = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda column, at, left, right: {
            "split_feature": column, "threshold": at, "left_child": left, "right_child": right,
        },
        st.integers(0, COLUMNS - 1), values, inner, inner,
    ),
    max_leaves=12,
)  # fmt: skip
rows = st.lists(st.lists(values, min_size=COLUMNS, max_size=COLUMNS), max_size=9)


@given(st.lists(trees, min_size=1, max_size=6), rows)
def test_all_at_once_and_one_by_one_say_the_same(grown: list, given_rows: list) -> None:
    forest = Forest.of(grown)
    table = np.array(given_rows, float).reshape(-1, COLUMNS)
    parts = table, forest.feature, forest.threshold, forest.right, forest.root
    assert walker.all_at_once(*parts).tolist() == walker.one_by_one(*parts).tolist()


@given(st.lists(trees, min_size=1, max_size=6))
def test_a_forest_that_was_kept_finds_its_right_branches_again(grown: list) -> None:
    forest = Forest.of(grown)
    again = Forest.from_arrays(forest.arrays("some"), "some", COLUMNS)
    assert again.right.tolist() == forest.right.tolist()


@given(st.lists(trees, min_size=1, max_size=4), st.sampled_from(["feature", "root"]), st.integers(0, 99), st.integers())
def test_a_damaged_forest_is_refused_or_still_comes_to_an_end(grown: list, name: str, place: int, value: int) -> None:
    kept = Forest.of(grown).arrays("some")
    damaged = kept[f"some.{name}"].copy()
    damaged[place % len(damaged)] = value % 40 - 5
    try:
        forest = Forest.from_arrays({**kept, f"some.{name}": damaged}, "some", COLUMNS)
    except ValueError:
        return
    parts = np.zeros((2, COLUMNS)), forest.feature, forest.threshold, forest.right, forest.root
    assert walker.all_at_once(*parts).tolist() == walker.one_by_one(*parts).tolist()


def test_rows_that_do_not_fit_into_the_cache_at_once_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = Forest.of(
        [{"split_feature": 0, "threshold": 5.0, "left_child": {"leaf_value": 1.0}, "right_child": {"leaf_value": 2.0}}]
    )
    monkeypatch.setattr(walker, "WALKS", 3)
    monkeypatch.setattr(walker, "jit_budget", JitBudget(float("inf")))
    assert forest.predict(np.arange(8.0)[:, None]).tolist() == [1.0] * 6 + [2.0] * 2
    assert forest.predict(np.zeros((0, 1))).tolist() == []
