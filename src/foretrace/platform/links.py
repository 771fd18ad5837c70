"""The links of a kind of machine, as its maker states them: inside a node, and between nodes.

A kind is a file in ``links/``: adding one is adding a file. `foretrace.cost_models.collectives.topology` says what collectives take on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foretrace.graph import ForetraceError
from foretrace.platform.files import Positive, PositiveInt, read_as

LINKS = Path(__file__).parent / "links"
KINDS = ("nvswitch", "nvlink", "pcie")
"""What joins the GPUs of a node."""


@dataclass(frozen=True)
class Inside:
    """What joins the GPUs of one node."""

    kind: str
    """``nvswitch``; ``nvlink``, from GPU to GPU; or ``pcie``, through host memory."""
    gbps: Positive
    """All that leaves one GPU, in GB a second; as much comes in at the same time."""
    pair_gbps: Positive
    """What of that goes to one neighbour; on a switch, all."""
    reduces: bool
    """Whether the switch adds up what passes (NVLink SHARP)."""


@dataclass(frozen=True)
class Network:
    """What joins nodes."""

    kind: str
    nics: PositiveInt
    """Cards of a node."""
    gbit: Positive
    """Of a card each way, in Gb a second."""
    latency_us: float
    """Of a message from one node to another, what drives the card included."""

    @property
    def gbps(self) -> float:
        """What leaves one node, in GB a second.

        >>> Network("InfiniBand", nics=8, gbit=400, latency_us=5).gbps
        400.0
        """
        return self.nics * self.gbit / 8


@dataclass(frozen=True)
class Links:
    """A kind of node and its network.

    >>> Links.named("h100-nvswitch").inside.gbps
    450
    """

    name: str
    gpu: str
    gpus_per_node: PositiveInt
    inside: Inside
    provenance: str
    network: Network | None = None
    """None where nodes stand alone."""

    @classmethod
    def read(cls, path: Path) -> Links:
        """The links that a file describes; a damaged file says which field is wrong."""
        links = read_as(cls, path)
        if links.inside.kind not in KINDS:
            raise ForetraceError(
                f"{path}: the field 'inside.kind' holds {links.inside.kind!r}; it should be one of {', '.join(KINDS)}",
                "Restore it.",
            )
        return links

    @classmethod
    def named(cls, name: str) -> Links:
        """Links that come with Foretrace."""
        return cls.read(LINKS / f"{name}.json")
