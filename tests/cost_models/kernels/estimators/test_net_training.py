"""Nets learn the times of calls, and traits of kernels beside them."""

import numpy as np
import pytest

from foretrace.cost_models.kernels.estimators.dataset import Dataset
from foretrace.cost_models.kernels.estimators.net_training import EFFORTS, Effort, Training, learning_rates, train
from foretrace.cost_models.kernels.estimators.residual import ResidualNet

torch = pytest.importorskip("torch")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setitem(EFFORTS["cpu"], "time", Effort(2, 1, 32, 64, 600, 1000, 1e-2, 1e-4, 0.0))


def answers(layers, x):
    flow = x
    for weights, biases in layers[:-1]:
        flow = flow @ weights + biases
        flow = flow / (1 + np.exp(-flow))
    weights, biases = layers[-1]
    return (flow @ weights + biases)[:, :, 0].mean(axis=0)


def test_a_curve_is_learned_with_and_without_traits_of_kernels(quick):
    x = np.linspace(-2, 2, 500)[:, None]
    for traits in (None, (x > 0).astype(float)):
        layers = train(x, np.sin(2 * x[:, 0]), traits)
        assert layers[-1][0].shape == (2, 32, 1)
        assert np.abs(answers(layers, x) - np.sin(2 * x[:, 0])).mean() < 0.05


def test_a_trait_that_is_the_same_for_all_calls_does_no_harm(quick):
    x = np.linspace(-2, 2, 500)[:, None]
    layers = train(x, x[:, 0], np.ones((500, 1)))
    assert np.abs(answers(layers, x) - x[:, 0]).mean() < 0.05


def test_the_same_rows_give_the_same_nets(quick):
    x = np.linspace(-1, 1, 100)[:, None]
    first, second = (train(x, x[:, 0]) for _ in range(2))
    assert all(np.array_equal(a, b) for one, other in zip(first, second) for a, b in zip(one, other))


def test_every_row_of_whole_batches_is_used_once_an_epoch():
    x = torch.arange(12.0)[:, None]
    layers = [(torch.zeros(1, 1, 1, requires_grad=True), torch.zeros(1, 1, 1, requires_grad=True))]
    training = Training(layers, x, x, Effort(1, 0, 1, 4, 3, 1, 1e-3, 0.0, 0.0), None)
    training.run()
    assert (training.batches, training.steps, int(training.made)) == (3, 3, 3)
    assert sorted(training.order[0].tolist()) == list(range(12))


def test_the_learning_rate_rises_then_falls_to_zero():
    found = learning_rates(100, 1.0)
    assert found.argmax() == 10 and found.max() == pytest.approx(1.0)
    assert (np.diff(found[:10]) > 0).all() and (np.diff(found[10:]) < 0).all()
    assert found[-1] < 0.001


def test_a_net_takes_traits_for_both_states(quick):
    size = np.linspace(1, 9, 400)
    us = np.stack([2.0 + 2**size, 1.0 + 2**size], axis=1)
    rows = Dataset(size[:, None], np.zeros(400), 2**size, us, [])
    net = ResidualNet().fit(rows, (size > 5).astype(float)[:, None])
    assert np.abs(net.predict_both(rows) / us - 1).mean() < 0.1
