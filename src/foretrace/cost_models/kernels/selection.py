"""GEMM and convolution times by kernel selection: which kernels a library is likely to run, and the time on each.

A library has hundreds of kernels for a GEMM. Which one it selects jumps with the sizes, and the time with it; but on a
given kernel the time follows from the tiles of the busiest SM. So one set of nets learns from kernel names which kernel
runs, another learns the time on a kernel from those that ran, and trees learn what the latter leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.estimators.dataset import Dataset, log_residuals, with_cache_state
from foretrace.cost_models.kernels.estimators.forests import Forest, boost
from foretrace.cost_models.kernels.estimators.npz import finite
from foretrace.cost_models.kernels.estimators.residual import KernelChoice, NetEnsemble
from foretrace.cost_models.kernels.family import GEMM_SIZES
from foretrace.graph.tables import Floats

if TYPE_CHECKING:
    from foretrace.cost_models.kernels.kernel_names import TiledKernel

MIN_RUNS = 2
"""Measured runs from which on a kernel is told apart; all rarer ones count as one."""
MAX_CANDIDATES = 5
"""Kernels of a call that are timed at most."""
MIN_PROBABILITY = 0.05
"""A kernel less probable than this is not timed, unless it is the most probable one."""
TREES, LEAVES = 1200, 63
"""Size of the forest for what the nets leave."""
SPEED_PREFERENCE = 7.0
"""Power of a kernel's speed by which its probability is raised: a library looks for the fastest."""
SELECTION_LEVELS = 31
"""Quantization levels of the selecting nets' weights: a probability need not be as exact as a time."""
TILE = slice(1, 5)
"""Columns of the kernel table with first, second, depth and split; the maker stands before, the helpers behind."""
CONCURRENT_TILES = (
    (32, 32, (2, 4, 8, 16)), (64, 64, (2, 3, 4, 8)), (64, 32, (4, 8)), (32, 64, (4, 8)), (128, 64, (2, 3)),
    (64, 128, (2, 3)), (128, 128, (2,)), (128, 32, (2, 4)), (32, 128, (2, 4)), (256, 64, (1, 2)),
    (64, 256, (1, 2)), (256, 128, (2,)), (128, 256, (2,)),
)  # fmt: skip
"""Tiles, and how many of them an SM may work on at a time."""
DEVICE_TILES = (
    (64, 8), (64, 16), (64, 24), (64, 40), (8, 64), (16, 64), (24, 64), (64, 32), (32, 64), (128, 32), (32, 128),
    (256, 64), (64, 256), (96, 128), (128, 96), (160, 128), (128, 160), (128, 192), (128, 208), (256, 256),
)  # fmt: skip
"""Tiles of kernels that are made for one device."""
MULTIPLES = (8, 16, 32, 64, 128, 256)
"""What a side may have to be padded to."""
RESIDENT_TILES = (2, 3, 4, 8)


class KernelSelection:
    """Estimates a call on each kernel that is likely to run it, and averages the logarithms by probability."""

    def fit(
        self, calls: Dataset, traits: Floats | None, kernels: Sequence[TiledKernel], size_columns: Sequence[int]
    ) -> Self:
        """Fit for cold and warm caches at once.

        Traits and kernels are of what ran, a row per call; ``size_columns`` hold `GEMM_SIZES`.
        """
        common = [kernel for kernel, count in Counter(kernels).most_common() if count >= MIN_RUNS]
        numbers = {kernel: number for number, kernel in enumerate(common, 1)}
        self.sides_ = np.array(size_columns)
        self.kernels_ = _table(common)
        self.pieces_ = _pieces(self.kernels_)
        ran = np.array([numbers.get(kernel, 0) for kernel in kernels])
        both = np.tile(traits, (2, 1)) if traits is not None else None
        choice = KernelChoice(np.tile(ran, 2), self.pieces_)
        target = log_residuals(calls)
        self.choice_ = NetEnsemble().learn(
            with_cache_state(self._selection_features(calls.features)), target, both, choice, "kernel"
        )
        columns = with_cache_state(self._kernel_features(calls.features, ran))
        self.times_ = NetEnsemble().learn(columns, target, both, purpose="time on a kernel")
        by_nets = self.times_.outputs(columns)[:, :1]
        self.left_ = boost(np.hstack([columns, by_nets]), target - by_nets[:, 0], TREES, LEAVES)
        return self

    signals: ClassVar[int] = 4
    uses_prior: ClassVar[bool] = False

    def predict_both(self, calls: Dataset) -> Floats:
        """Microseconds of each call, a column per cache state."""
        return self.predict_with_signals(calls)[0]

    def predict_with_signals(self, calls: Dataset) -> tuple[Floats, Floats]:
        """Microseconds as by `predict_both`; as signals, how probable the first kernel is and all that are timed,
        how far apart the times on these lie, and those of the nets."""
        probability = self._probabilities(calls.features)
        order = np.argsort(-probability, axis=1)[:, :MAX_CANDIDATES]
        probability = np.take_along_axis(probability, order, axis=1)
        row, rank = np.nonzero(probability >= np.minimum(MIN_PROBABILITY, probability[:, :1]))
        columns = with_cache_state(self._kernel_features(calls.features[row], order[row, rank]))
        logs, apart = (each.reshape(2, -1) for each in self._log_times(columns))
        middle = logs.mean(axis=0)
        weight = probability[row, rank] * np.exp(-SPEED_PREFERENCE * middle)
        means, (typical, squares, nets) = (
            [np.bincount(row, weight * each) / np.bincount(row, weight) for each in some]
            for some in (logs, (middle, middle**2, apart.mean(axis=0)))
        )
        spread = np.sqrt(np.maximum(squares - typical**2, 0.0))
        signals = np.stack([probability[:, 0], probability.sum(axis=1), spread, nets], axis=1)
        return np.asarray((calls.floored_us * np.exp(means)).T), signals

    def _probabilities(self, features: Floats) -> Floats:
        """The probability of each kernel for each call."""
        # A library does not know what the cache holds: the cold state stands for both.
        cold = with_cache_state(self._selection_features(features))[: len(features)]
        scores = self.choice_.outputs(cold)[:, 1:][:, self.pieces_].sum(axis=2)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def _log_times(self, columns: Floats) -> tuple[Floats, Floats]:
        """Logarithms of times on kernels over the calls' rooflines, and the spread of the nets around them."""
        by_each = self.times_.outputs_of_each(columns)[:, :, :1].astype(np.float64)
        by_nets = by_each.mean(axis=0)
        return by_nets[:, 0] + self.left_.predict(np.hstack([columns, by_nets])), by_each.std(axis=0)[:, 0]

    def _selection_features(self, features: Floats) -> Floats:
        return np.hstack([features, tiling_features(features[:, self.sides_])])

    def _kernel_features(self, features: Floats, kernels: NDArray[np.int64]) -> Floats:
        """Features of calls on kernels, which are given by number."""
        table = self.kernels_[kernels]
        makers = np.arange(-1, self.kernels_[:, 0].max() + 1)
        tiles = kernel_features(features[:, self.sides_], table[:, TILE])
        return np.hstack([features, tiles, table[:, TILE.stop :], table[:, :1] == makers])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted numbers, for a file."""
        plain = {"kernels": self.kernels_, "pieces": self.pieces_, "sides": self.sides_}
        stored = {name: numbers.astype(np.int16) for name, numbers in plain.items()}
        nets = self.choice_.quantized("choice", SELECTION_LEVELS) | self.times_.quantized("times")
        return {**stored, **nets, **self.left_.arrays("left")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The estimator that `arrays` came from."""
        made = cls()
        made.kernels_ = finite(arrays, "kernels", None, None)
        made.pieces_ = finite(arrays, "pieces", len(made.kernels_), None).astype(np.int64)
        made.sides_ = finite(arrays, "sides", len(GEMM_SIZES)).astype(np.int64)
        made.choice_, made.times_ = (NetEnsemble.from_quantized(arrays, name) for name in ("choice", "times"))
        if made.pieces_.min() < 0 or made.pieces_.max() + 2 != made.choice_.layers_[-1][1].shape[-1]:
            raise ValueError("its kernels and the nets that select them do not fit")
        given = made._kernel_features(np.ones((1, len(arrays["columns"]))), np.zeros(1, np.int64)).shape[1]
        made.left_ = Forest.from_arrays(arrays, "left", given + 2)  # beside them the cache state and the nets' answer
        return made


def _table(kernels: Sequence[TiledKernel]) -> Floats:
    """A row per kernel, after one for all others: maker by number, tile, and whether each kind of helper runs."""
    makers, letters = sorted({kernel.maker for kernel in kernels}), sorted(set("".join(k.around for k in kernels)))
    rows = [(makers.index(k.maker), *k[1:5], *(letter in k.around for letter in letters)) for k in kernels]
    return np.array([(-1, *[0] * (4 + len(letters))), *rows], np.float64)


def _pieces(table: Floats) -> NDArray[np.int64]:
    """The outputs that add up to each kernel's score: its maker's, tile's and helpers', shared among kernels."""
    found, outputs = [], 0
    for part in (table[:, :1], table[:, TILE], table[:, TILE.stop :]):
        if part.size:
            _, place = np.unique(part, axis=0, return_inverse=True)
            found.append(outputs + place.ravel())
            outputs += int(place.max()) + 1
    return np.stack(found, axis=1)


def tiling_features(sizes: Floats) -> Floats:
    """Wave and tile quantization of calls under many tilings.

    Sizes are a row per call, as in `GEMM_SIZES`.
    """
    batch, m, n, k, processors = _unlogged(sizes)
    columns = []
    for first, second, counts in CONCURRENT_TILES:
        waves = np.ceil(m / first) * np.ceil(n / second) * batch / processors
        columns += [_log(np.ceil(waves / count) / (waves / count)) for count in counts]
    for first, second in DEVICE_TILES:
        tiles = np.ceil(m / first) * np.ceil(n / second) * batch
        waves = tiles / processors
        columns += [_log(tiles), _log(np.ceil(waves) / waves), m * n * batch / (tiles * first * second)]
    columns += [_log(np.ceil(side / step) * step / side) for side in (m, n, k) for step in MULTIPLES]
    return np.stack(columns, axis=1)


def kernel_features(sizes: Floats, tiles: Floats) -> Floats:
    """Tiles, waves and steps of each call on a given kernel, of which the busiest SM has the most.

    Tiles are first, second, depth and split of each call's kernel; a first of 0 is a kernel without a known tile.
    """
    batch, m, n, k, processors = _unlogged(sizes)
    known, split = tiles[:, 0] > 0, tiles[:, 3]
    first, second, depth = np.maximum(tiles[:, :3], 1).T
    count = np.ceil(n / first) * np.ceil(m / second) * batch
    waves, steps = count / processors, np.ceil(k / depth)
    most = np.ceil(waves)
    loaded = batch * k * (n * np.ceil(m / second) + m * np.ceil(n / first))
    columns = [
        *map(_log, (first, second, depth, count, steps, most / waves, most, most * steps, loaded)),
        *map(_log, (most * steps * depth * first * second, (most + 1) * steps * depth)),
        split, n * m * batch / (count * first * second), 1 / waves,
        *(_log(np.ceil(waves / each) / (waves / each)) for each in RESIDENT_TILES),
    ]  # fmt: skip
    return np.stack(columns, axis=1) * known[:, None]


def _unlogged(sizes: Floats) -> Floats:
    """The sizes themselves, a row for each of `GEMM_SIZES`."""
    plain = sizes.T.copy()
    plain[:4] = np.round(2.0 ** plain[:4])
    return plain


def _log(values: Floats) -> Floats:
    return np.asarray(np.log2(values))
