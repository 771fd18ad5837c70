"""The fitted model of a family: an estimator, how far it may be off, what kernels there are, where to trust it."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.estimators.dataset import Floats, Rows
from foretrace.cost_models.kernels.estimators.forests import Forest
from foretrace.cost_models.kernels.estimators.nets import ResidualNet
from foretrace.cost_models.kernels.estimators.npz import finite, read_arrays
from foretrace.cost_models.kernels.estimators.residual import Blend, ResidualTrees, ScaledRoofline
from foretrace.cost_models.kernels.families import FAMILIES, Family
from foretrace.cost_models.kernels.selection import LikelyKernels
from foretrace.graph import ForetraceError

if TYPE_CHECKING:
    from foretrace.platform.measurements import Repeat

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


# --- was cost_models.patterns: Which kernels a call launches, in order, and what share of its time each takes.

RARE = 3
"""Sequences that were seen less often teach nothing."""
LEAVES = 1000

_ENDS = re.compile(r"_tilesize|_\d+x\d+|_sm\d+_|_f\d+f\d+|_bf16|_align\d")


@cache
def short(kernel: str) -> str:
    """A kernel's name without its template arguments, tiles and types.

    >>> short("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)")
    'vectorized_elementwise_kernel'
    >>> short("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"), short("Memset (Device)")
    ('nvjet', 'Memset')
    """
    if "cutlass" in kernel:
        return "cutlass"
    name = re.split(r"[<(]", kernel.replace("(anonymous namespace)::", ""))[0].strip()
    return _ENDS.split(name.split("::")[-1].split(" ")[-1])[0] or kernel[:40]


class Patterns:
    """A decision tree from features to a sequence of kernels."""

    def fit(self, rows: Rows) -> Self:
        """Learn which sequence goes with which features."""
        from sklearn.tree import DecisionTreeClassifier

        sequences = [tuple(short(name) for name, _ in repeat) for repeat in rows.kernels]
        counts = Counter(sequences)
        self.kernels_ = [seen for seen, count in counts.most_common() if count >= RARE] or [counts.most_common(1)[0][0]]
        self.shares_ = _shares(self.kernels_, sequences, rows.kernels)
        code = {sequence: place for place, sequence in enumerate(self.kernels_)}
        known = np.array([code.get(sequence, -1) for sequence in sequences])
        learned = DecisionTreeClassifier(max_leaf_nodes=LEAVES, random_state=7)
        learned.fit(rows.features[known >= 0], known[known >= 0])
        self.tree_ = Forest.of([_nested(learned.tree_, learned.classes_, 0)])
        return self

    def predict(self, features: Floats) -> NDArray[np.int64]:
        """Which of the sequences each row launches."""
        return self.tree_.predict(features).astype(np.int64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers and names, for a file."""
        text = json.dumps({"kernels": self.kernels_, "shares": self.shares_})
        return {**self.tree_.arrays("pattern"), "pattern.sequences": np.frombuffer(text.encode(), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What `arrays` gave, beside the names of the ``columns`` it was fitted on."""
        made = cls()
        known = json.loads(arrays["pattern.sequences"].tobytes())
        made.kernels_ = [tuple(sequence) for sequence in known["kernels"]]
        made.shares_ = [tuple(shares) for shares in known["shares"]]
        made.tree_ = Forest.from_arrays(arrays, "pattern", len(arrays["columns"]))
        answers = made.tree_.threshold[made.tree_.feature < 0]
        if not ((answers >= 0) & (answers < len(made.kernels_))).all() or len(made.shares_) != len(made.kernels_):
            raise ValueError("the sequences of kernels and the tree that picks them do not fit")
        return made


def _shares(
    wanted: Sequence[tuple[str, ...]], sequences: Sequence[tuple[str, ...]], repeats: Sequence[Repeat]
) -> list[tuple[float, ...]]:
    """Mean share of each kernel of a sequence in the time of all."""
    seen = defaultdict(list)
    for sequence, repeat in zip(sequences, repeats):
        total = sum(us for _, us in repeat) or 1.0
        seen[sequence].append([us / total for _, us in repeat])
    return [tuple(np.mean(seen[sequence], axis=0).round(4).tolist()) for sequence in wanted]


def _nested(tree: Any, classes: NDArray[Any], node: int) -> dict[str, Any]:
    """A fitted tree's nodes as nested ones."""
    if tree.children_left[node] < 0:
        return {"leaf_value": float(classes[int(np.argmax(tree.value[node]))])}
    return {
        "split_feature": int(tree.feature[node]),
        "threshold": float(tree.threshold[node]),
        "left_child": _nested(tree, classes, tree.children_left[node]),
        "right_child": _nested(tree, classes, tree.children_right[node]),
    }
