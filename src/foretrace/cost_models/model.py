"""The fitted model of a family: an estimator, how far it may be off, what kernels there are, where to trust it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.arrays import finite, read_arrays
from foretrace.cost_models.estimators import Blend, ResidualTrees, ScaledRoofline
from foretrace.cost_models.families import FAMILIES, Family
from foretrace.cost_models.likely import LikelyKernels
from foretrace.cost_models.nets import ResidualNet
from foretrace.cost_models.patterns import Patterns
from foretrace.cost_models.rows import Floats, Rows
from foretrace.graph import ForetraceError

Estimator = ScaledRoofline | ResidualTrees | ResidualNet | Blend | LikelyKernels
ESTIMATORS: dict[str, type[Estimator]] = {
    "roofline": ScaledRoofline,
    "trees": ResidualTrees,
    "net": ResidualNet,
    "blend": Blend,
    "likely": LikelyKernels,
}
BEYOND = 2.0
"""A call may do so many times more work than any that was measured and still be answered by the model."""
WIDEST = 50.0
"""Logarithm of how far a model may be off at most: no model is, and more can't be computed with."""


@dataclass(frozen=True)
class Spread:
    """How far the model was off on calls it had not seen: logarithms of 10th and 90th percentile, by predicted time."""

    edges_us: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, predicted_us: Floats, measured_us: Floats, bins: int = 6) -> Spread:
        """From predictions of held-out calls.

        >>> us = np.arange(1.0, 101.0)
        >>> Spread.of(us, us * 1.1, bins=2).high.round(3).tolist()
        [0.095, 0.095]
        """
        edges = np.quantile(predicted_us, np.linspace(0, 1, bins + 1)[1:-1])
        place, off = np.searchsorted(edges, predicted_us), np.log(measured_us / predicted_us)
        found = [off[place == k] for k in range(bins)]
        low, high = (np.array([np.quantile(f, q) if len(f) else 0.0 for f in found]) for q in (0.1, 0.9))
        return cls(edges, low, high)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Spread:
        """As `Model.write` wrote it; a ValueError for numbers that are no spread."""
        edges = finite(arrays, "spread.edges_us", None)
        low, high = (finite(arrays, f"spread.{name}", len(edges) + 1) for name in ("low", "high"))
        if (low > high).any() or max(-low.min(), high.max()) > WIDEST:
            raise ValueError("its spread is none")
        return cls(edges, low, high)

    def around(self, us: Floats) -> tuple[Floats, Floats]:
        """Low and high of predictions."""
        place = np.searchsorted(self.edges_us, us)
        return us * np.exp(self.low[place]), us * np.exp(self.high[place])


@dataclass(frozen=True)
class Model:
    """What a family's calls take on one device."""

    family: Family
    estimator: Estimator
    spread: Spread
    patterns: Patterns
    most_roof_us: float
    """The most work that a call had which it was fitted on, as a roofline."""

    def knows(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a row lies where the model was fitted."""
        return np.asarray(rows.roof_us <= BEYOND * self.most_roof_us)

    def write(self, folder: Path) -> None:
        """Into ``<family>.npz``: plain numbers."""
        kind = next(name for name, made in ESTIMATORS.items() if isinstance(self.estimator, made))
        arrays: dict[str, Any] = {
            "kind": np.array(kind),
            "columns": np.array(self.family.columns),
            "most_roof_us": np.array(self.most_roof_us),
            **{f"spread.{name}": getattr(self.spread, name) for name in ("edges_us", "low", "high")},
            **self.estimator.arrays(),
            **self.patterns.arrays(),
        }
        np.savez_compressed(folder / f"{self.family.name}.npz", **arrays)

    @classmethod
    def read(cls, folder: Path, name: str) -> Model:
        """What `write` wrote; a damaged file, or one of other columns, is refused."""
        path, family = folder / f"{name}.npz", FAMILIES[name]
        try:
            arrays = read_arrays(path)
            if tuple(arrays["columns"].tolist()) != family.columns:
                raise ForetraceError(
                    f"{path} was fitted for other features than this Foretrace has",
                    "Fit it again from its measurements: foretrace calibrate fit.",
                )
            estimator = ESTIMATORS[str(arrays["kind"])].from_arrays(arrays)
            most = float(finite(arrays, "most_roof_us"))
            return cls(family, estimator, Spread.from_arrays(arrays), Patterns.from_arrays(arrays), most)
        except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise ForetraceError(
                f"{path} is not a fitted model ({error})", "Restore it, or fit it again: foretrace calibrate fit."
            ) from None
