"""Claim: the shipped H200's kernel models meet calls they were not fitted on within a few per cent, family by family.

The calls are drawn at random from realistic ranges, with another seed than those the models were fitted on, and were
timed on an H200 with a cold and with a warm cache (`measurements/h200/heldout`). GMAE is the geometric mean of the
relative error; after ``+-`` stands the standard error of the mean, since other calls would give another one. Beside
them stand what they should be, and the GMAE of a roofline with fitted rates: a family's model is whichever does best on
folds of what it was fitted on.

    python -m benchmarks.claims.accuracy.kernel_models
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.lib.table import H200, keep
from foretrace.cost_models.kernels.decomposition import parts_of
from foretrace.cost_models.kernels.estimators.dataset import Dataset, dataset_of, roofline_terms
from foretrace.cost_models.kernels.estimators.residual import ScaledRoofline
from foretrace.cost_models.kernels.families import FAMILIES, CallContext, Description, family_of
from foretrace.cost_models.kernels.fitting import errors
from foretrace.cost_models.kernels.model import device_models
from foretrace.graph.tables import Floats
from foretrace.platform.measurements.kernels import Measurement, read_all
from foretrace.platform.platform import Platform

MEASURED_ON = H200
MEASURED = Path(__file__).resolve().parents[3] / "measurements" / "h200"
BAG_BACKWARD = ("aten::_embedding_bag_backward", "aten::embedding_dense_backward", "aten::add_")


class Claim(NamedTuple):
    """Calls of a family, and the errors that they should be predicted with: any, where nothing is promised."""

    what: str
    family: str
    gmae: float = math.inf
    mean: float = math.inf
    which: Callable[[Measurement], bool] = lambda found: True


def _product(found: Measurement) -> bool:
    """bf16 and fp32 or tf32, 16 to 16,384 a side."""
    op = found.case.op
    if op.name not in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm") or op.overload == "out":
        return False
    a, b = op.tensors[-2:]
    sides = (*a.shape[-2:], b.shape[-1])
    return a.dtype in ("bfloat16", "float32") and all(16 <= side <= 16384 for side in sides)


def _layer(found: Measurement) -> bool:
    """Of images, whole or channel by channel, as ResNet, MobileNet and ConvNeXt have them: channels in eights."""
    tensors = found.case.op.tensors
    x, weight = tensors[1:3] if "backward" in found.case.op.name else tensors[:2]
    transposed, _, groups = found.case.op.args[7:10] if "backward" in found.case.op.name else found.case.op.args[6:9]
    channels = x.shape[1], weight.shape[0]
    return (
        len(x.shape) == 4
        and not transposed
        and groups in (1, x.shape[1])
        and all(count % 8 == 0 or count == 3 for count in channels)
    )


def _named(*parts: str, but: str = "") -> Callable[[Measurement], bool]:
    return lambda found: any(p in found.case.op.name for p in parts) and not (but and but in found.case.op.name)


CLAIMS = (
    Claim("matrix products", "matrix", 0.03, 0.05, _product),
    Claim("embedding bag forward", "lookups", 0.03, 0.05, _named("_embedding_bag", but="backward")),
    Claim("embedding bag backward", "lookups", 0.04, 0.06, lambda found: found.case.op.name in BAG_BACKWARD),
    Claim("attention forward", "attention", 0.04, 0.07, _named("attention", but="backward")),
    Claim("attention backward", "attention", 0.05, 0.07, _named("backward")),
    Claim("element-wise", "elementwise", 0.04, 0.06),
    Claim("copies", "copies", 0.04, 0.06),
    Claim("cat and stack", "joins", 0.04, 0.06),
    Claim("reductions", "reductions", 0.04, 0.06),
    Claim("softmax", "softmax", 0.04, 0.06),
    Claim("norms", "norms", 0.04, 0.06),
    Claim("losses", "losses", 0.04, 0.06),
    Claim("dropout", "dropout", 0.04, 0.06),
    Claim("optimizers", "optimizers", 0.04, 0.06),
    Claim("convolutions forward", "convolutions", 0.05, 0.09, lambda m: _layer(m) and "backward" not in m.case.op.name),
    Claim("convolutions backward", "convolutions", 0.06, 0.09, lambda m: _layer(m) and "backward" in m.case.op.name),
    Claim("other convolutions", "convolutions", which=lambda found: not _layer(found)),
    Claim("index and scatter", "indexing", 0.06, 0.10),
    Claim("sort, top-k, unique", "sorting", 0.06, 0.10),
    Claim("host-device copies", "transfers", 0.04, 0.07),
    Claim("pooling", "pooling"),
    Claim("fills", "fills"),
    Claim("grouped and dilated convolutions", "grouped_convolutions"),
    Claim("decoding", "decoding"),
    Claim("interpolation", "resampling"),
    Claim("recurrent networks", "recurrent"),
)


def scored(claim: Claim, platform: Platform, held_out: Iterable[Measurement], fitted_on: Dataset) -> dict[str, Any]:
    """A line of the table."""
    family = FAMILIES[claim.family]
    held = filter(claim.which, held_out)
    calls = [found for found in held if found.cold and found.warm and not found.error and family.matches(found.case.op)]
    measured = np.array([(m.us("cold"), m.us("warm")) for m in calls])
    low, predicted, high = priced(calls, platform)
    found = errors(predicted.ravel(), measured.ravel())
    off = np.abs(predicted / measured - 1).mean(axis=1)
    rows = dataset_of(family, calls, platform.device)
    roofline = rows.per_call(ScaledRoofline().fit(fitted_on).predict_both(rows))
    return {
        "calls": claim.what,
        "fitted on": len(np.unique(fitted_on.call)),
        "held out": len(calls),
        "GMAE %": round(100 * found["gmae"], 2),
        "should be": _percent(claim.gmae),
        "mean %": round(100 * found["mean"], 2),
        "+-": round(100 * float(off.std()) / math.sqrt(len(off)), 2),
        "should be ": _percent(claim.mean),
        "p90 %": round(100 * found["p90"], 1),
        "inside 10-90 %": round(100 * float(np.mean((low <= measured) & (measured <= high))), 1),
        "roofline GMAE %": round(100 * errors(roofline.ravel(), rows.per_call(rows.us).ravel())["gmae"], 1),
        "holds": found["gmae"] <= claim.gmae and found["mean"] <= claim.mean,
    }


def priced(calls: Sequence[Measurement], platform: Platform) -> Floats:
    """Low, typical and high of calls, a column per state: of each, the sum of what it is made of."""
    parts: defaultdict[str, list[tuple[int, Description]]] = defaultdict(list)
    for place, found in enumerate(calls):
        facts = CallContext(platform.device, found.indices, found.case.tf32, found.case.pinned)
        for part in parts_of(found.case.op, platform.device.kind):
            if family := family_of(part):
                parts[family.name].append((place, family.describe(part, facts)))
    whole = np.zeros((3, len(calls), 2))
    for name, found in parts.items():
        model = device_models(platform.models).families[name]
        places, described = zip(*found)
        features = np.array([each.features for each in described])
        rows = Dataset(features, *roofline_terms(described, platform.device), np.zeros((0, 2)), [])
        us, low, high, *_ = model.price(rows)
        np.add.at(whole, (slice(None), places), [us * np.exp(low)[:, None], us, us * np.exp(high)[:, None]])
    return whole


def _percent(share: float) -> float | str:
    return round(100 * share, 1) if math.isfinite(share) else "-"


def main() -> int:
    platform = Platform.named("h200")
    rows = []
    for name, claims in groupby(CLAIMS, key=lambda claim: claim.family):
        fitted_on = dataset_of(FAMILIES[name], read_all(MEASURED, name), platform.device)
        held_out = read_all(MEASURED / "heldout", name)
        rows += [scored(claim, platform, held_out, fitted_on) for claim in claims]
    keep("kernel_models", rows)
    return not all(row["holds"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
