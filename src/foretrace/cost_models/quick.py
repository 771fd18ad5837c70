"""How far off each family's model is about to be, at a glance: a few small trees on some of its calls."""

from __future__ import annotations

import random
from pathlib import Path

from foretrace.cost_models.boosting import folds_of
from foretrace.cost_models.estimators import ResidualTrees
from foretrace.cost_models.families import FAMILIES
from foretrace.cost_models.fit import errors
from foretrace.cost_models.rows import rows_of
from foretrace.platform.device import Device
from foretrace.platform.rates import read_all

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
