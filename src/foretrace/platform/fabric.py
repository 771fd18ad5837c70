"""A fabric: how long the ranks of a job take to exchange data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from foretrace.graph import ForetraceError
from foretrace.graph.operators import collective_kind
from foretrace.platform.files import Positive, PositiveInt, read_as, read_object, write
from foretrace.platform.links import LINKS, Links

FABRICS = Path(__file__).parent / "fabrics"


@dataclass(frozen=True)
class Curve:
    """Time of one kind of collective over message sizes, for one number of ranks.

    Between a latency and a bandwidth the time bends from one to the other, sharply or gently; ``knots`` say by how much
    the measured sizes lie off that. `foretrace.cost_models.collectives.curves` fits and evaluates it.
    """

    kind: str
    """As in `foretrace.graph.Collective`."""
    ranks: PositiveInt
    nodes: PositiveInt
    """Machines that the ranks are spread over, evenly."""
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
        """What no measurement can have shown; empty where nothing is wrong.

        >>> Curve("all_reduce", 2, 4, 10.0, 100.0, 1.0, ((1024.0, 1.0),), 0.02).nonsense
        'has 2 ranks on 4 nodes'
        """
        sizes = [nbytes for nbytes, _ in self.knots]
        if self.ranks < 2:
            return "has one rank, which exchanges nothing"
        if self.nodes > self.ranks:
            return f"has {self.ranks} ranks on {self.nodes} nodes"
        if not sizes or sizes != sorted(set(sizes)):
            return "has knots that do not rise" if sizes else "has no knots"
        return "" if collective_kind(self.kind) == self.kind else f"is of {self.kind!r}, which is no collective"


@dataclass(frozen=True)
class Crowd:
    """Processes that work at once on the processors of one machine, as a job without GPUs does."""

    ranks: PositiveInt
    slower: Positive
    """How many times as long each of so many takes as one that is alone."""
    behind: float
    """By what part of the mean the last of them is later than it, on average."""


@dataclass(frozen=True)
class Beside:
    """What ranks do on processors while threads of theirs exchange something, as gloo's do: each takes longer."""

    work: Positive
    """How many times as long the work takes."""
    transfer: Positive
    """How many times as long the exchange takes."""


@dataclass(frozen=True)
class Fabric:
    """The links between ranks, as collectives feel them: measured, or known from their specification, or both."""

    name: str
    curves: tuple[Curve, ...]
    provenance: str
    links: Links | None = None
    """None where nothing is known of them but what was measured."""
    crowd: tuple[Crowd, ...] = ()
    """Of rising numbers of ranks; none where ranks have devices that do their work."""
    beside: Beside | None = None
    """None where nobody measured it, or ranks have devices."""

    @property
    def gpus_per_node(self) -> int:
        """Of its links; or else the most that were measured together in a node.

        >>> Fabric.named("h100-8x").gpus_per_node
        8
        """
        if self.links:
            return self.links.gpus_per_node
        return max((-(-curve.ranks // curve.nodes) for curve in self.curves), default=1)

    @classmethod
    def of(cls, links: Links) -> Fabric:
        """The fabric that a specification makes, with nothing measured.

        >>> Fabric.of(Links.named("h100-nvswitch")).curves
        ()
        """
        return cls(links.name, (), f"by specification: {links.provenance}", links)

    @classmethod
    def named(cls, name: str) -> Fabric:
        """A fabric that comes with Foretrace: one that was measured, or one by the specification of its links.

        >>> len(Fabric.named("a100-8x-nvswitch").curves)
        5
        """
        found = fabrics()
        if name not in found:
            raise ForetraceError(f"no fabric is called {name!r}", f"Known are: {', '.join(sorted(found))}.")
        return cls.read(found[name])

    @classmethod
    def read(cls, path: Path) -> Fabric:
        """The fabric, or the links, that a file describes; a damaged file says which field is wrong."""
        if "inside" in read_object(path):
            return cls.of(Links.read(path))
        fabric = read_as(cls, path)
        for number, curve in enumerate(fabric.curves):
            if why := curve.nonsense:
                raise ForetraceError(f"{path}: the field 'curves[{number}]' {why}", "Restore it.")
        return fabric

    def write(self, path: Path) -> None:
        """Write it to a file.

        >>> import tempfile; path = Path(tempfile.mkdtemp()) / "fabric.json"
        >>> curve = Curve("all_reduce", 2, 1, 10.0, 100.0, 1.0, ((1024.0, 1.0),), 0.02)
        >>> fabric = Fabric("two", (curve,), "made up")
        >>> fabric.write(path); Fabric.read(path) == fabric
        True
        """
        write(path, asdict(self))


def fabrics() -> dict[str, Path]:
    """The files of all fabrics that come with Foretrace, by name.

    >>> {"h100-8x", "h100-nvswitch"} <= fabrics().keys()
    True
    """
    return {path.stem: path for home in (LINKS, FABRICS) for path in sorted(home.glob("*.json"))}
