from typing import Any

import numpy as np
import pytest

from foretrace.cost_models.kernels.estimators.dataset import Dataset
from foretrace.cost_models.kernels.estimators.residual import Blend, ResidualNet, ResidualTrees, ScaledRoofline


@pytest.fixture(scope="module")
def rows() -> Dataset:
    """Calls that take 2 us, and their bytes at 80 % of the memory's rate; half of that with a warm cache."""
    random = np.random.default_rng(0)
    size = 2 ** random.uniform(0, 10, 800)
    cold = 2 + size / 0.8
    return Dataset(
        np.stack([np.zeros(800), np.log2(size)], 1), np.zeros(800), size, np.stack([cold, 1 + cold / 2], 1), []
    )


def _some(rows: Dataset, which: np.ndarray) -> Dataset:
    return Dataset(rows.features[which], rows.flops_us[which], rows.bytes_us[which], rows.us[which], [])


def test_a_scaled_roofline_finds_the_rates_it_was_made_of(rows):
    fitted = ScaledRoofline().fit(rows)
    np.testing.assert_allclose(fitted.rates_[0], [[2.0, 1.25, 0.0], [2.0, 0.625, 0.0]], rtol=1e-6, atol=1e-6)


def test_trees_learn_both_states(rows):
    inside, outside = np.arange(600), np.arange(600, 800)
    predicted = ResidualTrees().fit(_some(rows, inside), trees=200, leaves=15).predict_both(_some(rows, outside))
    off = np.abs(predicted / rows.us[outside] - 1)
    assert off.mean() < 0.02
    assert (predicted[:, 1] < predicted[:, 0]).mean() > 0.95


def test_facts_about_kernels_are_guessed_and_used():
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (600, 2))
    chosen = (x[:, 0] > 0.5).astype(float)  # the library's choice, which its kernel's name tells
    us = np.stack([10 + 10 * chosen] * 2, 1)
    rows = Dataset(x, np.zeros(600), np.ones(600), us, [])
    fitted = ResidualTrees().fit(rows, traits=chosen[:, None], trees=100, leaves=8)
    assert len(fitted.latent_) == 1
    assert np.abs(fitted.predict_both(rows) / us - 1).mean() < 0.03


@pytest.mark.parametrize("kind", [ScaledRoofline, ResidualTrees])
def test_arrays_make_the_same_estimator(rows, kind):
    fitted = kind().fit(rows)
    again = kind.from_arrays({**fitted.arrays(), "columns": np.array(["op", "size"])})
    np.testing.assert_array_equal(again.predict_both(rows), fitted.predict_both(rows))


def _nets(rows: Dataset, *answers: float) -> ResidualNet:
    """Nets that say one number each, whatever they are asked."""
    made, width = ResidualNet(), rows.features.shape[1] + 1
    made.kinds_, made.logs_ = np.zeros((0, 2)), np.zeros(0, np.int64)
    made.middle_, made.width_ = np.zeros(width), np.ones(width)
    made.layers_ = [
        (np.zeros((len(answers), width, 3)), np.zeros((len(answers), 1, 3))),
        (np.ones((len(answers), 3, 1)), np.array(answers).reshape(-1, 1, 1)),
    ]
    return made


def test_several_nets_are_averaged(rows):
    said = _nets(rows, 0.2, 0.4).predict_both(rows)
    np.testing.assert_allclose(said, np.exp(0.3) * np.repeat(rows.floored_us[:, None], 2, axis=1), rtol=1e-6)


def test_a_net_takes_columns_over_orders_of_magnitude_by_their_logarithms(rows):
    made = _nets(rows, 0.2)
    made.logs_ = np.array([0])
    columns = np.array([[1000.0, *[5.0] * rows.features.shape[1]], [0.0, *[5.0] * rows.features.shape[1]]])
    wide = made._encoded(columns)
    assert wide[0, 0] == np.log(1000.0) and np.isfinite(wide).all()
    assert (wide[:, 1:] == 5.0).all() and columns[0, 0] == 1000.0


def test_nets_that_were_fitted_before_logarithms_were_taken_are_read(rows):
    stored = _nets(rows, 0.2, 0.4).arrays()
    del stored["net.logs"]
    assert ResidualNet.from_arrays(stored).predict_both(rows).shape == rows.us.shape


def test_a_net_is_kept_in_steps_that_hardly_move_its_answers(rows):
    fitted, random = _nets(rows, 0.2, 0.4), np.random.default_rng(0)
    fitted.layers_ = [(random.normal(size=weights.shape), biases) for weights, biases in fitted.layers_]
    stored = fitted.arrays()
    assert stored["net.weights0"].dtype == np.int8
    again, said = ResidualNet.from_arrays(stored).predict_both(rows), fitted.predict_both(rows)
    assert 0 < np.abs(np.log(again / said)).mean() < 0.05 * np.abs(np.log(said / rows.floored_us[:, None])).mean()


class Said:
    """Says one time of every call."""

    def __init__(self, us: float) -> None:
        self.us = us

    def predict_both(self, rows: Dataset) -> np.ndarray:
        return np.full((len(rows), 2), self.us)


def test_a_blend_lies_halfway_between_trees_and_net_by_their_logarithms():
    blend: Any = Blend()  # which is given stand-ins
    blend.trees_, blend.net_ = Said(4.0), Said(9.0)
    rows = Dataset(np.zeros((3, 1)), np.zeros(3), np.zeros(3), np.zeros((0, 2)), [])
    np.testing.assert_allclose(blend.predict_both(rows), np.full((3, 2), 6.0))
