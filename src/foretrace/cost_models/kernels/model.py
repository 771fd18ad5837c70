"""The fitted model of a kernel family: an estimator, its error range, the kernels a call launches, and where it is
valid."""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from foretrace._lazy import LazyMapping
from foretrace.cost_models.kernels.estimators.dataset import Dataset, Floats
from foretrace.cost_models.kernels.estimators.forests import Forest
from foretrace.cost_models.kernels.estimators.npz import finite, read_arrays
from foretrace.cost_models.kernels.exact import ExactTimes, short_name
from foretrace.cost_models.kernels.families import FAMILIES, Family
from foretrace.cost_models.kernels.reliability import ErrorRange, Support
from foretrace.cost_models.kernels.roofline import RooflineFallback
from foretrace.errors import ForetraceError

if TYPE_CHECKING:
    from foretrace.cost_models.kernels.estimators.residual import Blend, ResidualNet, ResidualTrees, ScaledRoofline
    from foretrace.cost_models.kernels.selection import KernelSelection
    from foretrace.platform.measurements.kernels import Repeat

    Estimator = ScaledRoofline | ResidualTrees | ResidualNet | Blend | KernelSelection

ESTIMATORS = {
    "roofline": "estimators.residual.ScaledRoofline",
    "trees": "estimators.residual.ResidualTrees",
    "net": "estimators.residual.ResidualNet",
    "blend": "estimators.residual.Blend",
    "likely": "selection.KernelSelection",
}
"""By the names in files and in `platform show`: the class, which is imported when a model of its kind is read."""
MAX_EXTRAPOLATION = 2.0
"""A call may have so many times more work than any measured one and still be answered by the model."""
MIN_SEEN = 3
"""Kernel sequences that were seen less often are not learned."""
MAX_LEAVES = 1000
"""Leaves of the tree that selects kernel sequences."""


class KernelSequences:
    """The kernels a call launches, in order, and their shares of its time: a decision tree from features to
    sequences."""

    def fit(self, calls: Dataset) -> Self:
        """Learn which sequence goes with which features."""
        from sklearn.tree import DecisionTreeClassifier

        sequences = [tuple(short_name(name) for name, _ in repeat) for repeat in calls.kernels]
        counts = Counter(sequences)
        common = [seen for seen, count in counts.most_common() if count >= MIN_SEEN]
        self.kernels_ = common or [counts.most_common(1)[0][0]]
        self.shares_ = _mean_shares(self.kernels_, sequences, calls.kernels)
        code = {sequence: place for place, sequence in enumerate(self.kernels_)}
        known = np.array([code.get(sequence, -1) for sequence in sequences])
        learned = DecisionTreeClassifier(max_leaf_nodes=MAX_LEAVES, random_state=7)
        learned.fit(calls.features[known >= 0], known[known >= 0])
        self.tree_ = Forest.of([_nested(learned.tree_, learned.classes_, 0)])
        return self

    def predict(self, features: Floats) -> NDArray[np.int64]:
        """The number of the sequence that each row launches."""
        return self.tree_.predict(features).astype(np.int64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tree and the names, for a file."""
        text = json.dumps({"kernels": self.kernels_, "shares": self.shares_})
        return {**self.tree_.arrays("pattern"), "pattern.sequences": np.frombuffer(text.encode(), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The sequences that `arrays` came from; ``columns`` among the arrays names the features."""
        made = cls()
        known = json.loads(arrays["pattern.sequences"].tobytes())
        made.kernels_ = [tuple(sequence) for sequence in known["kernels"]]
        made.shares_ = [tuple(shares) for shares in known["shares"]]
        made.tree_ = Forest.from_arrays(arrays, "pattern", len(arrays["columns"]))
        leaves = made.tree_.threshold[made.tree_.feature < 0]
        if not ((leaves >= 0) & (leaves < len(made.kernels_))).all() or len(made.shares_) != len(made.kernels_):
            raise ValueError("the sequences of kernels and the tree that selects them do not fit")
        return made


def _mean_shares(
    wanted: Sequence[tuple[str, ...]], sequences: Sequence[tuple[str, ...]], repeats: Sequence[Repeat]
) -> list[tuple[float, ...]]:
    """Mean share of each kernel of a sequence in the time of all."""
    seen = defaultdict(list)
    for sequence, repeat in zip(sequences, repeats):
        total = sum(us for _, us in repeat) or 1.0
        seen[sequence].append([us / total for _, us in repeat])
    return [tuple(np.mean(seen[sequence], axis=0).round(4).tolist()) for sequence in wanted]


def _nested(tree: Any, classes: NDArray[Any], node: int) -> dict[str, Any]:
    """The nodes of a fitted scikit-learn tree as nested ones."""
    if tree.children_left[node] < 0:
        return {"leaf_value": float(classes[int(np.argmax(tree.value[node]))])}
    return {
        "split_feature": int(tree.feature[node]),
        "threshold": float(tree.threshold[node]),
        "left_child": _nested(tree, classes, tree.children_left[node]),
        "right_child": _nested(tree, classes, tree.children_right[node]),
    }


class ModelledCalls(NamedTuple):
    """Calls as a family's model prices them, a row each."""

    us: Floats
    """Microseconds, a column per cache state."""
    low: Floats
    """Logarithms of the 10th percentile over the predicted time, and of the 90th: at most and at least 0."""
    high: Floats
    covered: NDArray[np.bool_]
    """Whether they are like those that the model was fitted on."""
    known: NDArray[np.bool_]
    """Whether, beside that, the model is seldom far off at such calls."""

    def rows(self, which: Sequence[int]) -> ModelledCalls:
        """Some of the calls, in this order."""
        return ModelledCalls(self.us[which], self.low[which], self.high[which], self.covered[which], self.known[which])


@dataclass(frozen=True, eq=False)
class FamilyModel:
    """Times of a family's calls on one device."""

    family: Family
    estimator: Estimator
    errors: ErrorRange
    sequences: KernelSequences
    most_roof_us: float
    """The largest roofline of a call that it was fitted on."""
    support: Support | None = None
    """None where the model was fitted before this was kept."""

    def price(self, calls: Dataset) -> ModelledCalls:
        """The times of calls, and how far they may be off."""
        us, signals = self.estimator.predict_with_signals(calls)
        low, high, reliable = self.errors.around(calls.features, us, signals)
        covered = self.covers(calls)
        return ModelledCalls(us, low, high, covered, covered & reliable)

    def covers(self, calls: Dataset) -> NDArray[np.bool_]:
        """Whether each call lies in the range that the model was fitted on."""
        small = np.asarray(calls.roof_us <= MAX_EXTRAPOLATION * self.most_roof_us)
        return small & self.support.holds(calls.features) if self.support else small

    def write(self, folder: Path) -> None:
        """Write it to ``<family>.npz``: plain numbers."""
        kind = next(name for name, path in ESTIMATORS.items() if path.endswith(f".{type(self.estimator).__name__}"))
        arrays: dict[str, Any] = {
            "kind": np.array(kind),
            "columns": np.array(self.family.columns),
            "most_roof_us": np.array(self.most_roof_us),
            **self.errors.arrays(),
            **({f"support.{name}": array for name, array in vars(self.support).items()} if self.support else {}),
            **self.estimator.arrays(),
            **self.sequences.arrays(),
        }
        np.savez_compressed(folder / f"{self.family.name}.npz", **arrays)

    @classmethod
    def read(cls, folder: Path, name: str) -> FamilyModel:
        """Read what `write` wrote; a damaged file, or one of other columns, is refused."""
        path, family = folder / f"{name}.npz", FAMILIES[name]
        try:
            arrays = read_arrays(path)
            if tuple(arrays["columns"].tolist()) != family.columns:
                raise ForetraceError(
                    f"{path} was fitted for other features than this Foretrace has",
                    "Fit it again from its measurements: foretrace calibrate fit.",
                )
            module, _, kind = ESTIMATORS[str(arrays["kind"])].rpartition(".")
            estimator = getattr(import_module(f"foretrace.cost_models.kernels.{module}"), kind).from_arrays(arrays)
            most = float(finite(arrays, "most_roof_us"))
            errors, sequences = ErrorRange.from_arrays(arrays, estimator.signals), KernelSequences.from_arrays(arrays)
            return cls(family, estimator, errors, sequences, most, Support.from_arrays(arrays))
        except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise ForetraceError(
                f"{path} is not a fitted model ({error})", "Restore it, or fit it again: foretrace calibrate fit."
            ) from None


@dataclass(frozen=True, eq=False)
class DeviceModels:
    """All models of a device."""

    families: Mapping[str, FamilyModel]
    fallback: RooflineFallback
    exact: ExactTimes


def device_models(folder: Path) -> DeviceModels:
    """The models in a folder; read once, and again when they were fitted anew."""
    changed = max((path.stat().st_mtime_ns for path in folder.glob("*")), default=0)
    return _read(folder.resolve(), changed)


@lru_cache(maxsize=8)
def _read(folder: Path, changed: int) -> DeviceModels:
    # A step has calls of some families only: each model is read on first use.
    fitted = [name for name in FAMILIES if (folder / f"{name}.npz").exists()]
    families = LazyMapping(fitted, lambda name: FamilyModel.read(folder, name))
    return DeviceModels(families, RooflineFallback.read(folder), ExactTimes.read(folder))
