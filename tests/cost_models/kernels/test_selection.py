"""Where the library's choice makes the time jump, times come from the kernels that are likely."""

import numpy as np
import pytest

from foretrace.cost_models.kernels.estimators.dataset import Dataset
from foretrace.cost_models.kernels.estimators.net_training import EFFORTS, Effort
from foretrace.cost_models.kernels.estimators.residual import PURPOSES
from foretrace.cost_models.kernels.family import GEMM_SIZES
from foretrace.cost_models.kernels.kernel_names import TiledKernel
from foretrace.cost_models.kernels.selection import SPEED_PREFERENCE, KernelSelection, kernel_features, tiling_features

pytest.importorskip("torch")
SMALL, LARGE = TiledKernel("a", 32, 32, 8), TiledKernel("b", 128, 128, 8)


@pytest.fixture(scope="module")
def calls():
    """Square products: on one kernel up to 500 a side, on another with bigger tiles from there on."""
    side = np.round(2 ** np.random.default_rng(3).uniform(5, 11, 600))
    kernels = [SMALL if each < 500 else LARGE for each in side]
    tiles = [np.ceil(each / kernel.first) ** 2 for each, kernel in zip(side, kernels)]
    us = 2 + np.ceil(np.array(tiles) / 132) * side * [0.02 if k is SMALL else 0.05 for k in kernels]
    features = np.stack([np.zeros(600), *[np.log2(side)] * 3, np.full(600, 132.0)], axis=1)
    return Dataset(features, side**3 / 1e7, side**2 / 1e6, np.stack([us, 0.9 * us], axis=1), []), kernels


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EFFORTS, "cpu", dict.fromkeys(PURPOSES, Effort(1, 1, 32, 64, 1200, 1000, 1e-2, 1e-4, 0.0)))
        patch.setattr("foretrace.cost_models.kernels.selection.TREES", 20)
        yield


@pytest.fixture(scope="module")
def fitted(calls, quick):
    rows, kernels = calls
    return KernelSelection().fit(rows, None, kernels, range(len(GEMM_SIZES)))


def test_both_the_kernel_and_its_time_are_learned(calls, fitted):
    rows, kernels = calls
    chances = fitted._probabilities(rows.features)
    ran = np.array([1 if kernel is max(kernels, key=kernels.count) else 2 for kernel in kernels])
    assert (chances.argmax(axis=1) == ran).mean() > 0.97
    assert chances.sum(axis=1) == pytest.approx(1.0)
    assert np.abs(fitted.predict_both(rows) / rows.us - 1).mean() < 0.06


def test_of_kernels_that_are_equally_likely_the_faster_counts_more(calls, fitted):
    few = _few(calls[0])
    one = {number: np.log(_with(fitted, {number: 1.0}).predict_both(few)) for number in (1, 2)}
    both = np.log(_with(fitted, {1: 0.5, 2: 0.5}).predict_both(few))
    rate = {number: np.exp(-SPEED_PREFERENCE * logs.mean(axis=1, keepdims=True)) for number, logs in one.items()}
    np.testing.assert_allclose(both, (rate[1] * one[1] + rate[2] * one[2]) / (rate[1] + rate[2]), rtol=1e-5)


def test_a_kernel_that_hardly_ever_runs_is_not_timed(calls, fitted):
    few = _few(calls[0])
    rare = _with(fitted, {1: 0.99, 2: 0.01}).predict_both(few)
    np.testing.assert_allclose(rare, _with(fitted, {1: 1.0}).predict_both(few), rtol=1e-6)


def _few(rows):
    return Dataset(rows.features[:5], rows.flops_us[:5], rows.bytes_us[:5], rows.us[:5], [])


class GivenChances(KernelSelection):
    """Chances of kernels that are the same for all calls."""

    given: np.ndarray

    def _probabilities(self, features):
        return np.tile(self.given, (len(features), 1))


def _with(fitted, chances):
    """The same times, with chances that are given."""
    made = GivenChances.from_arrays({**fitted.arrays(), "columns": np.array(GEMM_SIZES)})
    made.given = np.zeros(len(fitted.kernels_))
    made.given[list(chances)] = list(chances.values())
    return made


def test_arrays_make_the_same_estimator(calls, fitted):
    rows, _ = calls
    again = KernelSelection.from_arrays({**fitted.arrays(), "columns": np.array(GEMM_SIZES)})
    np.testing.assert_allclose(again.predict_both(rows), fitted.predict_both(rows), rtol=0.05)


def test_pieces_of_kernels_that_nothing_speaks_for_are_refused(fitted):
    arrays = {**fitted.arrays(), "columns": np.array(GEMM_SIZES)}
    with pytest.raises(ValueError, match="do not fit"):
        KernelSelection.from_arrays(arrays | {"pieces": arrays["pieces"] + 1})


def test_kernels_are_told_apart_by_what_runs_around_them(calls):
    rows, kernels = calls
    turned = [kernel._replace(around=">" if place % 2 else "") for place, kernel in enumerate(kernels)]
    features = np.column_stack([rows.features, np.arange(len(rows)) % 2])
    marked = Dataset(features, rows.flops_us, rows.bytes_us, rows.us, [])
    made = KernelSelection().fit(marked, None, turned, range(len(GEMM_SIZES)))
    found = made.kernels_[made._probabilities(features).argmax(axis=1)]
    assert (found[:, -1] == features[:, -1]).mean() > 0.97
    assert len(made.kernels_) == 1 + 4
    assert (
        made.pieces_.max() + 1 == 3 + 3 + 2
    )  # makers and tiles, one of each for all other kernels, and two ways around


def test_rare_kernels_count_as_one(calls, monkeypatch):
    monkeypatch.setattr("foretrace.cost_models.kernels.selection.MIN_RUNS", 301)
    monkeypatch.setitem(EFFORTS, "cpu", dict.fromkeys(PURPOSES, Effort(1, 0, 8, 64, 20, 1000, 1e-2, 1e-4, 0.0)))
    rows, kernels = calls
    made = KernelSelection().fit(rows, None, kernels, range(len(GEMM_SIZES)))
    assert made.kernels_[:, 0].tolist() == [-1, 0]
    assert np.isfinite(made.predict_both(rows)).all()


def _columns(call, kernel):
    """As numbers, not logarithms: tiles, steps, and tiles of the busiest multiprocessor."""
    sides = np.array([[*np.log2(call), 132]], float)
    assert sides.shape[1] == len(GEMM_SIZES)
    found = kernel_features(sides, np.array([kernel], float))[0]
    return tuple(np.round(2 ** found[[3, 4, 6]]))


def test_the_busiest_multiprocessor_has_the_rounded_up_share_of_the_tiles():
    assert _columns((1, 1024, 2048, 512), (128, 64, 32, 0)) == (16 * 16, 16, 2)
    assert _columns((10, 64, 64, 100), (64, 64, 64, 0)) == (10, 2, 1)


def test_a_tiles_first_side_lies_along_the_columns():
    assert _columns((1, 64, 1024, 64), (256, 64, 64, 0))[0] == 4
    assert _columns((1, 1024, 64, 64), (256, 64, 64, 0))[0] == 16


def test_of_a_kernel_that_is_not_known_nothing_is_said():
    sides = np.array([[0.0, 10, 10, 10, 132]] * 2)
    assert not kernel_features(sides, np.zeros((2, 4))).any()


def test_waves_that_fill_the_device_are_not_ragged():
    full, over = tiling_features(np.array([[0.0, np.log2(rows), 6, 6, 132] for rows in (32 * 132, 32 * 132 + 1)]))
    assert full[0] == 0.0 and over[0] > 0.0  # two tiles of 32 by 32 at a time
    assert np.isfinite(full).all() and full.shape == over.shape
