"""The curve of a collective over message sizes: a latency, a bandwidth and the bend between them (alpha-beta model).

At measured sizes the curve goes through the measurements; beyond them latency and bandwidth continue it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from foretrace.graph.tables import SIGMAS_TO_P90, Floats
from foretrace.platform.fabric import Curve

if TYPE_CHECKING:
    from foretrace.platform.measurements.fabric import TimedCollective

MIN_TRANSFER_SHARE = 0.25
"""The share of the largest message's time that is transfer at least: sizes that are all latency show no bandwidth, and
larger ones must not be free."""
MISSED = 0.9
"""Quantile of the errors at sizes left out that becomes the end of the range: few sizes tell few errors, and with it
four of five sizes that were left out of published tables lie in their ranges."""
BENDS = np.geomspace(0.3, 2.0, 40)
"""Bends that are tried: for a given bend, latency and bandwidth are a linear fit."""


def fit_curves(seen: Iterable[TimedCollective]) -> tuple[Curve, ...]:
    """A curve for each kind, number of ranks and number of nodes."""
    from foretrace.platform.measurements.fabric import OVERLAPPED, WORK

    groups: dict[tuple[str, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in seen:
        times = [us for us in one.us if us > 0]
        if times and one.nbytes > 0 and one.kind not in (WORK, OVERLAPPED):
            groups[one.kind, one.ranks, one.nodes][one.nbytes] += times
    return tuple(_fit(*key, by_size) for key, by_size in sorted(groups.items()))


def _fit(kind: str, ranks: int, nodes: int, by_size: dict[int, list[float]]) -> Curve:
    sizes = np.array(sorted(by_size), np.float64)
    us = np.array([np.median(by_size[size]) for size in sorted(by_size)])
    candidates = [Curve(kind, ranks, nodes, *_line(sizes, us, bend), float(bend), (), 0.0) for bend in BENDS]
    misses = [np.abs(np.log(us / _without_knots(curve, sizes))).mean() for curve in candidates]
    best = candidates[int(np.argmin(misses))]
    apart = np.concatenate([np.log(np.array(us_) / np.median(us_)) for us_ in by_size.values()])
    noise = _deviation(apart)
    off = np.log(us / _without_knots(best, sizes))
    # Deviations within the noise of the repeats are shrunk: they say nothing of the size.
    noise_of_median = noise / math.sqrt(np.median([len(repeats) for repeats in by_size.values()]))
    off *= max(0.0, 1 - noise_of_median**2 / max(float(np.mean(off**2)), 1e-12))
    best = replace(best, knots=tuple(zip(sizes.tolist(), np.exp(off).tolist())))
    # Protocols change at some sizes: there a curve misses by several times what it does elsewhere.
    missed = float(np.quantile(np.abs(_left_out(best)), MISSED)) / SIGMAS_TO_P90
    return replace(best, spread=math.hypot(missed, noise, _tail(apart, noise)))


def _line(sizes: Floats, us: Floats, bend: float) -> tuple[float, float]:
    """Latency and bandwidth for a given bend: least squares of the relative error."""
    wanted = us**bend
    columns = np.stack([np.ones_like(sizes), sizes**bend], 1) / wanted[:, None]
    (fixed, rising), *_ = np.linalg.lstsq(columns, np.ones_like(us), rcond=None)
    if fixed <= 0:  # no latency visible: the smallest message bounds it
        fixed, rising = wanted.min() / 2, (wanted / sizes**bend).min()
    least = (MIN_TRANSFER_SHARE * us[-1] / sizes[-1]) ** bend
    if rising < least:  # hardly any growth visible
        weight = 1 / wanted
        fixed = ((1 - least * sizes**bend * weight) @ weight) / (weight @ weight)
        fixed, rising = max(fixed, wanted.min() / 2), least
    return float(fixed ** (1 / bend)), float(rising ** (-1 / bend) / 1e3)


def _left_out(curve: Curve) -> Floats:
    """Log error of the curve at each inner knot when that knot is left out."""
    if len(curve.knots) < 3:
        return np.log([factor for _, factor in curve.knots])
    places = range(1, len(curve.knots) - 1)
    without = (replace(curve, knots=curve.knots[:place] + curve.knots[place + 1 :]) for place in places)
    sizes = [curve.knots[place][0] for place in places]
    return np.array([math.log(time_at(less, size) / time_at(curve, size)) for less, size in zip(without, sizes)])


def _deviation(misses: Floats) -> float:
    """Robust standard deviation, from the median absolute error."""
    return float(np.median(np.abs(misses)) / 0.6745)


def _tail(misses: Floats, noise: float) -> float:
    """Standard deviation on top of the noise, where one repeat in five is farther off than noise makes it: a network
    has runs that take much longer.

    >>> round(_tail(np.array([0.0] * 7 + [0.5] * 3), 0.1), 2)
    0.38
    """
    return math.sqrt(max(0.0, (float(np.quantile(np.abs(misses), 0.8)) / SIGMAS_TO_P90) ** 2 - noise**2))


def _without_knots(curve: Curve, nbytes: Floats) -> Floats:
    """Times by latency, bandwidth and bend alone."""
    transfer = np.maximum(nbytes, 1e-9) / (1e3 * curve.gbps)
    # Through logarithms: powers of times overflow where the bend is sharp.
    both = np.logaddexp(curve.bend * math.log(curve.latency_us), curve.bend * np.log(transfer))
    return np.asarray(np.exp(both / curve.bend))


def time_at(curve: Curve, nbytes: float) -> float:
    """Microseconds of a curve at a message size.

    >>> round(time_at(Curve("all_reduce", 8, 1, 20.0, 100.0, 1.0, ((1024.0, 1.0),), 0.02), 1e8))
    1020
    """
    sizes, factors = np.log(np.array(curve.knots)).T
    off = np.interp(math.log(max(nbytes, 1.0)), sizes, factors)
    return float(_without_knots(curve, np.array([float(nbytes)]))[0] * math.exp(off))
