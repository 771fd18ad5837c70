"""How the ranks of a group lie on nodes: it decides which links they use, and who else does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from foretrace.graph import ForetraceError


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
