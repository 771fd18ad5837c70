"""What all tables of a job share: how many ranks, how they lie on nodes, batch, and what they exchange in."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.graph import ForetraceError

COMMUNICATED = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.0, "fp8": 1.0}
"""Bytes of an element on its way between ranks, by what it is sent as."""
MOST_PLACES = 4096
"""Ranks among which a search still finds its way in the time it is given."""


@dataclass(frozen=True)
class Ranks:
    """The ranks that tables are placed on, and the batch of each.

    >>> Ranks(world=16, per_node=8, batch=4096).global_batch
    65536
    """

    world: int
    per_node: int = 8
    """Ranks of a node, which fill one after the other."""
    batch: int = 4096
    """Samples of each rank."""
    sent_as: str = "fp32"
    """What embeddings and their gradients are exchanged in."""

    @property
    def global_batch(self) -> int:
        """Samples of all ranks: a rank that holds a table looks up those of everybody."""
        return self.world * self.batch

    @property
    def nodes(self) -> int:
        """Machines that the ranks fill."""
        return -(-self.world // self.per_node)

    @property
    def sent_bytes(self) -> float:
        """Bytes of an element on its way."""
        return COMMUNICATED[self.sent_as]

    def of_node(self, node: int) -> range:
        """Ranks of a node.

        >>> Ranks(world=12, per_node=8).of_node(1)
        range(8, 12)
        """
        return range(node * self.per_node, min(self.world, (node + 1) * self.per_node))


def check_ranks(ranks: Ranks) -> None:
    """Refuse what no job is."""
    if not 0 < ranks.world <= MOST_PLACES:
        raise ForetraceError(f"tables can't be placed on {ranks.world:,} ranks", f"Give from 1 to {MOST_PLACES:,}.")
    if ranks.batch < 1:
        raise ForetraceError(f"a batch can't have {ranks.batch} samples", "Give those of one rank, 1 or more.")
    if ranks.per_node < 1:
        raise ForetraceError(f"a node can't have {ranks.per_node} ranks", "Give 1 or more.")
    if ranks.sent_as not in COMMUNICATED:
        raise ForetraceError(f"nothing is sent as {ranks.sent_as!r}", f"Known are: {', '.join(COMMUNICATED)}.")
