"""Calls against what the device could do: how much arithmetic a byte, and how fast it was done."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from foretrace.forecast.families import family
from foretrace.forecast.roofs import USUAL, Alike, Roofs, roofs
from foretrace.forecast.workings import Workings
from foretrace.report.names import short
from foretrace.report.pages.charts import COMMUNICATION
from foretrace.report.pages.sheet import Chart

SHOWN = 400
"""Kinds of calls at most, those that take longest."""
LEAST_FLOPS_A_BYTE = 0.01
"""Where calls without arithmetic stand: copies and fills have none."""
TENSORS = 6
"""Tensors of a call whose shapes are told."""
NOTICEABLE = 2e-3
"""Share of the device time from which on a call may stretch the axes."""


def roofline(workings: Workings) -> Chart | None:
    """The calls of the first rank by name and shapes, each where its arithmetic and its speed put it."""
    found = roofs(workings)
    if found is None:
        return None
    # Links, not the device's memory, are what holds a collective up.
    calls = [alike for alike in found.calls if alike.nbytes and family("", alike.op.name) != COMMUNICATION]
    total = sum(sum(alike.us) for alike in calls)
    return _framed([_point(alike, total) for alike in calls[:SHOWN]], found) if calls else None


def _point(alike: Alike, total: float) -> dict[str, Any]:
    op, us = alike.op, float(np.mean(alike.us))
    shapes = ["×".join(map(str, t.shape)) or "scalar" for t in op.tensors]
    more = ", …" if len(shapes) > TENSORS else ""
    return {
        "name": short(op.name),
        "family": family("", op.name),
        "shapes": f"{op.tensors[0].dtype} {', '.join(shapes[:TENSORS])}{more}",
        "count": len(alike.us),
        "ms": sum(alike.us) / 1e3,
        "share": sum(alike.us) / total,
        "intensity": max(alike.flops / alike.nbytes, LEAST_FLOPS_A_BYTE),
        "tflops": max(alike.flops, LEAST_FLOPS_A_BYTE * alike.nbytes) / us / 1e6,
        "gbps": alike.nbytes / us / 1e3,
        "rate": alike.rate,
        "reached": min(alike.least_us / us, 1.0),
    }


def _framed(ops: list[dict[str, Any]], found: Roofs) -> Chart:
    """The points, the roofs over them, and axes that hold both."""
    intensity = [op["intensity"] for op in ops]
    speed = [op["tflops"] for op in ops if op["share"] > NOTICEABLE]
    by_rate: dict[float, list[str]] = defaultdict(list)
    for rate in sorted({op["rate"] for op in ops if op["intensity"] > 1}):
        by_rate[found.peaks[rate]].append(rate)
    top = max(by_rate, default=found.peaks[USUAL])
    return {
        "kind": "roofline",
        "ops": ops,
        "none": LEAST_FLOPS_A_BYTE,
        "gbps": found.memory_gbps,
        "rates": [{"name": ", ".join(names), "tflops": tflops} for tflops, names in sorted(by_rate.items())],
        "from": _power(min(intensity), np.floor),
        "to": _power(max(*intensity, top / found.memory_gbps * 1e4), np.ceil),
        "least": _power(min(speed, default=top / 1e6), np.floor),
        "most": _power(top, np.ceil),
    }


def _power(value: float, rounded: Any) -> float:
    """The power of ten below or above a value.

    >>> float(_power(30.0, np.ceil)), float(_power(30.0, np.floor))
    (100.0, 10.0)
    """
    return float(10.0 ** rounded(np.log10(value)))
