"""A fabric: how long the ranks of a job take to exchange data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from foretrace.platform.files import Positive, PositiveInt, read_as, write


@dataclass(frozen=True)
class Curve:
    """Time of one kind of collective over message sizes, for one number of ranks.

    Between a latency and a bandwidth the time bends from one to the other, sharply or gently; ``knots`` say by how much
    the measured sizes lie off that. `foretrace.costs.collectives` fits and evaluates it.
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


@dataclass(frozen=True)
class Fabric:
    """The links between ranks, as collectives feel them."""

    name: str
    curves: tuple[Curve, ...]
    provenance: str

    @classmethod
    def read(cls, path: Path) -> Fabric:
        """The fabric that a file describes; a damaged file says which field is wrong."""
        return read_as(cls, path)

    def write(self, path: Path) -> None:
        """Write it to a file.

        >>> import tempfile; path = Path(tempfile.mkdtemp()) / "fabric.json"
        >>> curve = Curve("all_reduce", 2, 1, 10.0, 100.0, 1.0, ((1024.0, 1.0),), 0.02)
        >>> fabric = Fabric("two", (curve,), "made up")
        >>> fabric.write(path); Fabric.read(path) == fabric
        True
        """
        write(path, asdict(self))
