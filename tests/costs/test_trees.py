import lightgbm
import numpy as np

from foretrace.costs.trees import Forest


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
