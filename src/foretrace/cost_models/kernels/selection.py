"""Matrix products and convolutions by the kernels that are likely to run.

A library has hundreds of kernels for them. Which one it takes jumps with the sizes, and with it the time; but given the
kernel, the time follows from how many tiles the busiest multiprocessor has. So one half of the nets says which kernel
runs, learned from names, and the other how long a kernel takes, learned from those that ran; trees learn what the
latter leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.estimators.dataset import Floats, Rows, both_states
from foretrace.cost_models.kernels.estimators.forests import Forest
from foretrace.cost_models.kernels.estimators.nets import Choice, Nets, missed
from foretrace.cost_models.kernels.estimators.npz import finite
from foretrace.cost_models.kernels.kernel_names import SIDES, Kernel, on_kernel, tiled

SEEN = 2
"""How often a kernel has to have run to be told apart; all that are rarer count as one."""
LIKELY = 5
"""Kernels of a call that are timed at most."""
UNLIKELY = 0.05
"""A kernel with less of a chance than this is not timed, but for the likeliest."""
TREES, LEAVES = 1200, 63
"""For what the nets leave."""
PREFERRED = 7.0
"""By which power of its rate a kernel is likelier than its chance: a library looks for the fastest."""
COARSE = 31
"""Steps in which the weights of nets that choose are kept: a chance need not be as exact as a time."""
TILE = slice(1, 5)
"""Where the table of kernels has first, second, depth and split; before it the maker, behind it what runs around."""


class LikelyKernels:
    """What a call takes on each of the kernels that are likely to run it: the mean of logarithms, by their chances."""

    def fit(self, rows: Rows, latents: Floats | None, kernels: Sequence[Kernel], sides: Sequence[int]) -> Self:
        """Fit on both states at once.

        Parameters
        ----------
        rows
            Measured calls.
        latents
            Facts about the kernels that ran, a row per call.
        kernels
            What ran, by call.
        sides
            Which of the rows' columns say how large a call is, as `tiled` wants them.
        """
        from foretrace.cost_models.kernels.estimators.forests import boost

        common = [kernel for kernel, count in Counter(kernels).most_common() if count >= SEEN]
        numbers = {kernel: number for number, kernel in enumerate(common, 1)}
        self.sides_ = np.array(sides)
        self.kernels_ = _table(common)
        self.pieces_ = _pieces(self.kernels_)
        ran = np.array([numbers.get(kernel, 0) for kernel in kernels])
        facts = np.tile(latents, (2, 1)) if latents is not None else None
        choice = Choice(np.tile(ran, 2), self.pieces_)
        self.choice_ = Nets().learn(both_states(self._asked(rows.features)), missed(rows), facts, choice, "kernel")
        columns = both_states(self._on(rows.features, ran))
        self.times_ = Nets().learn(columns, missed(rows), facts, purpose="time on a kernel")
        said = self.times_.answers(columns)[:, :1]
        self.left_ = boost(np.hstack([columns, said]), missed(rows) - said[:, 0], TREES, LEAVES)
        return self

    def predict_both(self, rows: Rows) -> Floats:
        """Microseconds of each row, a column per state."""
        chances = self._chances(rows.features)
        order = np.argsort(-chances, axis=1)[:, :LIKELY]
        chances = np.take_along_axis(chances, order, axis=1)
        row, rank = np.nonzero(chances >= np.minimum(UNLIKELY, chances[:, :1]))
        said = self._timed(both_states(self._on(rows.features[row], order[row, rank]))).reshape(2, -1)
        weight = chances[row, rank] * np.exp(-PREFERRED * said.mean(axis=0))
        logs = [np.bincount(row, weight * each) / np.bincount(row, weight) for each in said]
        return np.asarray((rows.floored_us * np.exp(logs)).T)

    def _chances(self, features: Floats) -> Floats:
        """How likely each kernel is to run each call."""
        cold = both_states(self._asked(features))[: len(features)]  # a library does not know what the cache holds
        speaks = self.choice_.answers(cold)[:, 1:][:, self.pieces_].sum(axis=2)
        chances = np.exp(speaks - speaks.max(axis=1, keepdims=True))
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))

    def _timed(self, columns: Floats) -> Floats:
        """Logarithms of what calls take on kernels, beyond their rooflines."""
        said = self.times_.answers(columns)[:, :1]
        return said[:, 0] + self.left_.predict(np.hstack([columns, said]))

    def _asked(self, features: Floats) -> Floats:
        return np.hstack([features, tiled(features[:, self.sides_])])

    def _on(self, features: Floats, kernels: NDArray[np.int64]) -> Floats:
        """Calls, with what each means for a kernel, given by number."""
        made = self.kernels_[kernels]
        makers = np.arange(-1, self.kernels_[:, 0].max() + 1)
        tiles = on_kernel(features[:, self.sides_], made[:, TILE])
        return np.hstack([features, tiles, made[:, TILE.stop :], made[:, :1] == makers])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers, for a file."""
        plain = {"kernels": self.kernels_, "pieces": self.pieces_, "sides": self.sides_}
        kept = {name: numbers.astype(np.int16) for name, numbers in plain.items()}
        nets = self.choice_.kept("choice", COARSE) | self.times_.kept("times")
        return {**kept, **nets, **self.left_.arrays("left")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What `arrays` gave."""
        made = cls()
        made.kernels_ = finite(arrays, "kernels", None, None)
        made.pieces_ = finite(arrays, "pieces", len(made.kernels_), None).astype(np.int64)
        made.sides_ = finite(arrays, "sides", len(SIDES)).astype(np.int64)
        made.choice_, made.times_ = (Nets.of_kept(arrays, name) for name in ("choice", "times"))
        if made.pieces_.min() < 0 or made.pieces_.max() + 2 != made.choice_.layers_[-1][1].shape[-1]:
            raise ValueError("its kernels and the nets that choose between them do not fit")
        given = made._on(np.ones((1, len(arrays["columns"]))), np.zeros(1, np.int64)).shape[1]
        made.left_ = Forest.from_arrays(arrays, "left", given + 2)  # beside them the state, and what the nets say
        return made


def _table(kernels: Sequence[Kernel]) -> Floats:
    """A row per kernel, after one for all others: maker by number, tile, and whether each kind of helper runs beside.

    >>> _table([Kernel("b", 64, 32, 8), Kernel("a", around=">")]).tolist()
    [[-1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 64.0, 32.0, 8.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]]
    """
    makers, letters = sorted({kernel.maker for kernel in kernels}), sorted(set("".join(k.around for k in kernels)))
    rows = [(makers.index(k.maker), *k[1:5], *(letter in k.around for letter in letters)) for k in kernels]
    return np.array([(-1, *[0] * (4 + len(letters))), *rows], np.float64)


def _pieces(table: Floats) -> NDArray[np.int64]:
    """What speaks for each kernel: its maker, its tile, and what runs around it, each of them shared with others.

    >>> _pieces(_table([Kernel("b", 64, 32, 8), Kernel("b", around=">")])).tolist()
    [[0, 2, 4], [1, 3, 4], [1, 2, 5]]
    """
    found, outputs = [], 0
    for part in (table[:, :1], table[:, TILE], table[:, TILE.stop :]):
        if part.size:
            _, place = np.unique(part, axis=0, return_inverse=True)
            found.append(outputs + place.ravel())
            outputs += int(place.max()) + 1
    return np.stack(found, axis=1)
