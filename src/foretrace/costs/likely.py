"""Matrix products by the kernels that are likely to run.

A library has hundreds of kernels for products. Which one it takes jumps with the sizes, and with it the time; but given
the kernel, the time follows from how many tiles the busiest multiprocessor has. So one half of the nets says which
kernel runs, learned from names, and the other how long a kernel takes, learned from those that ran; trees learn what
the latter leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from foretrace.costs.arrays import finite
from foretrace.costs.families.tilings import SIDES, Kernel, on_kernel, tiled
from foretrace.costs.nets import Nets, missed
from foretrace.costs.rows import Floats, Rows, both_states
from foretrace.costs.trees import Forest

KERNELS = 320
"""Kernels that are told apart; all that are rarer count as one."""
LIKELY = 3
"""Kernels of a call that are timed at most."""
UNLIKELY = 0.15
"""A kernel with less of a chance than this is not timed, but for the likeliest."""
TREES, LEAVES = 1200, 63
"""For what the nets leave."""
PREFERRED = 5.0
"""By which power of its rate a kernel is likelier than its chance: a library looks for the fastest."""


class LikelyKernels:
    """What a call takes on each of the kernels that are likely to run it: the mean of logarithms, by their chances."""

    def fit(self, rows: Rows, latents: Floats | None, kernels: Sequence[Kernel], names: Sequence[str]) -> Self:
        """Fit on both states at once.

        Parameters
        ----------
        rows
            Measured calls.
        latents
            Facts about the kernels that ran, a row per call.
        kernels
            What ran, by call.
        names
            Those of the rows' features.
        """
        from foretrace.costs.boosting import boost

        common = [kernel for kernel, _ in Counter(kernels).most_common(KERNELS - 1)]
        makers = sorted({kernel.maker for kernel in common})
        numbers = {kernel: number for number, kernel in enumerate(common, 1)}
        self.places_ = np.array([list(names).index(name) for name in SIDES])
        self.kernels_ = np.array([(-1, 0, 0, 0, 0), *((makers.index(k.maker), *k[1:]) for k in common)], np.float64)
        ran = np.array([numbers.get(kernel, 0) for kernel in kernels])
        facts = np.tile(latents, (2, 1)) if latents is not None else None
        self.choice_ = Nets().learn(both_states(self._asked(rows.features)), missed(rows), facts, np.tile(ran, 2))
        columns = both_states(self._on(rows.features, ran))
        self.times_ = Nets().learn(columns, missed(rows), facts)
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
        speaks = self.choice_.answers(cold)[:, 1:]
        chances = np.exp(speaks - speaks.max(axis=1, keepdims=True))
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))

    def _timed(self, columns: Floats) -> Floats:
        """Logarithms of what calls take on kernels, beyond their rooflines."""
        said = self.times_.answers(columns)[:, :1]
        return said[:, 0] + self.left_.predict(np.hstack([columns, said]))

    def _asked(self, features: Floats) -> Floats:
        return np.hstack([features, tiled(features[:, self.places_])])

    def _on(self, features: Floats, kernels: NDArray[np.int64]) -> Floats:
        """Calls, with what each means for a kernel, given by number."""
        which, tiles = self.kernels_[kernels, 0], self.kernels_[kernels, 1:]
        makers = np.arange(-1, self.kernels_[:, 0].max() + 1)
        return np.hstack([features, on_kernel(features[:, self.places_], tiles), which[:, None] == makers])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers, for a file."""
        nets = self.choice_.kept("choice") | self.times_.kept("times")
        return {"kernels": self.kernels_.astype(np.int16), "places": self.places_, **nets, **self.left_.arrays("left")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What `arrays` gave."""
        made = cls()
        made.kernels_ = finite(arrays, "kernels", None, 5)
        made.places_ = finite(arrays, "places", len(SIDES)).astype(np.int64)
        made.choice_, made.times_ = (Nets.of_kept(arrays, name) for name in ("choice", "times"))
        given = made._on(np.ones((1, len(arrays["columns"]))), np.zeros(1, np.int64)).shape[1]
        made.left_ = Forest.from_arrays(arrays, "left", given + 2)  # beside them the state, and what the nets say
        return made
