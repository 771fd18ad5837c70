"""From measurements to models: each family's estimator is the one that is off least on calls it has not seen."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from foretrace.cost_models.kernels.estimators.dataset import Floats, Rows, rows_of
from foretrace.cost_models.kernels.estimators.forests import folds_of
from foretrace.cost_models.kernels.estimators.residual import Blend, ResidualTrees, ScaledRoofline
from foretrace.cost_models.kernels.exact import Exact
from foretrace.cost_models.kernels.families import FAMILIES, Family
from foretrace.cost_models.kernels.model import Estimator, Model, Patterns, Spread
from foretrace.cost_models.kernels.roofline import Fallback
from foretrace.cost_models.kernels.selection import LikelyKernels
from foretrace.graph import ForetraceError
from foretrace.platform.cases.recorded import EXACT
from foretrace.platform.device import Device
from foretrace.platform.files import read_object
from foretrace.platform.folder import INDEX
from foretrace.platform.rates import read_all

SIZES = {30_000: (1200, 255), 20_000: (1200, 127), 5_000: (900, 63), 0: (500, 31)}
"""Trees and their leaves, by the number of calls from which on a family gets so many."""


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


def fit_family(family: Family, rows: Rows) -> tuple[Model, dict[str, Any]] | None:
    """A family's model, and what is known of its errors; None where too little was measured."""
    if len(rows) < family.fewest:
        return None
    held_out = _held_out(family, rows)
    measured_us = rows.whole(rows.us)
    scores = {kind: errors(rows.whole(us).ravel(), measured_us.ravel()) for kind, us in held_out.items()}
    best = min(scores, key=lambda kind: scores[kind]["gmae"])
    spread = Spread.of(held_out[best].ravel(), rows.us.ravel())
    estimator = _fitted(family, rows)[best]
    model = Model(family, estimator, spread, Patterns().fit(rows), float(rows.roof_us.max()))
    others = {kind: score["gmae"] for kind, score in scores.items() if kind != best}
    return model, {"measurements": rows.calls, "kind": best, **scores[best], "others": others}


def fit_models(
    raw: Path, device: Device, out: Path, told: Callable[[str], None] = lambda words: None, before: Path | None = None
) -> dict[str, dict[str, Any]]:
    """Fit all families that were measured, write their models, and give what is known of each one's errors.

    Parameters
    ----------
    raw
        The measurements.
    device
        What they were made on.
    out
        An empty folder for the models.
    told
        Told what is being fitted.
    before
        Models that were fitted for the same device: of a family that nothing was measured of since, its own is taken.
    """
    measured = read_all(raw, *FAMILIES)
    rows = {name: rows_of(family, measured, device) for name, family in FAMILIES.items()}
    index = _taken_over(before, rows, out) if before else {}
    for name, family in FAMILIES.items():
        if name in index:
            continue
        told(f"fitting {name}")
        fitted = fit_family(family, rows[name])
        if fitted:
            model, index[name] = fitted
            model.write(out)
    Fallback.of(_together(rows.values())).write(out)
    exact = [m for m in read_all(raw, EXACT) if not m.error and m.cold and m.warm]
    if exact:
        Exact.measured(exact).write(out)
    return {name: index[name] for name in FAMILIES if name in index}


def _taken_over(before: Path, rows: Mapping[str, Rows], out: Path) -> dict[str, dict[str, Any]]:
    """Copy the models that were fitted on as many calls as there are now: what was measured is only ever added to."""
    taken = {}
    try:
        known = read_object(before / Path(INDEX).name)
    except ForetraceError:
        return {}
    for name, found in known.items():
        try:
            if found["measurements"] == rows[name].calls:
                Model.read(before, name)
                shutil.copy(before / f"{name}.npz", out)
                taken[name] = found
        except (ForetraceError, LookupError, TypeError):
            continue  # what can't be read is fitted anew
    return taken


def _together(parts: Collection[Rows]) -> Rows:
    """Calls of several families, without their features."""
    flops_us, bytes_us, us = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("flops_us", "bytes_us", "us")
    )
    return Rows(np.zeros((len(us), 0)), flops_us, bytes_us, us, [])


def _held_out(family: Family, rows: Rows) -> dict[str, Floats]:
    """Predictions of each row by models that were not fitted on it, by kind of model."""
    predicted: dict[str, Floats] = {}
    for inside, outside in folds_of(rows):
        for kind, model in _fitted(family, rows.pick(inside)).items():
            predicted.setdefault(kind, np.empty_like(rows.us))[outside] = model.predict_both(rows.pick(outside))
    return predicted


def _fitted(family: Family, rows: Rows) -> dict[str, Estimator]:
    """A model of each kind; what a blend is made of is fitted once."""
    ran = [[name for name, _ in kernels] for kernels in rows.kernels]
    found = [family.latents(names) for names in ran]
    latents = np.array(found, np.float64) if found and found[0] else None
    trees, leaves = next(size for fewest, size in SIZES.items() if len(rows) >= fewest)
    blend = Blend().fit(rows, latents, trees, leaves)
    fitted: dict[str, Estimator] = {
        "roofline": ScaledRoofline().fit(rows),
        "trees": blend.trees_,
        "net": blend.net_,
        "blend": blend,
    }
    kernels = [kernel for names in ran if (kernel := family.kernel(names))]
    if any(kernel.first for kernel in kernels):  # on a CPU no name tells a tile
        sides = [family.columns.index(side) for side in family.sides]
        fitted["likely"] = LikelyKernels().fit(rows, latents, kernels, sides)
    return fitted


# --- was cost_models.quick: How far off each family's model is about to be, at a glance: a few small trees on some of its calls.

MOST = 2000
"""Calls of a family that are looked at."""
TREES, LEAVES = 100, 15


def quick_errors(raw: Path, device: Device) -> dict[str, float]:
    """Geometric mean of the relative error on calls that were not fitted on, by family.

    It tells families apart; the fitted models are better. A family with too few calls is left out.
    """
    found = {}
    for name, family in FAMILIES.items():
        measured = read_all(raw, name)
        rows = rows_of(family, random.Random(7).sample(measured, min(MOST, len(measured))), device)
        if len(rows) < family.fewest:
            continue
        inside, outside = folds_of(rows)[0]
        model = ResidualTrees().fit(rows.pick(inside), trees=TREES, leaves=LEAVES)
        found[name] = errors(model.predict_both(rows.pick(outside)).ravel(), rows.us[outside].ravel())["gmae"]
    return found
