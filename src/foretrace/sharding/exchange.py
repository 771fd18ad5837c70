"""What ranks exchange because of how tables are sharded, and how long that takes on a fabric.

| what | when | by whom |
| --- | --- | --- |
| ids | before the lookup: to those that hold the rows | all_to_all |
| pooled | after it: embeddings, whole or by columns, to the samples' ranks; gradients back | all_to_all, twice |
| sums | row-wise: parts of sums are added up at the samples' ranks; gradients go to all | reduce_scatter, all_gather |
| node sums | table-row-wise: the same inside a node, then between nodes | those in a node, and all_to_all across |
| copies | data-parallel: dense gradients are added up everywhere | all_reduce |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.platform.fabric import Fabric
from foretrace.sharding.hits import Floats
from foretrace.sharding.kinds import ACROSS, COPIES, IDS, NODE_SUMS, POOLED, SUMS
from foretrace.sharding.ranks import Ranks

SIZES = 2.0 ** np.arange(8, 41)
"""Bytes at which a collective is priced; in between, times are interpolated."""


class Line(NamedTuple):
    """Microseconds as a straight line over bytes, where a collective is about as large as it will be."""

    fixed: float
    per_byte: float


@dataclass(frozen=True)
class Exchange:
    """Collectives of all ranks on a fabric, of many sizes at once.

    >>> inside = Exchange(Fabric.named("h100-8x"), Ranks(world=8))
    >>> bool(inside.us("pooled", 2.0**28)[1] > inside.us("pooled", 2.0**20)[1])
    True
    """

    fabric: Fabric
    ranks: Ranks

    @cached_property
    def _priced(self) -> dict[str, Floats]:
        """By what is exchanged: low, typical and high at each of `SIZES`."""
        everybody, node = range(self.ranks.world), self.ranks.of_node(0)
        across = range(0, self.ranks.world, self.ranks.per_node)
        collectives = {
            IDS: [("all_to_all", everybody)],
            POOLED: [("all_to_all", everybody)] * 2,
            SUMS: [("reduce_scatter", everybody), ("all_gather", everybody)],
            NODE_SUMS: [("reduce_scatter", node), ("all_gather", node)],
            ACROSS: [("all_to_all", across)] * 2,
            COPIES: [("all_reduce", everybody)],
        }
        return {what: sum(self._curve(kind, members) for kind, members in calls) for what, calls in collectives.items()}  # type: ignore[misc]

    def _curve(self, kind: str, members: range) -> Floats:
        per_node = self.ranks.per_node
        return np.array([price_collective(self.fabric, kind, int(size), members, per_node) for size in SIZES]).T

    def us(self, what: str, nbytes: Floats | float) -> Floats:
        """Low, typical and high; nothing where there is nothing to exchange."""
        sizes = np.asarray(nbytes, np.float64)
        if self.ranks.world < 2:
            return np.zeros((3, *sizes.shape))
        place = np.log2(np.clip(sizes, SIZES[0], SIZES[-1]))
        times = [np.exp(np.interp(place, np.log2(SIZES), np.log(np.maximum(c, 1e-6)))) for c in self._priced[what]]
        return np.where(sizes > 0, times, 0.0)

    def line(self, what: str, nbytes: float) -> Line:
        """Typical times near a size."""
        if nbytes <= 0 or self.ranks.world < 2:
            return Line(0.0, 0.0)
        less, here, more = self.us(what, np.array([0.7, 1.0, 1.4]) * nbytes)[1]
        slope = (more - less) / (0.7 * nbytes)
        return Line(float(max(0.0, here - slope * nbytes)), float(slope))
