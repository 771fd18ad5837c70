from __future__ import annotations

from unittest import mock

import lightgbm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace._jit import JitBudget
from foretrace.cost_models.kernels.estimators import forests
from foretrace.cost_models.kernels.estimators.forests import Forest


def test_a_forest_says_what_the_library_that_grew_it_says():
    random = np.random.default_rng(1)
    rows = random.normal(size=(500, 6))
    target = rows[:, 0] * 3 + np.where(rows[:, 1] > 0, 2.0, -1.0)
    grown = lightgbm.train({"verbose": -1, "num_leaves": 15, "num_threads": 1}, lightgbm.Dataset(rows, target), 50)
    forest = Forest.of([tree["tree_structure"] for tree in grown.dump_model()["tree_info"]])
    np.testing.assert_allclose(forest.predict(rows), grown.predict(rows), atol=2e-3)


def test_a_value_that_equals_a_threshold_goes_left_even_where_rounding_would_send_it_right():
    threshold = 0.1  # its float32 lies above it, that of the next one below
    for value in (threshold, 0.3):
        split = {"split_feature": 0, "threshold": value, "left_child": {"leaf_value": 1.0}}
        forest = Forest.of([{**split, "right_child": {"leaf_value": 2.0}}])
        assert forest.predict(np.array([[value]])).tolist() == [1.0]


def test_arrays_of_a_forest_make_the_same_forest():
    leaf = {"leaf_value": 4.0}
    forest = Forest.of([{"split_feature": 1, "threshold": 5.0, "left_child": leaf, "right_child": {"leaf_value": 9.0}}])
    again = Forest.from_arrays(forest.arrays("some"), "some", columns=2)
    rows = np.array([[0.0, 4.0], [0.0, 6.0]])
    assert again.predict(rows).tolist() == forest.predict(rows).tolist() == [4.0, 9.0]


def test_where_right_branches_begin_follows_from_the_order_of_the_nodes():
    leaf = {"leaf_value": 1.0}
    low = {"split_feature": 0, "threshold": 1.0, "left_child": leaf, "right_child": {"leaf_value": 2.0}}
    high = {"split_feature": 0, "threshold": 9.0, "left_child": {"leaf_value": 3.0}, "right_child": {"leaf_value": 4.0}}
    forest = Forest.of([{"split_feature": 0, "threshold": 5.0, "left_child": low, "right_child": high}, low, leaf])
    stored = forest.arrays("some")
    assert "some.right" not in stored
    again = Forest.from_arrays(stored, "some", columns=1)
    assert again.right.tolist() == forest.right.tolist() == [4, 2, 0, 0, 2, 0, 0, 2, 0, 0, 0]


def test_a_tree_that_ends_before_its_leaves_is_refused():
    stored = Forest.of([{"split_feature": 0, "threshold": 1.0, "left_child": {"leaf_value": 1.0},
                       "right_child": {"leaf_value": 2.0}}]).arrays("some")  # fmt: skip
    cut = {**stored, "some.feature": stored["some.feature"][:2], "some.leaf": stored["some.leaf"][:1]}
    with pytest.raises(ValueError, match="lead nowhere"):
        Forest.from_arrays(cut, "some", columns=1)
    flat = {**stored, "some.feature": stored["some.feature"][None]}
    with pytest.raises(ValueError, match="no list of nodes"):
        Forest.from_arrays(flat, "some", columns=1)


def test_a_threshold_is_kept_once_however_many_nodes_split_there():
    ends = {"left_child": {"leaf_value": 1.0}, "right_child": {"leaf_value": 2.0}}
    forest = Forest.of([{"split_feature": n % 2, "threshold": float(n % 3), **ends} for n in range(60)])
    stored = forest.arrays("some")
    assert stored["some.levels"].tolist() == [0.0, 1.0, 2.0] * 2 and stored["some.level"].dtype == np.uint8
    rows = np.array([[0.5, 1.5], [2.5, -1.0]])
    again = Forest.from_arrays(stored, "some", columns=2)
    assert again.predict(rows).tolist() == forest.predict(rows).tolist()
    for name, damaged in (("level", stored["some.level"] + 3), ("counts", stored["some.counts"] + 1)):
        with pytest.raises(ValueError, match="split at nothing"):
            Forest.from_arrays({**stored, f"some.{name}": damaged}, "some", columns=2)


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
def test_stepwise_and_compiled_evaluation_agree(grown: list, given_rows: list) -> None:
    forest = Forest.of(grown)
    table = np.array(given_rows, float).reshape(-1, COLUMNS)
    parts = table, forest.feature, forest.threshold, forest.right, forest.root
    assert forests.evaluate_stepwise(*parts).tolist() == forests.evaluate_compiled(*parts).tolist()


@given(st.lists(trees, min_size=1, max_size=6), st.sampled_from([1, 9, forests.NODES_TOGETHER]))
def test_a_forest_that_was_kept_finds_its_right_branches_again(grown: list, nodes_together: int) -> None:
    forest = Forest.of(grown)
    with mock.patch.object(forests, "NODES_TOGETHER", nodes_together):
        again = Forest.from_arrays(forest.arrays("some"), "some", COLUMNS)
    assert again.right.tolist() == forest.right.tolist()
    assert again.threshold.tolist() == forest.threshold.tolist()


@given(st.lists(trees, min_size=1, max_size=4), st.sampled_from(["feature", "root"]), st.integers(0, 99), st.integers())
def test_a_damaged_forest_is_refused_or_still_comes_to_an_end(grown: list, name: str, place: int, value: int) -> None:
    stored = Forest.of(grown).arrays("some")
    damaged = stored[f"some.{name}"].copy()
    damaged[place % len(damaged)] = value % 40 - 5
    try:
        forest = Forest.from_arrays({**stored, f"some.{name}": damaged}, "some", COLUMNS)
    except ValueError:
        return
    parts = np.zeros((2, COLUMNS)), forest.feature, forest.threshold, forest.right, forest.root
    assert forests.evaluate_stepwise(*parts).tolist() == forests.evaluate_compiled(*parts).tolist()


def test_rows_that_do_not_fit_into_the_cache_at_once_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = Forest.of(
        [{"split_feature": 0, "threshold": 5.0, "left_child": {"leaf_value": 1.0}, "right_child": {"leaf_value": 2.0}}]
    )
    monkeypatch.setattr(forests, "ROWS_TOGETHER", 3)
    monkeypatch.setattr(forests, "jit_budget", JitBudget(float("inf")))
    assert forest.predict(np.arange(8.0)[:, None]).tolist() == [1.0] * 6 + [2.0] * 2
    assert forest.predict(np.zeros((0, 1))).tolist() == []
