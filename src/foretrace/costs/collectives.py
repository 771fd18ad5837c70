"""Collectives: a latency, a bandwidth and the bend between them, per kind and number of ranks.

Of measured sizes the fit goes through the measurements; beyond them latency and bandwidth carry on. Rank counts and
kinds that were not measured are carried over from those that were, by the steps and the traffic of ring and tree
algorithms, and get a wider range.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Curve, Fabric
from foretrace.platform.fabric_measurements import Exchange

Floats = NDArray[np.float64]

BENDS = np.geomspace(0.3, 2.0, 40)
"""Tried one after the other: with the bend given, latency and bandwidth are a linear fit."""
TENTH = 1.2816
"""Standard deviations from the middle to the 10th and the 90th percentile."""
OTHER_KIND = 0.4
"""Standard deviation of the logarithm of a time that is carried over from another kind of collective: so far apart lie
the published tables of five kinds on eight A100s."""

TRAFFIC: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
    "send": lambda ranks: 1.0,
    "recv": lambda ranks: 1.0,
}
"""Bytes that pass a rank's link per byte of the collective (nccl-tests' bus bandwidth is counted so)."""
LIKE = {
    "all_gather": ("reduce_scatter",),
    "reduce_scatter": ("all_gather",),
    "broadcast": ("reduce",),
    "reduce": ("broadcast",),
    "recv": ("send",),
    "gather": ("all_to_all", "all_gather"),
    "scatter": ("all_to_all", "all_gather"),
}
"""Kinds that stand in for one that was not measured, before any other does."""
STEPS: tuple[Callable[[int], float], ...] = (
    lambda ranks: 1.0,
    lambda ranks: math.sqrt(math.log2(ranks)),
    lambda ranks: ranks - 1.0,
)
"""How the latency grows with the ranks: not at all, where a call's own cost prevails; as in a ring, whose every step
counts; and in between, as in a tree beside a call's cost."""


class Range(NamedTuple):
    """Microseconds: the 10th percentile, the median and the 90th."""

    low: float
    typical: float
    high: float


def fit_curves(seen: Iterable[Exchange]) -> tuple[Curve, ...]:
    """One curve per kind, ranks and nodes.

    >>> sizes = [2**power for power in range(4, 28)]
    >>> curve, = fit_curves(Exchange("all_reduce", 8, 1, size, (20 + size / 100e3,)) for size in sizes)
    >>> round(curve.latency_us, 1), round(curve.gbps), round(curve.bend, 1)
    (20.0, 100, 1.0)
    """
    groups: dict[tuple[str, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in seen:
        times = [us for us in one.us if us > 0]
        if times and one.nbytes > 0:
            groups[one.kind, one.ranks, one.nodes][one.nbytes] += times
    return tuple(_fit(*key, by_size) for key, by_size in sorted(groups.items()))


def _fit(kind: str, ranks: int, nodes: int, by_size: dict[int, list[float]]) -> Curve:
    sizes = np.array(sorted(by_size), np.float64)
    us = np.array([np.median(by_size[size]) for size in sorted(by_size)])
    bent = [Curve(kind, ranks, nodes, *_line(sizes, us, bend), float(bend), (), 0.0) for bend in BENDS]
    misses = [np.abs(np.log(us / _bent(curve, sizes))).mean() for curve in bent]
    best = bent[int(np.argmin(misses))]
    noise = _deviation(np.concatenate([np.log(np.array(us_) / np.median(us_)) for us_ in by_size.values()]))
    off = np.log(us / _bent(best, sizes))
    # What lies off no further than repeats of one size lie apart says nothing of the size.
    noise_of_median = noise / math.sqrt(np.median([len(repeats) for repeats in by_size.values()]))
    off *= max(0.0, 1 - noise_of_median**2 / max(float(np.mean(off**2)), 1e-12))
    best = replace(best, knots=tuple(zip(sizes.tolist(), np.exp(off).tolist())))
    return replace(best, spread=math.hypot(_deviation(_left_out(best)), noise))


def _line(sizes: Floats, us: Floats, bend: float) -> tuple[float, float]:
    """Latency and bandwidth of a given bend, least squares of the relative error."""
    wanted = us**bend
    columns = np.stack([np.ones_like(sizes), sizes**bend], 1) / wanted[:, None]
    (fixed, rising), *_ = np.linalg.lstsq(columns, np.ones_like(us), rcond=None)
    if fixed <= 0:  # no latency to be seen: what the smallest took is its bound
        fixed, rising = wanted.min() / 2, (wanted / sizes**bend).min()
    if rising <= 0:  # no growth to be seen
        fixed, rising = np.median(wanted), (wanted / sizes**bend).min() / 2
    return float(fixed ** (1 / bend)), float(rising ** (-1 / bend) / 1e3)


def _left_out(curve: Curve) -> Floats:
    """How far off each knot would be, in logarithms, were it not known."""
    if len(curve.knots) < 3:
        return np.log([factor for _, factor in curve.knots])
    places = range(1, len(curve.knots) - 1)
    without = (replace(curve, knots=curve.knots[:place] + curve.knots[place + 1 :]) for place in places)
    sizes = [curve.knots[place][0] for place in places]
    return np.array([math.log(_at(less, size) / _at(curve, size)) for less, size in zip(without, sizes)])


def _deviation(misses: Floats) -> float:
    """Standard deviation, as the middle half of the misses has it: a few far-off ones tell nothing."""
    return float(np.median(np.abs(misses)) / 0.6745)


def _bent(curve: Curve, nbytes: Floats) -> Floats:
    transfer = np.maximum(nbytes, 1e-9) / (1e3 * curve.gbps)
    # Through logarithms: powers of times overflow where the bend is sharp.
    both = np.logaddexp(curve.bend * math.log(curve.latency_us), curve.bend * np.log(transfer))
    return np.asarray(np.exp(both / curve.bend))


def _at(curve: Curve, nbytes: float) -> float:
    sizes, factors = np.log(np.array(curve.knots)).T
    off = np.interp(math.log(max(nbytes, 1.0)), sizes, factors)
    return float(_bent(curve, np.array([float(nbytes)]))[0] * math.exp(off))


def predict(fabric: Fabric, kind: str, nbytes: int, ranks: int, nodes: int = 1) -> Range:
    """What a collective takes on a fabric from the arrival of its last rank on.

    Parameters
    ----------
    fabric
        Where.
    kind, nbytes
        As in `foretrace.graph.Collective`.
    ranks
        Members of its group.
    nodes
        Machines that the group is spread over.

    >>> curves = fit_curves(Exchange("all_reduce", 8, 1, 2**n, (20 + 2**n / 100e3,)) for n in range(4, 28))
    >>> round(predict(Fabric("mine", curves, "made up"), "all_reduce", 2**26, 8).typical)
    691
    """
    if ranks < 2:
        return Range(0.0, 0.0, 0.0)
    if kind == "barrier":
        kind, nbytes = "all_reduce", 1
    curve = _nearest(fabric, kind, ranks, nodes)
    spread = curve.spread if curve.kind == kind else math.hypot(curve.spread, OTHER_KIND)
    flat, between, ring = (_at(_carried_over(curve, kind, ranks, steps), nbytes) for steps in STEPS)
    factor = math.exp(TENTH * spread)
    return Range(min(flat, ring) / factor, between, max(flat, ring) * factor)


def _nearest(fabric: Fabric, kind: str, ranks: int, nodes: int) -> Curve:
    """The measured curve that comes closest: of the kind or one like it, then of the nodes, then of the ranks."""
    if kind not in TRAFFIC:
        raise ForetraceError(f"no collective is called {kind!r}", f"Known are: {', '.join(TRAFFIC)}, barrier.")
    curves = [curve for curve in fabric.curves if (curve.nodes > 1) == (nodes > 1)]
    if not curves:
        where = "between nodes" if nodes > 1 else "inside a node"
        advice = (
            "`foretrace calibrate fabric` measures it, under torchrun; `foretrace platform fabric` reads nccl-tests."
        )
        raise ForetraceError(f"fabric {fabric.name} was not measured {where}", advice)
    preferred = (kind, *LIKE.get(kind, ()), "all_reduce")

    def distance(curve: Curve) -> tuple[int, float, float]:
        place = preferred.index(curve.kind) if curve.kind in preferred else len(preferred)
        return place, abs(math.log(curve.nodes / nodes)), abs(math.log(curve.ranks / ranks))

    return min(curves, key=distance)


def _carried_over(curve: Curve, kind: str, ranks: int, steps: Callable[[int], float]) -> Curve:
    """A measured curve for another kind or number of ranks: the links' bandwidth stays, latency follows the steps."""
    traffic = TRAFFIC[kind](ranks) / TRAFFIC[curve.kind](curve.ranks)
    return replace(curve, latency_us=curve.latency_us * steps(ranks) / steps(curve.ranks), gbps=curve.gbps / traffic)
