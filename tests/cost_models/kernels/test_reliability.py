from __future__ import annotations

import shutil

import numpy as np
import pytest

from foretrace.cost_models.kernels.estimators.dataset import Dataset
from foretrace.cost_models.kernels.fitting import recalibrate
from foretrace.cost_models.kernels.model import FamilyModel, device_models
from foretrace.cost_models.kernels.reliability import ErrorRange
from foretrace.platform.platform import Platform

NO_SIGNALS = np.zeros((600, 0))


def _calls(factor: np.ndarray) -> tuple[Dataset, np.ndarray]:
    """Calls of 10 us that are measured at so many times that, and the predictions."""
    count, us = len(factor), np.full((len(factor), 2), 10.0)
    features = np.stack([np.arange(count) % 2, np.arange(count) / count], axis=1)
    return Dataset(features, np.ones(count), np.ones(count), us * factor[:, None], []), us


@pytest.fixture(scope="module")
def half_wrong() -> tuple[ErrorRange, Dataset, np.ndarray]:
    """Held-out calls: those of the first op within 2 %, those of the second off by a factor of two, up or down."""
    numbers = np.random.default_rng(1)
    factor = np.where(
        np.arange(600) % 2 == 0, numbers.uniform(0.98, 1.02, 600), numbers.choice([0.5, 0.55, 1.8, 2.0], 600)
    )
    calls, us = _calls(factor)
    return ErrorRange.of(calls, us, NO_SIGNALS), calls, us


def test_a_call_like_those_that_were_far_off_has_a_wide_range_and_is_not_known(half_wrong):
    errors, calls, us = half_wrong
    low, high, known = errors.around(calls.features, us, NO_SIGNALS)
    easy = calls.features[:, 0] == 0
    assert known[easy].mean() > 0.95
    assert known[~easy].mean() < 0.05
    assert np.median(high[easy]) < 0.03
    assert np.median(high[~easy]) > 0.5
    assert np.median(low[~easy]) < -0.5


def test_the_range_holds_four_fifths_of_the_held_out_calls(half_wrong):
    errors, calls, us = half_wrong
    low, high, _ = errors.around(calls.features, us, NO_SIGNALS)
    off = np.log(calls.us / us)[:, 0]
    assert 0.75 < np.mean((low <= off) & (off <= high)) < 0.95


def test_the_prediction_lies_in_its_range_though_all_held_out_calls_were_slower():
    calls, us = _calls(np.linspace(1.2, 1.4, 600))
    low, high, _ = ErrorRange.of(calls, us, NO_SIGNALS).around(calls.features, us, NO_SIGNALS)
    assert (low <= 0).all() and (high > 0.15).all()


def test_what_an_estimator_disagrees_on_is_difficult_where_features_tell_nothing():
    numbers = np.random.default_rng(2)
    unsure = numbers.random(600) < 0.5
    calls, us = _calls(np.where(unsure, numbers.choice([0.5, 2.0], 600), 1.0))
    signals = unsure.astype(float)[:, None]
    _, _, known = ErrorRange.of(calls, us, signals).around(calls.features, us, signals)
    assert (known == ~unsure).mean() > 0.95


def test_errors_are_learned_anew_without_a_new_fit(tmp_path):
    shutil.copy(Platform.named("h200").models / "transfers.npz", tmp_path)
    before = FamilyModel.read(tmp_path, "transfers")
    assert before.support
    numbers = np.random.default_rng(3)
    rows = numbers.uniform(before.support.low[0], before.support.high[0], (200, len(before.family.columns)))
    calls = Dataset(rows, np.ones(200), np.ones(200), np.ones((200, 2)), [])
    calls.us = before.estimator.predict_both(calls) * numbers.choice([0.2, 5.0], (200, 1))
    recalibrate(tmp_path, "transfers", calls)
    after = FamilyModel.read(tmp_path, "transfers")
    np.testing.assert_array_equal(after.estimator.predict_both(calls), before.estimator.predict_both(calls))
    assert not after.price(calls).known.any()


def test_a_model_of_an_earlier_version_goes_by_the_predicted_time():
    arrays = {"spread.edges_us": np.array([100.0]), "spread.low": np.array([-0.1, -0.2]), "spread.high": np.ones(2)}
    old = ErrorRange.from_arrays(arrays, signals=0)
    low, _, known = old.around(np.zeros((2, 3)), np.array([[9.0, 9.0], [900.0, 900.0]]), np.zeros((2, 0)))
    assert low.tolist() == [-0.1, -0.2]
    assert known.all()
    assert old.arrays().keys() == arrays.keys()


def test_every_shipped_model_knows_where_it_fails():
    for name, model in device_models(Platform.named("h200").models).families.items():
        assert model.errors.difficulty is not None, name
