"""Fitting kernel models: each family gets the estimator with the least error on calls that it was not fitted on."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace._progress import OnProgress, Progress
from foretrace.cost_models.kernels.estimators.dataset import Dataset, Floats, dataset_of
from foretrace.cost_models.kernels.estimators.npz import read_arrays
from foretrace.cost_models.kernels.estimators.residual import Blend, ResidualTrees, ScaledRoofline
from foretrace.cost_models.kernels.exact import ExactTimes
from foretrace.cost_models.kernels.families import FAMILIES, Family
from foretrace.cost_models.kernels.model import FamilyModel, KernelSequences
from foretrace.cost_models.kernels.reliability import ERROR_ARRAYS, ErrorRange, Support
from foretrace.cost_models.kernels.roofline import RooflineFallback
from foretrace.cost_models.kernels.selection import KernelSelection
from foretrace.errors import ForetraceError
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import EXACT
from foretrace.platform.measurements.kernels import read_all
from foretrace.platform.platform import INDEX
from foretrace.platform.typed_json import read_object

if TYPE_CHECKING:
    from foretrace.cost_models.kernels.model import Estimator

FOREST_SIZES = {30_000: (1200, 255), 20_000: (1200, 127), 5_000: (900, 63), 0: (500, 31)}
"""Trees and their leaves, by the number of calls from which on a family gets so many."""
QUICK_FOREST = 200, 31
"""Trees and leaves of a family whose fit must take seconds."""
FULL_TIMES = 15.0
"""Times as long as trees alone that a fit of all estimators takes at most."""
SAMPLED_CALLS = 2000
"""Calls of a family that `estimated_errors` looks at."""
SMALL_FOREST = 100, 15
"""Trees and leaves with which it does so."""


def errors(predicted_us: Floats, measured_us: Floats) -> dict[str, float]:
    """Geometric mean, mean and 90th percentile of the relative error.

    >>> errors(np.array([1.1, 0.9]), np.array([1.0, 1.0]))
    {'gmae': 0.1, 'mean': 0.1, 'p90': 0.1}
    """
    off = np.abs(predicted_us / measured_us - 1)
    geometric = np.exp(np.log(np.maximum(off, 1e-4)).mean())
    return {
        name: round(float(v), 5)
        for name, v in (("gmae", geometric), ("mean", off.mean()), ("p90", np.quantile(off, 0.9)))
    }


def fit_models(
    raw: Path,
    device: Device,
    out: Path,
    on_progress: OnProgress = lambda progress: None,
    before: Path | None = None,
    until: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Fit all families that were measured, write their models, and return the errors of each.

    ``before`` holds models that were fitted for the same device: a family without new measurements keeps its own. With
    ``until``, a time of the monotonic clock, all families get trees first, which take seconds; those that matter most
    are then fitted as without it, as long as there is time.
    """
    measured = read_all(raw, *FAMILIES)
    datasets = {name: dataset_of(family, measured, device) for name, family in FAMILIES.items()}
    index = _reused(before, datasets, out) if before else {}
    took: dict[str, float] = {}
    for name, family in FAMILIES.items():
        if name in index:
            continue
        on_progress(Progress(f"fitting {name}"))
        begun = time.monotonic()
        fitted = fit_family(family, datasets[name]) if until is None else fit_family(family, datasets[name], quick=True)
        if fitted:
            model, index[name] = fitted
            model.write(out)
            took[name] = time.monotonic() - begun
    for name in _by_importance(index, took):
        if until is not None and time.monotonic() + FULL_TIMES * took[name] < until:
            on_progress(Progress(f"fitting {name} more closely"))
            better = fit_family(FAMILIES[name], datasets[name])
            if better:
                model, index[name] = better
                model.write(out)
    RooflineFallback.fit(_without_features(datasets.values())).write(out)
    exact = [m for m in read_all(raw, EXACT) if not m.error and m.cold and m.warm]
    if exact:
        ExactTimes.measured(exact).write(out)
    return {name: index[name] for name in FAMILIES if name in index}


def _by_importance(index: Mapping[str, dict[str, Any]], took: Mapping[str, float]) -> list[str]:
    """Families that were fitted quickly, by their share of the measuring time and by their error."""
    return sorted(took, key=lambda name: -(FAMILIES[name].share + 1) * index[name]["gmae"])


def fit_family(family: Family, calls: Dataset, quick: bool = False) -> tuple[FamilyModel, dict[str, Any]] | None:
    """A family's model and its errors, None where too little was measured; ``quick`` leaves nets out."""
    if len(calls) < family.min_measurements:
        return None
    held_out = _held_out(family, calls, quick)
    measured_us = calls.per_call(calls.us)
    scores = {kind: errors(calls.per_call(us).ravel(), measured_us.ravel()) for kind, (us, _) in held_out.items()}
    best = min(scores, key=lambda kind: scores[kind]["gmae"])
    error_range = ErrorRange.of(calls, *held_out[best])
    estimator = _fit_estimators(family, calls, quick)[best]
    sequences = KernelSequences(family).fit(calls)
    roof, support = float(calls.roof_us.max()), Support.of(calls.features)
    model = FamilyModel(family, estimator, error_range, sequences, roof, support)
    others = {kind: score["gmae"] for kind, score in scores.items() if kind != best}
    return model, {"measurements": calls.calls, "kind": best, **scores[best], "others": others}


def recalibrate(folder: Path, name: str, held_out: Dataset) -> ErrorRange:
    """Learn the errors of a fitted model anew, from calls that it was not fitted on, and write them to its file.

    The estimator stays as it is: a fit may take hours, and calls of further models tell where it fails.
    """
    path, model = folder / f"{name}.npz", FamilyModel.read(folder, name)
    found = ErrorRange.of(held_out, *model.estimator.predict_with_signals(held_out))
    others = {key: array for key, array in read_arrays(path).items() if key.partition(".")[0] not in ERROR_ARRAYS}
    np.savez_compressed(path, **{**others, **found.arrays()})  # type: ignore[arg-type]
    return found


def estimated_errors(raw: Path, device: Device) -> dict[str, float]:
    """Held-out geometric mean error of each family, estimated in seconds with small forests on some of its calls.

    It ranks families while a calibration runs; the fitted models are better. A family with too few calls is left out.
    """
    found = {}
    trees, leaves = SMALL_FOREST
    for name, family in FAMILIES.items():
        measured = read_all(raw, name)
        sample = random.Random(7).sample(measured, min(SAMPLED_CALLS, len(measured)))
        calls = dataset_of(family, sample, device)
        if len(calls) < family.min_measurements:
            continue
        inside, outside = calls.folds()[0]
        model = ResidualTrees().fit(calls.subset(inside), trees=trees, leaves=leaves)
        found[name] = errors(model.predict_both(calls.subset(outside)).ravel(), calls.us[outside].ravel())["gmae"]
    return found


def _reused(before: Path, datasets: Mapping[str, Dataset], out: Path) -> dict[str, dict[str, Any]]:
    """Copy the models that were fitted on as many calls as there are now: measurements are only ever added to."""
    reused = {}
    try:
        known = read_object(before / Path(INDEX).name)
    except ForetraceError:
        return {}
    for name, found in known.items():
        try:
            if found["measurements"] == datasets[name].calls:
                FamilyModel.read(before, name)
                shutil.copy(before / f"{name}.npz", out)
                reused[name] = found
        except (ForetraceError, LookupError, TypeError):
            continue  # what can't be read is fitted anew
    return reused


def _without_features(parts: Collection[Dataset]) -> Dataset:
    """Calls of several families, which have no columns in common."""
    flops_us, bytes_us, us = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("flops_us", "bytes_us", "us")
    )
    return Dataset(np.zeros((len(us), 0)), flops_us, bytes_us, us, [])


def _held_out(family: Family, calls: Dataset, quick: bool) -> dict[str, tuple[Floats, Floats]]:
    """Predictions and signals of each row by estimators that were not fitted on it, by kind of estimator."""
    found: dict[str, tuple[Floats, Floats]] = {}
    for inside, outside in calls.folds():
        for kind, model in _fit_estimators(family, calls.subset(inside), quick).items():
            us, signals = found.setdefault(kind, (np.empty_like(calls.us), np.empty((len(calls), model.signals))))
            us[outside], signals[outside] = model.predict_with_signals(calls.subset(outside))
    return found


def _fit_estimators(family: Family, calls: Dataset, quick: bool) -> dict[str, Estimator]:
    """An estimator of each kind, or of those that take seconds; the parts of a blend are fitted once."""
    if quick:
        return {"roofline": ScaledRoofline().fit(calls), "trees": ResidualTrees().fit(calls, None, *QUICK_FOREST)}
    ran = [[name for name, _ in kernels] for kernels in calls.kernels]
    found = [family.kernel_traits(names) for names in ran]
    traits = np.array(found, np.float64) if found and found[0] else None
    trees, leaves = next(size for fewest, size in FOREST_SIZES.items() if len(calls) >= fewest)
    blend = Blend().fit(calls, traits, trees, leaves)
    fitted: dict[str, Estimator] = {
        "roofline": ScaledRoofline().fit(calls),
        "trees": blend.trees_,
        "net": blend.net_,
        "blend": blend,
    }
    kernels = [kernel for names in ran if (kernel := family.main_kernel(names))]
    if any(kernel.first for kernel in kernels):  # on a CPU no name tells a tile
        size_columns = [family.columns.index(column) for column in family.gemm_sizes]
        fitted["likely"] = KernelSelection().fit(calls, traits, kernels, size_columns)
    return fitted
