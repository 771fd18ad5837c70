"""The time of a collective on a fabric, with a range.

Measured curves come first. Rank counts between measured ones are interpolated; other shapes and kinds are extrapolated
from the nearest curve: by the specification of the links where the fabric has one, else by the steps and the traffic of
ring and tree algorithms. What was not measured inside a node or between nodes comes from the specification alone. The
further from a measurement, the wider the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from foretrace.cost_models.collectives.curves import time_at
from foretrace.cost_models.collectives.topology import LinkConstants, Placement, link_time
from foretrace.errors import ForetraceError
from foretrace.graph.tables import SIGMAS_TO_P90
from foretrace.platform.fabric import Curve, Fabric

OTHER_KIND_SPREAD = 0.4
"""Standard deviation of the logarithm of a time that is extrapolated from another kind of collective: so far apart are
the published tables of five kinds on eight A100s."""
OTHER_SHAPE_SPREAD = 0.2
"""The same of one that is extrapolated to other ranks or nodes by the links: so far apart are the published tables of
two A100s and of eight."""

TRAFFIC: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    **dict.fromkeys(
        ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), lambda ranks: (ranks - 1) / ranks
    ),
    **dict.fromkeys(("broadcast", "reduce", "send", "recv"), lambda ranks: 1.0),
}
"""Bytes through a rank's link per byte of the collective: the factor of nccl-tests' bus bandwidth."""
SIMILAR_KINDS = {
    "all_gather": ("reduce_scatter",),
    "reduce_scatter": ("all_gather",),
    "broadcast": ("reduce",),
    "reduce": ("broadcast",),
    "recv": ("send",),
    "gather": ("all_to_all", "all_gather"),
    "scatter": ("all_to_all", "all_gather"),
}
"""Kinds to extrapolate from, before any other, if a kind was not measured."""
SUMMED_KINDS = ("all_gather", "reduce_scatter", "gather", "scatter")
"""Kinds whose bytes are those of all ranks' parts together."""
STEPS: tuple[Callable[[int], float], ...] = (
    lambda ranks: 1.0,
    lambda ranks: math.sqrt(math.log2(ranks)),
    lambda ranks: ranks - 1.0,
)
"""How latency grows with the ranks: not at all, if the cost of the call dominates; in between, as in a tree; as in a
ring, with every step."""


class Range(NamedTuple):
    """Microseconds: the 10th percentile, the median and the 90th."""

    low: float
    typical: float
    high: float

    @classmethod
    def around(cls, typical: float, spread: float) -> Range:
        """The range of a time whose logarithm has this standard deviation."""
        factor = math.exp(SIGMAS_TO_P90 * spread)
        return cls(typical / factor, typical, typical * factor)


def price_collective(
    fabric: Fabric,
    kind: str,
    nbytes: int | Sequence[int],
    members: Sequence[int],
    gpus_per_node: int | None = None,
) -> Range:
    """The time of a collective from the arrival of its last rank on.

    Several that are coalesced into one call are one collective of all their bytes.

    Kind and bytes are as in `foretrace.graph.Collective`; of uneven splits, the bytes of each rank: what it sends in an
    all_to_all, its part of what is gathered or scattered. Ranks fill the nodes one after the other: which members share
    a node decides which links they use.

    >>> a100 = Fabric.named("a100-nvswitch")
    >>> tensor = price_collective(a100, "all_reduce", 2**26, range(8))
    >>> data = price_collective(a100, "all_reduce", 2**26, range(0, 64, 8))
    >>> tensor.typical < data.typical
    True

    In a permute all ranks send at the same time, each to the next; it takes as long as its slowest send.

    >>> permute = price_collective(a100, "permute", 2**26, range(16))
    >>> permute == price_collective(a100, "send", 2**26, (7, 8))
    True
    """
    if not isinstance(nbytes, int):  # of uneven splits all count in a ring, else those of the busiest rank
        nbytes = sum(nbytes) if kind in SUMMED_KINDS else max(nbytes, default=0)
    per_node = gpus_per_node or fabric.gpus_per_node
    if kind == "permute":
        kind, members = "send", _slowest_neighbours(members, per_node)
    return _price(fabric, kind, nbytes, Placement.of(members, per_node))


def _slowest_neighbours(members: Sequence[int], gpus_per_node: int) -> Sequence[int]:
    """Two neighbours around a ring, on different nodes if there are some."""
    pairs = list(zip(members, [*members[1:], *members[:1]]))
    return next((pair for pair in pairs if pair[0] // gpus_per_node != pair[1] // gpus_per_node), members[:2])


def assumptions(fabric: Fabric, world: int, gpus_per_node: int | None = None) -> list[str]:
    """Notes on what the prices of a job of so many ranks rest on; an error if the fabric has no links for it.

    >>> assumptions(Fabric.named("h100-nvswitch"), 64)
    ['fabric h100-nvswitch was not measured: times come from the specification of its links']
    >>> assumptions(Fabric("gloo", (Curve("all_reduce", 8, 1, 50.0, 1.0, 1.0, ((1024.0, 1.0),), 0.1),), ""), 16, 16)
    ['fabric gloo was measured with up to 8 ranks: 16 are extrapolated by the steps and traffic of ring and tree']
    """
    nodes = -(-world // (gpus_per_node or fabric.gpus_per_node))
    most = max((curve.nodes for curve in fabric.curves), default=0)
    if nodes > 1 and most < 2 and not (fabric.links and fabric.links.network):
        raise _unreachable(fabric, world, nodes)
    if not most:
        return [f"fabric {fabric.name} was not measured: times come from the specification of its links"]
    method = "by its links" if fabric.links else "by the steps and traffic of ring and tree"
    if nodes > most:
        seen = f"{most} node{'s' if most > 1 else ''}"
        nics = fabric.links.network if fabric.links else None
        network = f"a network of {nics.nics} x {nics.gbit:g} Gb/s a node" if nics else "a network"
        how = f"{nodes} are extrapolated {method}, in {network} without bottleneck"
        return [f"fabric {fabric.name} was measured on up to {seen}: {how}"]
    ranks = max(curve.ranks for curve in fabric.curves)
    if world > ranks:
        return [f"fabric {fabric.name} was measured with up to {ranks} ranks: {world} are extrapolated {method}"]
    return []


def _price(fabric: Fabric, kind: str, nbytes: int, placement: Placement) -> Range:
    if kind == "barrier":
        kind, nbytes = "all_reduce", 1
    if kind not in TRAFFIC:
        raise ForetraceError(f"no collective is called {kind!r}", f"Known are: {', '.join(TRAFFIC)}, barrier.")
    if placement.ranks < 2:
        return Range(0.0, 0.0, 0.0)
    curves = _nearest(fabric, kind, placement)
    if curves:
        found = [_extrapolated(fabric, curve, kind, nbytes, placement) for curve in curves]
        return _interpolated(found, curves, placement.ranks)
    if fabric.links is None:
        raise _unreachable(fabric, placement.ranks, placement.nodes)
    return Range.around(float(link_time(fabric.links, kind, nbytes, placement)), LinkConstants.shipped().spread)


def _nearest(fabric: Fabric, kind: str, placement: Placement) -> list[Curve]:
    """The nearest measured curve: of the kind or a similar one, then by nodes, then by ranks.

    Two if the ranks lie between two curves; none if nothing was measured inside a node, or between nodes.
    """
    curves = [curve for curve in fabric.curves if (curve.nodes > 1) == (placement.nodes > 1)]
    if not curves:
        return []
    preferred = (kind, *SIMILAR_KINDS.get(kind, ()), "all_reduce")

    def distance(curve: Curve) -> tuple[int, float]:
        place = preferred.index(curve.kind) if curve.kind in preferred else len(preferred)
        return place, abs(math.log(curve.nodes / placement.nodes))

    best = min(curves, key=distance)
    alike = sorted((c for c in curves if (c.kind, c.nodes) == (best.kind, best.nodes)), key=lambda curve: curve.ranks)
    fewer = [curve for curve in alike if curve.ranks <= placement.ranks][-1:]
    more = [curve for curve in alike if curve.ranks >= placement.ranks][:1]
    return fewer if fewer == more else fewer + more


def _interpolated(found: list[Range], curves: list[Curve], ranks: int) -> Range:
    """Between two rank counts, log-log."""
    if len(found) == 1:
        return found[0]
    fewer, more = (math.log(curve.ranks) for curve in curves)
    part = (math.log(ranks) - fewer) / (more - fewer)
    return Range(*(one ** (1 - part) * other**part for one, other in zip(*found)))


def _extrapolated(fabric: Fabric, curve: Curve, kind: str, nbytes: int, placement: Placement) -> Range:
    """A measured curve for another kind or shape of group, or for sizes below those measured."""
    measured = Placement.even(curve.ranks, curve.nodes)
    other_kind = OTHER_KIND_SPREAD if curve.kind != kind else 0.0
    if fabric.links:
        smallest = max(nbytes, curve.knots[0][0])
        there = link_time(fabric.links, curve.kind, smallest, measured)
        change = float(link_time(fabric.links, kind, nbytes, placement) / there)
        smaller = float(link_time(fabric.links, curve.kind, nbytes, measured) / there)
        unseen = min(-math.log(smaller), LinkConstants.shipped().spread)
        other_shape = OTHER_SHAPE_SPREAD if placement != measured else 0.0
        spread = math.hypot(curve.spread, other_kind, other_shape, unseen)
        return Range.around(time_at(curve, smallest) * change, spread)
    if placement == measured and not other_kind:
        return Range.around(time_at(curve, nbytes), curve.spread)
    return _by_steps(curve, kind, nbytes, placement, math.hypot(curve.spread, other_kind))


def _by_steps(curve: Curve, kind: str, nbytes: int, placement: Placement, spread: float) -> Range:
    """By algorithm steps: the links' bandwidth stays, latency follows the steps; the range spans a ring and no
    growth."""
    traffic = TRAFFIC[kind](placement.ranks) / TRAFFIC[curve.kind](curve.ranks)
    gbps = curve.gbps / traffic * (placement.nic_share if placement.nodes > 1 else 1.0)

    def at(steps: Callable[[int], float]) -> float:
        latency = curve.latency_us * steps(placement.ranks) / steps(curve.ranks)
        return time_at(replace(curve, latency_us=latency, gbps=gbps), nbytes)

    flat, between, ring = (at(steps) for steps in STEPS)
    return Range(Range.around(min(flat, ring), spread).low, between, Range.around(max(flat, ring), spread).high)


def _unreachable(fabric: Fabric, ranks: int, nodes: int) -> ForetraceError:
    if nodes == 1:
        return ForetraceError(
            f"fabric {fabric.name} was not measured inside a node, and nothing is known of its links",
            "`foretrace calibrate fabric` measures it, under torchrun; `foretrace platform list` shows other fabrics.",
        )
    return ForetraceError(
        f"fabric {fabric.name} was not measured between nodes, and {ranks} ranks are on {nodes} "
        f"({fabric.gpus_per_node} a node)",
        "Take a fabric of several nodes: `foretrace platform list` shows some; `foretrace calibrate fabric` measures "
        "one, under torchrun. Where all ranks are in one node, say --gpus-per-node.",
    )
