"""How the ranks of a group lie on nodes: it decides which links they use, and who else does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import ForetraceError
from foretrace.platform.files import Positive, read_as
from foretrace.platform.links import Links


class Layout(NamedTuple):
    """A group of ranks on nodes.

    The network cards of a node are shared out among its GPUs: a group with some of them has the cards of those. The
    others are taken to be in groups of the same shape that exchange at the same time, as in data parallel training
    around tensor parallel groups.
    """

    ranks: int
    nodes: int
    per_node: int
    """Members on the node that has most of them."""
    cards: float = 1.0
    """The part of a node's network cards that is theirs."""

    @classmethod
    def of(cls, members: Iterable[int], gpus_per_node: int) -> Layout:
        """That of ranks which fill one node after the other.

        >>> Layout.of(range(8), gpus_per_node=8)
        Layout(ranks=8, nodes=1, per_node=8, cards=1.0)
        >>> Layout.of(range(0, 64, 8), gpus_per_node=8)
        Layout(ranks=8, nodes=8, per_node=1, cards=0.125)
        """
        if gpus_per_node < 1:
            raise ForetraceError(f"a node can't have {gpus_per_node} GPUs", "Give one at least.")
        on_node = Counter(rank // gpus_per_node for rank in set(members))
        most = max(on_node.values(), default=0)
        return cls(sum(on_node.values()), len(on_node), most, most / gpus_per_node)

    @classmethod
    def even(cls, ranks: int, nodes: int = 1) -> Layout:
        """That of all the ranks which use some nodes, spread evenly.

        >>> Layout.even(16, nodes=2)
        Layout(ranks=16, nodes=2, per_node=8, cards=1.0)
        """
        return cls(ranks, nodes, -(-ranks // nodes))


# --- was cost_models.links: Collectives from the specification of links: what they take where nobody measured.

Floats = NDArray[np.float64]

CONSTANTS = Path(__file__).with_name("links.json")
PEERS = 8
"""With so many others a rank exchanges at a time: so NCCL cuts its point-to-point work."""
THROUGH_HOST = 2.0
"""What goes through host memory goes in and out again: twice the hops, half the rate."""


@dataclass(frozen=True)
class Constants:
    """What specifications do not say; fitted on published tables by ``benchmarks/make_fabrics.py``."""

    call_us: Positive
    """A collective's kernel: start, first flags, end."""
    hop_us: Positive
    """From GPU to GPU over NVLink."""
    link_share: Positive
    """The part of a link's rate that data gets: the rest are headers and acknowledgements."""
    switch_share: Positive
    """The same where the switch adds up: it reads from all GPUs, so the slowest counts."""
    network_hops: Positive
    """How many of the network's latencies a hop between nodes takes: data, and its flag after it."""
    bend: Positive
    """How latency and transfer add up: 1 is plain addition, 1/2 the best size of chunks."""
    spread: Positive
    """Standard deviation of the logarithm of the time on tables that were not fitted."""
    provenance: str

    @classmethod
    @cache
    def shipped(cls) -> Constants:
        """Those that come with Foretrace."""
        return read_as(cls, CONSTANTS)


class Route(NamedTuple):
    """What one algorithm asks of the links."""

    hops_inside: float
    hops_between: float
    inside: float
    """Bytes through a GPU's links per byte of the collective."""
    between: float
    """Bytes through the network cards of a node, likewise."""
    by_switch: bool = False


def _ring(layout: Layout, rounds: int) -> Route:
    """Everybody passes parts on to the next: once round to gather or scatter, twice to reduce for all."""
    part = rounds * (layout.ranks - 1) / layout.ranks
    return Route(rounds * (layout.ranks - layout.nodes), rounds * (layout.nodes - 1), part, part)


def _all_reduce(layout: Layout, reduces: bool) -> list[Route]:
    levels = 2 * math.ceil(math.log2(layout.nodes))
    ring = _ring(layout, 2)
    # A chain in each node, a tree of nodes. Two trees carry half each; a node inside of one is a leaf of the other.
    routes = [ring, Route(2 * (layout.per_node - 1), levels, ring.inside, 2.0)]
    if reduces and layout.per_node > 1:
        # All gives and takes each byte once. Of two nodes, each is the root of one tree and the leaf of the other.
        routes.append(Route(2, levels, 1.0, 1.0 if layout.nodes == 2 else 2.0, by_switch=True))
    return routes


def _gathered(layout: Layout, reduces: bool) -> list[Route]:
    return [_ring(layout, 1)]


def _passed_on(layout: Layout, reduces: bool) -> list[Route]:
    return [Route(layout.ranks - layout.nodes, layout.nodes - 1, 1.0, 1.0)]


def _exchanged(layout: Layout, reduces: bool) -> list[Route]:
    """Each to each: what goes to other nodes passes the cards, of all members of a node."""
    (route,) = _at_root(layout, reduces)
    return [route._replace(between=layout.per_node * route.between)]


def _at_root(layout: Layout, reduces: bool) -> list[Route]:
    """One with each, several at a time: its own links carry all of it."""
    near, away = layout.per_node - 1, layout.ranks - layout.per_node
    part = (layout.ranks - 1) / layout.ranks
    return [Route(math.ceil(near / PEERS), math.ceil(away / PEERS), part, away / layout.ranks)]


def _between_two(layout: Layout, reduces: bool) -> list[Route]:
    apart = layout.nodes > 1
    return [Route(not apart, apart, not apart, apart)]


ROUTES: dict[str, Callable[[Layout, bool], list[Route]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gathered,
    "reduce_scatter": _gathered,
    "broadcast": _passed_on,
    "reduce": _passed_on,
    "all_to_all": _exchanged,
    "gather": _at_root,
    "scatter": _at_root,
    "send": _between_two,
    "recv": _between_two,
}
"""By kind, as in `foretrace.graph.Collective`."""


def link_time(
    links: Links, kind: str, nbytes: Floats | float, layout: Layout, constants: Constants | None = None
) -> Floats:
    """Microseconds of a collective by the specification of its links.

    Parameters
    ----------
    links
        Those of the machines.
    kind, nbytes
        As in `foretrace.graph.Collective`; the bytes may be many sizes at once.
    layout
        How the group lies on nodes.
    constants
        The shipped ones where left out.

    >>> h100 = Links.named("h100-nvswitch")
    >>> inside, across = Layout.of(range(8), 8), Layout.of(range(0, 64, 8), 8)
    >>> bool(link_time(h100, "all_reduce", 2**30, inside) < link_time(h100, "all_reduce", 2**30, across))
    True
    """
    known = constants or Constants.shipped()
    if layout.nodes > 1 and links.network is None:
        raise ForetraceError(
            f"{links.name} has no network, and a group of {layout.ranks} ranks lies on {layout.nodes} nodes",
            f"It has {links.gpus_per_node} GPUs a node. Take links with a network.",
        )
    times = [_time(links, route, nbytes, layout, known) for route in ROUTES[kind](layout, links.inside.reduces)]
    return np.asarray(np.minimum.reduce(times))


def _time(links: Links, route: Route, nbytes: Floats | float, layout: Layout, known: Constants) -> Floats:
    detour = THROUGH_HOST if links.inside.kind == "pcie" else 1.0
    share = known.switch_share if route.by_switch else known.link_share
    rate = min(links.inside.gbps, links.inside.pair_gbps * max(layout.per_node - 1, 1))
    per_byte = detour * route.inside / (share * rate)
    latency = known.call_us + detour * known.hop_us * route.hops_inside
    if links.network and layout.nodes > 1:
        per_byte = max(per_byte, route.between / (links.network.gbps * layout.cards))
        latency += known.network_hops * links.network.latency_us * route.hops_between
    transfer = np.asarray(nbytes, np.float64) * per_byte / 1e3
    return np.asarray((latency**known.bend + transfer**known.bend) ** (1 / known.bend))
