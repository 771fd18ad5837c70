"""What a collective takes on a fabric, with a range.

Measured curves lead. Rank counts between measured ones are interpolated; other shapes and kinds are carried over from
the nearest curve: by the specification of the links where the fabric has one, else by the steps and the traffic of ring
and tree algorithms. What nobody measured inside a node or between nodes comes from the specification alone. The further
it is carried, the wider the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from foretrace.cost_models.collectives.curves import time_at
from foretrace.cost_models.collectives.topology import Constants, Layout, link_time
from foretrace.cost_models.ranges import Range
from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Curve, Fabric

OTHER_KIND = 0.4
"""Standard deviation of the logarithm of a time that is carried over from another kind of collective: so far apart lie
the published tables of five kinds on eight A100s."""
OTHER_SHAPE = 0.2
"""The same of one that is carried over to other ranks or nodes by the links: so far apart lie the published tables of
two A100s and of eight."""

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
IN_PARTS = ("all_gather", "reduce_scatter", "gather", "scatter")
"""Kinds whose bytes are those of all ranks' parts together."""
STEPS: tuple[Callable[[int], float], ...] = (
    lambda ranks: 1.0,
    lambda ranks: math.sqrt(math.log2(ranks)),
    lambda ranks: ranks - 1.0,
)
"""How the latency grows with the ranks: not at all, where a call's own cost prevails; as in a ring, whose every step
counts; and in between, as in a tree beside a call's cost."""


def price_collective(
    fabric: Fabric,
    kind: str,
    nbytes: int | Sequence[int],
    members: Sequence[int],
    gpus_per_node: int | None = None,
) -> Range:
    """What a collective takes from the arrival of its last rank on.

    Several that go out as one coalesced call are one collective of all their bytes.

    Parameters
    ----------
    fabric
        Where.
    kind, nbytes
        As in `foretrace.graph.Collective`. Of uneven splits, the bytes of each rank: what it gives away in an
        all_to_all, its part of what is gathered or scattered.
    members
        The ranks of its group. They fill the nodes one after the other: which of them share a node decides which links
        they use.
    gpus_per_node
        As many as the fabric's nodes have, where left out.

    >>> a100 = Fabric.named("a100-nvswitch")
    >>> tensor, data = price_collective(a100, "all_reduce", 2**26, range(8)), price_collective(
    ...     a100, "all_reduce", 2**26, range(0, 64, 8))
    >>> tensor.typical < data.typical
    True
    """
    layout = Layout.of(members, gpus_per_node or fabric.gpus_per_node)
    return _price(fabric, kind, nbytes if isinstance(nbytes, int) else _decisive(kind, nbytes), layout)


def predict(fabric: Fabric, kind: str, nbytes: int, ranks: int, nodes: int = 1) -> Range:
    """What a collective takes whose group uses all of some nodes, evenly.

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

    >>> round(predict(Fabric.named("a100-8x-nvswitch"), "all_reduce", 2**26, 8).typical, -1)
    580.0
    """
    return _price(fabric, kind, nbytes, Layout.even(ranks, nodes))


def assumptions(fabric: Fabric, world: int, gpus_per_node: int | None = None) -> list[str]:
    """What prices on a fabric rest on, in words, for a job of so many ranks; refused where it has no links for it.

    >>> assumptions(Fabric.named("h100-nvswitch"), 64)
    ['nobody measured fabric h100-nvswitch: its times come from the specification of its links']
    >>> assumptions(Fabric("gloo", (Curve("all_reduce", 8, 1, 50.0, 1.0, 1.0, ((1024.0, 1.0),), 0.1),), ""), 16, 16)
    ['fabric gloo was measured with 8 ranks at most: 16 are carried over by the steps and the traffic of ring and tree']
    """
    nodes = -(-world // (gpus_per_node or fabric.gpus_per_node))
    most = max((curve.nodes for curve in fabric.curves), default=0)
    if nodes > 1 and most < 2 and not (fabric.links and fabric.links.network):
        raise _too_small(fabric, world, nodes)
    if not most:
        return [f"nobody measured fabric {fabric.name}: its times come from the specification of its links"]
    way = "by its links" if fabric.links else "by the steps and the traffic of ring and tree"
    if nodes > most:
        seen = f"{most} node{'s' if most > 1 else ''} at most"
        cards = fabric.links.network if fabric.links else None
        network = f"a network of {cards.nics} x {cards.gbit:g} Gb/s a node" if cards else "a network"
        carried = f"{nodes} are carried over {way}, in {network} without bottleneck"
        return [f"fabric {fabric.name} was measured on {seen}: {carried}"]
    ranks = max(curve.ranks for curve in fabric.curves)
    if world > ranks:
        return [f"fabric {fabric.name} was measured with {ranks} ranks at most: {world} are carried over {way}"]
    return []


def _decisive(kind: str, sizes: Sequence[int]) -> int:
    """The bytes that decide how long uneven splits take: all of them in a ring, else those of the busiest rank."""
    return sum(sizes) if kind in IN_PARTS else max(sizes, default=0)


def _price(fabric: Fabric, kind: str, nbytes: int, layout: Layout) -> Range:
    if kind == "barrier":
        kind, nbytes = "all_reduce", 1
    if kind not in TRAFFIC:
        raise ForetraceError(f"no collective is called {kind!r}", f"Known are: {', '.join(TRAFFIC)}, barrier.")
    if layout.ranks < 2:
        return Range(0.0, 0.0, 0.0)
    curves = _nearest(fabric, kind, layout)
    if curves:
        return _between([_carried_over(fabric, curve, kind, nbytes, layout) for curve in curves], curves, layout.ranks)
    if fabric.links is None:
        raise _too_small(fabric, layout.ranks, layout.nodes)
    return Range.around(float(link_time(fabric.links, kind, nbytes, layout)), Constants.shipped().spread)


def _nearest(fabric: Fabric, kind: str, layout: Layout) -> list[Curve]:
    """The measured curve that comes closest: of the kind or one like it, then of the nodes, then of the ranks.

    Two of them where the ranks lie between; none where nothing was measured inside a node, or between nodes.
    """
    curves = [curve for curve in fabric.curves if (curve.nodes > 1) == (layout.nodes > 1)]
    if not curves:
        return []
    preferred = (kind, *LIKE.get(kind, ()), "all_reduce")

    def distance(curve: Curve) -> tuple[int, float]:
        place = preferred.index(curve.kind) if curve.kind in preferred else len(preferred)
        return place, abs(math.log(curve.nodes / layout.nodes))

    best = min(curves, key=distance)
    alike = sorted((c for c in curves if (c.kind, c.nodes) == (best.kind, best.nodes)), key=lambda curve: curve.ranks)
    fewer = [curve for curve in alike if curve.ranks <= layout.ranks][-1:]
    more = [curve for curve in alike if curve.ranks >= layout.ranks][:1]
    return fewer if fewer == more else fewer + more


def _between(found: list[Range], curves: list[Curve], ranks: int) -> Range:
    """Between two rank counts, in proportion to the logarithms."""
    if len(found) == 1:
        return found[0]
    fewer, more = (math.log(curve.ranks) for curve in curves)
    part = (math.log(ranks) - fewer) / (more - fewer)
    return Range(*(one ** (1 - part) * other**part for one, other in zip(*found)))


def _carried_over(fabric: Fabric, curve: Curve, kind: str, nbytes: int, layout: Layout) -> Range:
    """A measured curve for another kind or shape of group, or for sizes below those measured."""
    measured = Layout.even(curve.ranks, curve.nodes)
    other_kind = OTHER_KIND if curve.kind != kind else 0.0
    if fabric.links:
        smallest = max(nbytes, curve.knots[0][0])
        there = link_time(fabric.links, curve.kind, smallest, measured)
        change = float(link_time(fabric.links, kind, nbytes, layout) / there)
        smaller = float(link_time(fabric.links, curve.kind, nbytes, measured) / there)
        unseen = min(-math.log(smaller), Constants.shipped().spread)
        other_shape = OTHER_SHAPE if layout != measured else 0.0
        spread = math.hypot(curve.spread, other_kind, other_shape, unseen)
        return Range.around(time_at(curve, smallest) * change, spread)
    if layout == measured and not other_kind:
        return Range.around(time_at(curve, nbytes), curve.spread)
    return _by_steps(curve, kind, nbytes, layout, math.hypot(curve.spread, other_kind))


def _by_steps(curve: Curve, kind: str, nbytes: int, layout: Layout, spread: float) -> Range:
    """The links' bandwidth stays, latency follows the steps: in the range lie those of a ring and none at all."""
    traffic = TRAFFIC[kind](layout.ranks) / TRAFFIC[curve.kind](curve.ranks)
    gbps = curve.gbps / traffic * (layout.cards if layout.nodes > 1 else 1.0)

    def at(steps: Callable[[int], float]) -> float:
        latency = curve.latency_us * steps(layout.ranks) / steps(curve.ranks)
        return time_at(replace(curve, latency_us=latency, gbps=gbps), nbytes)

    flat, between, ring = (at(steps) for steps in STEPS)
    return Range(Range.around(min(flat, ring), spread).low, between, Range.around(max(flat, ring), spread).high)


def _too_small(fabric: Fabric, ranks: int, nodes: int) -> ForetraceError:
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
