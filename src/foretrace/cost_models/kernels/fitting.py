"""Fitting kernel models: each family gets the estimator with the least error on calls that it was not fitted on."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from foretrace._progress import OnProgress, Progress
from foretrace.cost_models.kernels.estimators.dataset import Dataset, dataset_of
from foretrace.cost_models.kernels.estimators.difference import Difference, PriorTimes
from foretrace.cost_models.kernels.estimators.npz import read_arrays
from foretrace.cost_models.kernels.estimators.residual import Blend, ResidualTrees, ScaledRoofline
from foretrace.cost_models.kernels.exact import ExactTimes
from foretrace.cost_models.kernels.families import FAMILIES, Family
from foretrace.cost_models.kernels.model import FamilyModel, KernelSequences
from foretrace.cost_models.kernels.reliability import ERROR_ARRAYS, ErrorRange, Support
from foretrace.cost_models.kernels.roofline import RooflineFallback
from foretrace.cost_models.kernels.selection import KernelSelection
from foretrace.errors import ForetraceError
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import EXACT
from foretrace.platform.measurements.kernels import SUFFIX, Measurement, read_all
from foretrace.platform.platform import INDEX, PRIOR, PRIOR_FILE
from foretrace.platform.prior import Prior
from foretrace.platform.typed_json import read_object
from foretrace.processes import worker_pool

if TYPE_CHECKING:
    from foretrace.cost_models.kernels.model import Estimator
    from foretrace.cost_models.kernels.prior import PriorModels

FOREST_SIZES = {30_000: (1200, 255), 20_000: (1200, 127), 5_000: (900, 63), 0: (500, 31)}
"""Trees and their leaves, by the number of calls from which on a family gets so many."""
PARALLEL_BYTES = 1_000_000
"""Of measurements, some five thousand calls, from which on several processes fit families within a time: each takes
seconds to start."""
MAX_PROCESSES = 12
"""Each reads all measurements, which take up to a gigabyte."""
PROCESS_THREADS = 2
"""Of a process among several that fit."""
FINISH_SECONDS = 5.0
"""Left of the time for ending processes and writing what does not belong to a family."""
QUICK_FOREST = 200, 31
"""Trees and leaves of a family whose fit must take seconds."""
FULL_TIMES = 15.0
"""Times as long as trees alone that a fit of all estimators takes at most."""
FALLBACK_CALLS = 200
"""Measured calls that the roofline fallback is fitted on where there is a prior, whose own is taken otherwise."""
SAMPLED_CALLS = 2000
"""Calls of a family that `estimated_errors` looks at."""
PRIOR_CALLS = 200
"""The same where a prior is asked about each, which takes a millisecond."""
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
    prior: Prior | None = None,
) -> dict[str, dict[str, Any]]:
    """Fit all families that were measured, write their models, and return the errors of each.

    ``before`` holds models that were fitted for the same device: a family without new measurements keeps its own. With
    ``until``, a time of the monotonic clock, all families get trees first, which take seconds; those that matter most
    are then fitted as without it, as long as there is time. With a ``prior``, which is copied, differences to it are
    fitted as well, and families with too few measurements are left to it.
    """
    known = _copied(prior, out) if prior else None
    count = _processes_for(raw) if until is not None else 1
    here = cache(lambda: read_all(raw, *FAMILIES))
    datasets: dict[str, Dataset] = {}
    if count == 1 or before:
        with_prior = None if count > 1 else known
        datasets = {name: dataset_of(family, here(), device, with_prior) for name, family in FAMILIES.items()}
    index = _reused(before, datasets, out) if before else {}
    todo = [name for name in FAMILIES if name not in index]
    took: dict[str, float] = {}
    if count > 1:
        deadline = until if known else None  # whose times are those of families that were not fitted by then
        tasks = [FitTask(name, raw, device, out) for name in todo]
        datasets |= _fit_apart(tasks, count, deadline, on_progress, index, took)
    for name in todo if count == 1 else ():
        on_progress(Progress(f"fitting {name}"))
        begun = time.monotonic()
        if _fit_and_write(name, datasets[name], out, index, quick=until is not None):
            took[name] = time.monotonic() - begun
    for name in _by_importance(index, took):
        if until is not None and time.monotonic() + FULL_TIMES * took[name] < until:
            on_progress(Progress(f"fitting {name} more closely"))
            calls = dataset_of(FAMILIES[name], here(), device, known) if count > 1 else datasets[name]
            _fit_and_write(name, calls, out, index)
    if known and sum(map(len, datasets.values())) < FALLBACK_CALLS:
        known.models.fallback.write(out)
    else:
        RooflineFallback.fit(_without_features(datasets.values())).write(out)
    exact = [m for m in read_all(raw, EXACT) if not m.error and m.cold and m.warm]
    if exact:
        ExactTimes.measured(exact).write(out)
    return {name: index[name] for name in FAMILIES if name in index}


def _fit_and_write(name: str, calls: Dataset, out: Path, index: dict[str, dict[str, Any]], quick: bool = False) -> bool:
    """Fit a family, write its model and note its errors; whether enough was measured."""
    fitted = fit_family(FAMILIES[name], calls, quick=True) if quick else fit_family(FAMILIES[name], calls)
    if fitted:
        model, index[name] = fitted
        model.write(out)
    return fitted is not None


class FitTask(NamedTuple):
    """A family to be fitted by another process, from measurements of a device to a folder of models."""

    family: str
    raw: Path
    device: Device
    out: Path


class Fitted(NamedTuple):
    """A model that another process fitted: its errors, and how long it took."""

    family: str
    calls: Dataset
    """Its measured calls without their features."""
    entry: dict[str, Any] | None
    """None where too little was measured."""
    seconds: float


def _processes_for(raw: Path) -> int:
    """How many processes fit: one for each processor, up to a limit; one where little was measured."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    worth_it = sum(_measured_bytes(raw, name) for name in FAMILIES) > PARALLEL_BYTES
    return max(1, min(processors - 1, MAX_PROCESSES)) if worth_it else 1


def _fit_apart(
    tasks: Sequence[FitTask],
    count: int,
    until: float | None,
    on_progress: OnProgress,
    index: dict[str, dict[str, Any]],
    took: dict[str, float],
) -> dict[str, Dataset]:
    """Fit families quickly in processes; note their errors and their seconds, and return their calls."""
    datasets = {}
    for done in _in_processes(tasks, count, until, on_progress):
        datasets[done.family] = done.calls
        if done.entry:
            index[done.family], took[done.family] = done.entry, done.seconds
    for task in tasks:
        if task.family not in index:  # a process that was stopped may have been writing it
            (task.out / f"{task.family}.npz").unlink(missing_ok=True)
    return datasets


def _in_processes(
    tasks: Sequence[FitTask], count: int, until: float | None, on_progress: OnProgress
) -> Iterator[Fitted]:
    """Families fitted quickly, as they become ready, the largest first; those that are not ready in time are left."""
    from concurrent.futures import as_completed

    waiting = sorted(tasks, key=lambda task: -_measured_bytes(task.raw, task.family))
    on_progress(Progress("fitting", 0, len(waiting)))
    with worker_pool(count, _limit_threads) as submit, suppress(TimeoutError):
        left = None if until is None else max(0.0, until - FINISH_SECONDS - time.monotonic())
        for done, ready in enumerate(as_completed(submit(fit_task, waiting), left), 1):
            on_progress(Progress("fitting", done, len(waiting)))
            yield ready.result()


def _limit_threads() -> None:
    """Let LightGBM use few threads in this process: with one for each processor in each, they wait for each other."""
    os.environ["OMP_NUM_THREADS"] = str(PROCESS_THREADS)


def _measured_bytes(raw: Path, family: str) -> int:
    path = raw / f"{family}{SUFFIX}"
    return path.stat().st_size if path.exists() else 0


def fit_task(task: FitTask) -> Fitted:
    """Fit a family quickly in a process of its own."""
    begun = time.monotonic()
    known = None
    if (task.out / PRIOR / PRIOR_FILE).is_file():
        from foretrace.cost_models.kernels.prior import PriorModels

        known = PriorModels.read(task.out / PRIOR)
    calls = dataset_of(FAMILIES[task.family], _measurements(task.raw), task.device, known)
    index: dict[str, dict[str, Any]] = {}
    _fit_and_write(task.family, calls, task.out, index, quick=True)
    return Fitted(task.family, _without_features([calls]), index.get(task.family), time.monotonic() - begun)


@lru_cache(maxsize=1)
def _measurements(raw: Path) -> Sequence[Measurement]:
    """All measurements of a folder: a process that fits several families reads them once."""
    return read_all(raw, *FAMILIES)


def _copied(prior: Prior, out: Path) -> PriorModels:
    """The models of a prior, copied to where they stay."""
    from foretrace.cost_models.kernels.prior import PriorModels

    prior.write(out / PRIOR)
    return PriorModels.of(replace(prior, models=out / PRIOR))


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
    sequences = _sequences(family, calls)
    roof, support = float(calls.roof_us.max()), Support.of(calls.features)
    model = FamilyModel(family, estimator, error_range, sequences, roof, support)
    others = {kind: score["gmae"] for kind, score in scores.items() if kind != best}
    return model, {"measurements": calls.calls, "kind": best, **scores[best], "others": others}


def _sequences(family: Family, calls: Dataset) -> KernelSequences | None:
    """The kernels that calls launch; None where the prior knows their number better on calls that were held out."""
    if calls.prior is not None:
        ran, learned = np.array([len(kernels) for kernels in calls.kernels]), np.zeros(len(calls))
        for inside, outside in calls.folds():
            sequences = KernelSequences(family).fit(calls.subset(inside)).predict(calls.features[outside])
            learned[outside] = [len(names) for names, _ in sequences]
        wrong, prior_wrong = (np.mean(counted != ran) for counted in (learned, calls.prior[:, 2]))
        if prior_wrong < wrong:
            return None
    return KernelSequences(family).fit(calls)


def recalibrate(folder: Path, name: str, held_out: Dataset) -> ErrorRange:
    """Learn the errors of a fitted model anew, from calls that it was not fitted on, and write them to its file.

    The estimator stays as it is: a fit may take hours, and calls of further models tell where it fails.
    """
    path, model = folder / f"{name}.npz", FamilyModel.read(folder, name)
    found = ErrorRange.of(held_out, *model.estimator.predict_with_signals(held_out))
    others = {key: array for key, array in read_arrays(path).items() if key.partition(".")[0] not in ERROR_ARRAYS}
    np.savez_compressed(path, **{**others, **found.arrays()})  # type: ignore[arg-type]
    return found


def estimated_errors(raw: Path, device: Device, prior: PriorModels | None = None) -> dict[str, float]:
    """Held-out geometric mean error of each family, estimated in seconds with small forests on some of its calls.

    It ranks families while a calibration runs; the fitted models are better. With a prior, forests learn the difference
    to it. A family with too few calls is left out.
    """
    found = {}
    trees, leaves = SMALL_FOREST
    for name, family in FAMILIES.items():
        measured = read_all(raw, name)
        sample = random.Random(7).sample(measured, min(PRIOR_CALLS if prior else SAMPLED_CALLS, len(measured)))
        calls = dataset_of(family, sample, device, prior)
        if len(calls) < family.min_measurements:
            continue
        inside, outside = calls.folds()[0]
        model: Difference | ResidualTrees
        if prior:
            model = Difference().fit(calls.subset(inside))
        else:
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
    by_prior: dict[str, Estimator] = {}
    if calls.prior is not None:
        by_prior = {"prior": PriorTimes().fit(calls), "difference": Difference().fit(calls)}
    if quick:
        trees_alone = ResidualTrees().fit(calls, None, *QUICK_FOREST)
        return {**by_prior, "roofline": ScaledRoofline().fit(calls), "trees": trees_alone}
    ran = [[name for name, _ in kernels] for kernels in calls.kernels]
    found = [family.kernel_traits(names) for names in ran]
    traits = np.array(found, np.float64) if found and found[0] else None
    trees, leaves = next(size for fewest, size in FOREST_SIZES.items() if len(calls) >= fewest)
    blend = Blend().fit(calls, traits, trees, leaves)
    fitted: dict[str, Estimator] = {
        **by_prior,
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
