"""A fabric: time of collectives between the ranks of a job, as measured curves, as the specification of links, or both.

`foretrace.cost_models.collectives` prices collectives with it: by the curves (``curves``), and by the links
(``topology``) where nothing like it was measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from foretrace.errors import ForetraceError
from foretrace.graph.operators import collective_kind
from foretrace.platform.typed_json import Positive, PositiveInt, read_as, read_object, write

FABRICS = Path(__file__).parent / "data" / "fabrics"
"""Shipped fabrics that were measured and published."""
LINKS = Path(__file__).parent / "data" / "links"
"""Shipped specifications of links, a file for each kind of machine: adding one is adding a file."""
LINK_KINDS = ("nvswitch", "nvlink", "pcie")


@dataclass(frozen=True)
class Curve:
    """Time of one kind of collective over message sizes, for one number of ranks.

    Latency for small sizes, bandwidth for large ones, and a bend in between, sharp or gentle; ``knots`` say by how much
    the measured sizes differ from that.
    """

    kind: str
    """As in `foretrace.graph.Collective`."""
    ranks: PositiveInt
    nodes: PositiveInt
    """Nodes that the ranks are spread over, evenly."""
    latency_us: Positive
    gbps: Positive
    """Bytes of the collective (`Collective.nbytes`) a nanosecond, where it is large."""
    bend: Positive
    """1 adds transfer to latency; below, sizes in between take longer than that, above, less."""
    knots: tuple[tuple[Positive, Positive], ...]
    """Bytes, in rising order, and measured time over that of the bend."""
    spread: float
    """Standard deviation of the logarithm of the time around the curve."""

    @property
    def nonsense(self) -> str:
        """What is impossible about the curve; empty where nothing is.

        >>> Curve("all_reduce", 2, 4, 10.0, 100.0, 1.0, ((1024.0, 1.0),), 0.02).nonsense
        'has 2 ranks on 4 nodes'
        """
        sizes = [nbytes for nbytes, _ in self.knots]
        if self.ranks < 2:
            return "has one rank, which sends nothing"
        if self.nodes > self.ranks:
            return f"has {self.ranks} ranks on {self.nodes} nodes"
        if not sizes or sizes != sorted(set(sizes)):
            return "has knots that do not rise" if sizes else "has no knots"
        return "" if collective_kind(self.kind) == self.kind else f"is of {self.kind!r}, which is no collective"


@dataclass(frozen=True)
class Oversubscription:
    """How processes slow each other down that share the CPU of a machine, as the ranks of a job without GPUs do."""

    ranks: PositiveInt
    slower: Positive
    """Time of each of so many processes, over that of one that is alone."""
    behind: float
    """By what share of their mean the last of them is later than it, on average."""


@dataclass(frozen=True)
class CpuOverlap:
    """Compute/communication overlap on a CPU (gloo): slowdown of a rank while its threads communicate; not of GPUs."""

    work: Positive
    """Time of the work, over that without communication."""
    transfer: Positive
    """Time of the communication, over that without work."""


@dataclass(frozen=True)
class IntraNode:
    """Links between the GPUs of one node."""

    kind: str
    """``nvswitch``; ``nvlink``, from GPU to GPU; or ``pcie``, through host memory."""
    gbps: Positive
    """GB a second that leave one GPU; as many come in at the same time."""
    pair_gbps: Positive
    """The part of it that goes to one neighbour; on a switch, all."""
    reduces: bool
    """Whether the switch reduces in the network (NVLink SHARP)."""


@dataclass(frozen=True)
class Network:
    """Links between nodes."""

    kind: str
    nics: PositiveInt
    """Network cards of a node."""
    gbit: Positive
    """Gb a second of a card, each way."""
    latency_us: float
    """Of a message from one node to another, driver included."""

    @property
    def gbps(self) -> float:
        """GB a second that leave one node.

        >>> Network("InfiniBand", nics=8, gbit=400, latency_us=5).gbps
        400.0
        """
        return self.nics * self.gbit / 8


@dataclass(frozen=True)
class Links:
    """The links of a kind of machine, as its maker specifies them: inside a node, and between nodes.

    >>> Links.named("h100-nvswitch").inside.gbps
    450
    """

    name: str
    gpu: str
    gpus_per_node: PositiveInt
    inside: IntraNode
    provenance: str
    network: Network | None = None
    """None where nodes are not connected."""

    @classmethod
    def read(cls, path: Path) -> Links:
        """Read a file of links; an error names the field that is wrong."""
        links = read_as(cls, path)
        if links.inside.kind not in LINK_KINDS:
            raise ForetraceError(
                f"{path}: the field 'inside.kind' holds {links.inside.kind!r}; "
                f"it should be one of {', '.join(LINK_KINDS)}",
                "Restore it.",
            )
        return links

    @classmethod
    def named(cls, name: str) -> Links:
        """Shipped links."""
        return cls.read(LINKS / f"{name}.json")


@dataclass(frozen=True)
class Fabric:
    """The cost of collectives between ranks: measured curves, the specification of the links, or both."""

    name: str
    curves: tuple[Curve, ...]
    provenance: str
    links: Links | None = None
    """None where they are not known."""
    crowd: tuple[Oversubscription, ...] = ()
    """By rising number of ranks; empty where ranks have devices of their own."""
    beside: CpuOverlap | None = None
    """None where it was not measured, or ranks have devices of their own."""

    @property
    def gpus_per_node(self) -> int:
        """Of the links; or else the most ranks of a node that were measured.

        >>> Fabric.named("h100-8x").gpus_per_node
        8
        """
        if self.links:
            return self.links.gpus_per_node
        return max((-(-curve.ranks // curve.nodes) for curve in self.curves), default=1)

    @classmethod
    def of(cls, links: Links) -> Fabric:
        """The fabric of specified links, with nothing measured.

        >>> Fabric.of(Links.named("h100-nvswitch")).curves
        ()
        """
        return cls(links.name, (), f"by specification: {links.provenance}", links)

    @classmethod
    def named(cls, name: str) -> Fabric:
        """A shipped fabric: one that was measured, or one by the specification of its links.

        >>> len(Fabric.named("a100-8x-nvswitch").curves)
        9
        """
        found = fabrics()
        if name not in found:
            raise ForetraceError(
                f"no fabric is called {name!r}",
                f"Known are: {', '.join(sorted(found))}. "
                "`foretrace platform fabric --from RECORDING --out NAME` makes one of a job that you recorded.",
            )
        return cls.read(found[name])

    @classmethod
    def read(cls, path: Path) -> Fabric:
        """Read a file of a fabric, or of links; an error names the field that is wrong."""
        if "inside" in read_object(path):
            return cls.of(Links.read(path))
        fabric = read_as(cls, path)
        for number, curve in enumerate(fabric.curves):
            if why := curve.nonsense:
                raise ForetraceError(f"{path}: the field 'curves[{number}]' {why}", "Restore it.")
        return fabric

    def write(self, path: Path) -> None:
        """Write it to a file."""
        write(path, asdict(self))


def fabrics() -> dict[str, Path]:
    """The files of all shipped fabrics, by name."""
    return {path.stem: path for home in (LINKS, FABRICS) for path in sorted(home.glob("*.json"))}
