"""What the collectives of a job take on a fabric, from the arrival of their last rank on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from foretrace.cost_models.collectives.pricing import Range, price_collective
from foretrace.forecast.jobs.agreement import Meeting
from foretrace.graph.tables import Floats, Ints
from foretrace.platform.fabric import Fabric


class Transfers(NamedTuple):
    """Microseconds of each collective: 10th percentile, median, 90th percentile."""

    low: Floats
    typical: Floats
    high: Floats
    alike: Ints
    """The same number for those of one kind, size and group."""


def price_transfers(
    meetings: Sequence[Meeting],
    fabric: Fabric,
    gpus_per_node: int | None = None,
    slow_links: Mapping[int, float] | None = None,
) -> Transfers:
    """Price all collectives of a job.

    Parameters
    ----------
    meetings
        The collectives.
    fabric
        What joins the ranks.
    gpus_per_node
        As many as the fabric's nodes have, where left out.
    slow_links
        For ranks whose links are not as fast as the others', their part of the speed: a collective is as slow as the
        slowest link in it.

    >>> half = price_transfers([Meeting("all_reduce", 2**26, tuple(range(8)), ())], Fabric.named("h100-8x"),
    ...     slow_links={3: 0.5})
    >>> whole = price_transfers([Meeting("all_reduce", 2**26, tuple(range(8)), ())], Fabric.named("h100-8x"))
    >>> bool(1.8 < half.typical[0] / whole.typical[0] < 2.0)
    True
    """
    slow = slow_links or {}
    known: dict[tuple[object, ...], int] = {}
    prices: list[Range] = []
    which = np.empty(len(meetings), np.int32)
    for place, one in enumerate(meetings):
        key = one.kind, one.nbytes, one.ranks
        if key not in known:
            known[key] = len(prices)
            # A link at half speed carries its bytes as if they were twice as many; latency stays.
            speed = min((slow.get(rank, 1.0) for rank in one.ranks), default=1.0) if slow else 1.0
            prices.append(price_collective(fabric, one.kind, _carried(one.nbytes, speed), one.ranks, gpus_per_node))
        which[place] = known[key]
    each = np.array(prices).reshape(-1, 3)[which]
    return Transfers(each[:, 0], each[:, 1], each[:, 2], which)


def _carried(nbytes: int | tuple[int, ...], speed: float) -> int | tuple[int, ...]:
    return round(nbytes / speed) if isinstance(nbytes, int) else tuple(round(one / speed) for one in nbytes)
