"""Curves of collectives over message sizes."""

from __future__ import annotations

import math

from foretrace.cost_models.collectives.curves import fit_curves
from foretrace.graph.tables import SIGMAS_TO_P90
from foretrace.platform.measurements.fabric import TimedCollective

SIZES = (2**10, 2**14, 2**18, 2**22, 2**26)


def curve_spread(slower: tuple[float, ...]) -> float:
    """The range of a curve whose repeats take so many times as long, over its middle."""
    seen = [TimedCollective("all_reduce", 8, 1, size, tuple((10 + size / 1e5) * f for f in slower)) for size in SIZES]
    (curve,) = fit_curves(seen)
    return math.exp(SIGMAS_TO_P90 * curve.spread)


def test_a_range_holds_the_repeats_of_a_network_that_is_slow_at_times() -> None:
    assert curve_spread((1, 1, 1, 1, 1, 2, 2)) > 1.9


def test_a_single_slow_repeat_does_not_widen_a_range() -> None:
    assert curve_spread((1,) * 19 + (5,)) < 1.05
