"""The fitted model of a kernel family: an estimator, its error range, the kernels a call launches, and where it is
valid."""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from foretrace._lazy import LazyMapping
from foretrace.cost_models.kernels.estimators.dataset import Dataset
from foretrace.cost_models.kernels.estimators.forests import Forest
from foretrace.cost_models.kernels.estimators.npz import finite, read_arrays
from foretrace.cost_models.kernels.exact import ExactTimes, short_name
from foretrace.cost_models.kernels.families import FAMILIES, Family
from foretrace.cost_models.kernels.reliability import ErrorRange, Support
from foretrace.cost_models.kernels.roofline import RooflineFallback
from foretrace.errors import ForetraceError
from foretrace.graph.tables import Floats
from foretrace.platform.platform import PRIOR, PRIOR_FILE

if TYPE_CHECKING:
    from foretrace.cost_models.kernels.estimators.difference import Difference, PriorTimes
    from foretrace.cost_models.kernels.estimators.residual import Blend, ResidualNet, ResidualTrees, ScaledRoofline
    from foretrace.cost_models.kernels.prior import PriorModels
    from foretrace.cost_models.kernels.selection import KernelSelection
    from foretrace.platform.measurements.kernels import Repeat

    Estimator = ScaledRoofline | ResidualTrees | ResidualNet | Blend | KernelSelection | PriorTimes | Difference

ESTIMATORS = {
    "roofline": "estimators.residual.ScaledRoofline",
    "trees": "estimators.residual.ResidualTrees",
    "net": "estimators.residual.ResidualNet",
    "blend": "estimators.residual.Blend",
    "likely": "selection.KernelSelection",
    "prior": "estimators.difference.PriorTimes",
    "difference": "estimators.difference.Difference",
}
"""By the names in files and in `platform show`: the class, which is imported when a model of its kind is read."""
MAX_EXTRAPOLATION = 2.0
"""A call may have so many times more work than any measured one and still be answered by the model."""
MIN_SEEN = 3
"""Kernel sequences that were seen less often are not learned."""
MAX_TIMES = 64.0
"""How often a kernel may run in a turn of a call's loop, according to a file."""
MAX_LEAVES = 1000
"""Leaves of the tree that selects kernel sequences."""


class KernelSequences:
    """The kernels a call launches, in order, and their shares of its time: a decision tree from features to
    sequences. Kernels that a call goes through again and again are one of its sequence."""

    def __init__(self, family: Family) -> None:
        self.family = family

    def fit(self, calls: Dataset) -> Self:
        """Learn which sequence goes with which features."""
        from sklearn.tree import DecisionTreeClassifier

        repeats = self.family.repeats(calls.features).tolist()
        seen = [_folded(repeat, count) for repeat, count in zip(calls.kernels, repeats)]
        counts = Counter(sequence for sequence, _ in seen)
        common = [sequence for sequence, count in counts.most_common() if count >= MIN_SEEN]
        common = common or [counts.most_common(1)[0][0]]
        self.kernels_ = [tuple(name for name, _ in sequence) for sequence in common]
        self.times_ = [tuple(times for _, times in sequence) for sequence in common]
        self.shares_ = _mean_shares(common, seen)
        code = {sequence: place for place, sequence in enumerate(common)}
        known = np.array([code.get(sequence, -1) for sequence, _ in seen])
        learned = DecisionTreeClassifier(max_leaf_nodes=MAX_LEAVES, random_state=7)
        learned.fit(calls.features[known >= 0], known[known >= 0])
        self.tree_ = Forest.of([_nested(learned.tree_, learned.classes_, 0)])
        return self

    def predict(self, features: Floats) -> list[Launched]:
        """The kernels that each row launches, and their shares of its time."""
        numbers = self.tree_.predict(features).astype(np.int64).tolist()
        found = []
        for number, repeats in zip(numbers, self.family.repeats(features).tolist()):
            kernels, shares, times = self.kernels_[number], self.shares_[number], self.times_[number]
            if any(times):
                copies = [max(1, round(each * repeats)) for each in times]
                kernels = tuple(name for name, count in zip(kernels, copies) for _ in range(count))
                shares = tuple(share / count for share, count in zip(shares, copies) for _ in range(count))
            found.append((kernels, shares))
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tree and the names, for a file."""
        text = json.dumps({"kernels": self.kernels_, "times": self.times_, "shares": self.shares_})
        return {**self.tree_.arrays("pattern"), "pattern.sequences": np.frombuffer(text.encode(), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], family: Family) -> Self:
        """The sequences that `arrays` came from; ``columns`` among the arrays names the features."""
        made = cls(family)
        known = json.loads(arrays["pattern.sequences"].tobytes())
        made.kernels_ = [tuple(sequence) for sequence in known["kernels"]]
        made.shares_ = [tuple(shares) for shares in known["shares"]]
        made.times_ = [
            tuple(map(float, times)) for times in known.get("times", [[0.0] * len(k) for k in made.kernels_])
        ]
        made.tree_ = Forest.from_arrays(arrays, "pattern", len(arrays["columns"]))
        leaves = made.tree_.threshold[made.tree_.feature < 0]
        counts = [[len(each) for each in part] for part in (made.kernels_, made.shares_, made.times_)]
        if not ((leaves >= 0) & (leaves < len(made.kernels_))).all() or not counts[0] == counts[1] == counts[2]:
            raise ValueError("the sequences of kernels and the tree that selects them do not fit")
        if not all(0 <= each <= MAX_TIMES for times in made.times_ for each in times):
            raise ValueError("its kernels run again and again too often")
        return made


Launched = tuple[tuple[str, ...], tuple[float, ...]]
"""The kernels that a call launches, and their shares of its time."""
Folded = tuple[tuple[str, float], ...]
"""Kernels, each with how often it runs in a turn of the call's loop; 0 for one that runs once."""


def _folded(repeat: Repeat, turns: float) -> tuple[Folded, tuple[float, ...]]:
    """The kernels of a call and their microseconds; those of a loop of several turns as one each.

    >>> _folded([("gemm", 2.0), ("cell", 1.0), ("gemm", 2.0), ("cell", 1.0), ("copy", 3.0)], turns=2)
    ((('gemm', 1.0), ('cell', 1.0), ('copy', 0.0)), (4.0, 2.0, 3.0))
    """
    names = [short_name(name) for name, _ in repeat]
    if turns <= 1:
        return tuple((name, 0.0) for name in names), tuple(us for _, us in repeat)
    total: defaultdict[str, float] = defaultdict(float)
    for name, (_, us) in zip(names, repeat):
        total[name] += us
    count = Counter(names)
    looped = {name: round(4 * count[name] / turns) / 4 if count[name] >= turns else 0.0 for name in total}
    return tuple((name, looped[name]) for name in total), tuple(total.values())


def _mean_shares(wanted: Sequence[Folded], seen: Sequence[tuple[Folded, tuple[float, ...]]]) -> list[tuple[float, ...]]:
    """Mean share of each kernel of a sequence in the time of all."""
    shares = defaultdict(list)
    for sequence, us in seen:
        total = sum(us) or 1.0
        shares[sequence].append([each / total for each in us])
    return [tuple(np.mean(shares[sequence], axis=0).round(4).tolist()) for sequence in wanted]


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


class FamilyModel(NamedTuple):
    """Times of a family's calls on one device."""

    family: Family
    estimator: Estimator
    errors: ErrorRange
    sequences: KernelSequences | None
    """None where those of the prior are taken."""
    most_roof_us: float
    """The largest roofline of a call that it was fitted on."""
    support: Support | None = None
    """None where the model was fitted before this was kept."""

    @property
    def uses_prior(self) -> bool:
        """Whether it needs what the prior says of its calls."""
        return bool(self.estimator.uses_prior) or self.sequences is None

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
            **({f"support.{name}": array for name, array in self.support._asdict().items()} if self.support else {}),
            **self.estimator.arrays(),
            **(self.sequences.arrays() if self.sequences else {}),
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
            errors = ErrorRange.from_arrays(arrays, estimator.signals)
            sequences = KernelSequences.from_arrays(arrays, family) if "pattern.sequences" in arrays else None
            return cls(family, estimator, errors, sequences, most, Support.from_arrays(arrays))
        except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise ForetraceError(
                f"{path} is not a fitted model ({error})", "Restore it, or fit it again: foretrace calibrate fit."
            ) from None


class DeviceModels(NamedTuple):
    """All models of a device."""

    families: Mapping[str, FamilyModel]
    fallback: RooflineFallback
    exact: ExactTimes
    prior: PriorModels | None = None
    """What families without measurements are priced by, and others are a difference to."""


def device_models(folder: Path) -> DeviceModels:
    """The models in a folder; read once, and again when they were fitted anew."""
    changed = max((path.stat().st_mtime_ns for path in folder.glob("*")), default=0)
    return _read(folder.resolve(), changed)


@lru_cache(maxsize=8)
def _read(folder: Path, changed: int) -> DeviceModels:
    # A step has calls of some families only: each model is read on first use.
    fitted = [name for name in FAMILIES if (folder / f"{name}.npz").exists()]
    families = LazyMapping(fitted, lambda name: FamilyModel.read(folder, name))
    prior = None
    if (folder / PRIOR / PRIOR_FILE).is_file():
        from foretrace.cost_models.kernels.prior import PriorModels  # which imports this module

        prior = PriorModels.read(folder / PRIOR)
    return DeviceModels(families, RooflineFallback.read(folder), ExactTimes.read(folder), prior)
