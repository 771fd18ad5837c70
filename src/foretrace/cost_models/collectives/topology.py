"""The time of a collective from the specification of its links and the placement of its ranks, without measurements.

Each algorithm is a route: hops inside nodes and between them, bytes through a GPU's links and through a node's network
cards. Hops add up to a latency, bytes over bandwidth to a transfer; of several algorithms the fastest is taken, as NCCL
does. A message is pipelined in chunks: with the best chunk size, the square roots of latency and transfer add up, which
is a bend of one half; the tables of nccl-tests show about that, from the small messages of the LL protocol over LL128
to the large ones of Simple. (Protocols of their own, each with its share of the bandwidth, were tried: they fitted the
tables no better.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from foretrace.errors import ForetraceError
from foretrace.graph.tables import Floats
from foretrace.platform.fabric import Links
from foretrace.platform.typed_json import Positive, read_as

CONSTANTS_FILE = Path(__file__).with_name("links.json")
PEERS = 8
"""Peers that a rank exchanges with at a time: NCCL splits its point-to-point work so."""
THROUGH_HOST = 2.0
"""Data through host memory goes in and out again: twice the hops, half the bandwidth."""


class Placement(NamedTuple):
    """How the ranks of a group are placed on nodes.

    The network cards of a node are shared out among its GPUs: a group with some of the GPUs has the cards of those. The
    other GPUs are taken to be in groups of the same shape that communicate at the same time, as in data parallel
    training around tensor parallel groups.
    """

    ranks: int
    nodes: int
    per_node: int
    """Members on the node that has most of them."""
    nic_share: float = 1.0
    """The share of a node's network cards that the group has."""

    @classmethod
    def of(cls, members: Iterable[int], gpus_per_node: int) -> Placement:
        """The placement of ranks that fill one node after the other.

        >>> Placement.of(range(8), gpus_per_node=8)
        Placement(ranks=8, nodes=1, per_node=8, nic_share=1.0)
        >>> Placement.of(range(0, 64, 8), gpus_per_node=8)
        Placement(ranks=8, nodes=8, per_node=1, nic_share=0.125)
        """
        if gpus_per_node < 1:
            raise ForetraceError(f"a node can't have {gpus_per_node} GPUs", "Give one at least.")
        on_node = Counter(rank // gpus_per_node for rank in set(members))
        most = max(on_node.values(), default=0)
        return cls(sum(on_node.values()), len(on_node), most, most / gpus_per_node)

    @classmethod
    def even(cls, ranks: int, nodes: int = 1) -> Placement:
        """The placement of ranks that use all of some nodes, evenly."""
        return cls(ranks, nodes, -(-ranks // nodes))


@dataclass(frozen=True)
class LinkConstants:
    """Constants of links that specifications do not give, fitted by ``benchmarks/fit/make_fabrics.py``."""

    call_us: Positive
    """A collective's kernel: start, first flags, end."""
    hop_us: Positive
    """Latency from GPU to GPU over NVLink."""
    link_share: Positive
    """The share of a link's bandwidth that data gets: the rest are headers and acknowledgements."""
    switch_share: Positive
    """The same if the switch reduces (NVLS): it reads from all GPUs, so the slowest counts."""
    network_hops: Positive
    """Network latencies of a hop between nodes: data, and its flag after it."""
    bend: Positive
    """How latency and transfer add up: 1 is plain addition, 1/2 the best chunk size."""
    spread: Positive
    """Standard deviation of the logarithm of the time on tables that were not fitted."""
    provenance: str

    @classmethod
    @cache
    def shipped(cls) -> LinkConstants:
        """The constants that come with Foretrace."""
        return read_as(cls, CONSTANTS_FILE)


class Route(NamedTuple):
    """The traffic and the latencies of one algorithm on the links."""

    hops_inside: float
    hops_between: float
    inside: float
    """Bytes through a GPU's links per byte of the collective."""
    between: float
    """Bytes through a node's network cards per byte of the collective."""
    by_switch: bool = False


def _ring(placement: Placement, rounds: int) -> Route:
    """Each rank passes parts on to the next: once around to gather or scatter, twice to all-reduce."""
    part = rounds * (placement.ranks - 1) / placement.ranks
    return Route(rounds * (placement.ranks - placement.nodes), rounds * (placement.nodes - 1), part, part)


def _all_reduce(placement: Placement, reduces: bool) -> list[Route]:
    levels = 2 * math.ceil(math.log2(placement.nodes))
    ring = _ring(placement, 2)
    # A chain in each node, a tree of nodes. Two trees carry half each; an inner node of one is a leaf of the other.
    routes = [ring, Route(2 * (placement.per_node - 1), levels, ring.inside, 2.0)]
    if reduces and placement.per_node > 1:
        # Every GPU sends and receives each byte once. Of two nodes, each is the root of one tree and a leaf of the
        # other.
        routes.append(Route(2, levels, 1.0, 1.0 if placement.nodes == 2 else 2.0, by_switch=True))
    return routes


def _gather(placement: Placement, reduces: bool) -> list[Route]:
    return [_ring(placement, 1)]


def _chain(placement: Placement, reduces: bool) -> list[Route]:
    return [Route(placement.ranks - placement.nodes, placement.nodes - 1, 1.0, 1.0)]


def _all_to_all(placement: Placement, reduces: bool) -> list[Route]:
    """Each to each: the cards carry what all members of a node send to other nodes."""
    (route,) = _rooted(placement, reduces)
    return [route._replace(between=placement.per_node * route.between)]


def _rooted(placement: Placement, reduces: bool) -> list[Route]:
    """One with each, several at a time: the root's links carry all of it."""
    near, away = placement.per_node - 1, placement.ranks - placement.per_node
    part = (placement.ranks - 1) / placement.ranks
    return [Route(math.ceil(near / PEERS), math.ceil(away / PEERS), part, away / placement.ranks)]


def _point_to_point(placement: Placement, reduces: bool) -> list[Route]:
    apart = placement.nodes > 1
    return [Route(not apart, apart, not apart, apart)]


ROUTES: dict[str, Callable[[Placement, bool], list[Route]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gather,
    "reduce_scatter": _gather,
    "broadcast": _chain,
    "reduce": _chain,
    "all_to_all": _all_to_all,
    "gather": _rooted,
    "scatter": _rooted,
    "send": _point_to_point,
    "recv": _point_to_point,
}
"""By kind, as in `foretrace.graph.Collective`."""


def link_time(
    links: Links, kind: str, nbytes: Floats | float, placement: Placement, constants: LinkConstants | None = None
) -> Floats:
    """Microseconds of a collective by the specification of its links.

    Bytes may be many sizes at once.
    """
    known = constants or LinkConstants.shipped()
    if placement.nodes > 1 and links.network is None:
        raise ForetraceError(
            f"{links.name} has no network, and a group of {placement.ranks} ranks lies on {placement.nodes} nodes",
            f"It has {links.gpus_per_node} GPUs a node. Take links with a network.",
        )
    times = [_time(links, route, nbytes, placement, known) for route in ROUTES[kind](placement, links.inside.reduces)]
    return np.asarray(np.minimum.reduce(times))


def _time(links: Links, route: Route, nbytes: Floats | float, placement: Placement, known: LinkConstants) -> Floats:
    detour = THROUGH_HOST if links.inside.kind == "pcie" else 1.0
    share = known.switch_share if route.by_switch else known.link_share
    rate = min(links.inside.gbps, links.inside.pair_gbps * max(placement.per_node - 1, 1))
    per_byte = detour * route.inside / (share * rate)
    latency = known.call_us + detour * known.hop_us * route.hops_inside
    if links.network and placement.nodes > 1:
        per_byte = max(per_byte, route.between / (links.network.gbps * placement.nic_share))
        latency += known.network_hops * links.network.latency_us * route.hops_between
    transfer = np.asarray(nbytes, np.float64) * per_byte / 1e3
    return np.asarray((latency**known.bend + transfer**known.bend) ** (1 / known.bend))
