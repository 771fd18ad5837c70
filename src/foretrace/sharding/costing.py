"""What a plan costs: each rank's lookups, what they exchange, memory; the slowest rank holds up all others.

Lookups of a step meet others at two points: pooled embeddings go out after the forward, gradients come back before the
backward. From the second to the first of the next step a rank updates its rows and looks up the next ones, and the last
rank to finish lets all go on. Ids travel ahead of that, as TorchRec's pipelines let them, behind the dense part where
there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.platform.fabric import Fabric
from foretrace.sharding.lookups import Batched, Kernels
from foretrace.sharding.options import (
    ACROSS,
    CONVERSION,
    COPIES,
    IDS,
    KINDS,
    NODE_SUMS,
    POOLED,
    SUMS,
    Ranks,
    Way,
    exchange_of,
)
from foretrace.sharding.plan import Plan
from foretrace.sharding.shards import DOUBLINGS, ID, OUTPUT, Floats, Longs, Piece, Pieces, memory, summed
from foretrace.sharding.tables import Table

LENGTH = 4
"""Bytes in which the number of a sample's ids travels."""
TIMES = 1.5 * 2.0 ** np.arange(DOUBLINGS)
"""How often a row of each doubling of a histogram is hit, about."""
CHANCES = 256
"""How often it is drawn where rows that are hit often lie."""


@dataclass
class Estimate:
    """What a plan takes: microseconds and bytes."""

    step: float
    low: float
    high: float
    forward: Floats
    """By rank."""
    backward: Floats
    """By rank, with the update."""
    memory: Floats
    """By rank."""
    sent: Floats
    """Bytes of embeddings and parts of sums that leave each rank in the forward; as many gradients come back."""
    slowest: float
    """What the slowest rank takes for lookups, wherever rows that are hit often happen to lie."""
    exchanged: dict[str, float] = field(default_factory=dict)
    """What the ranks exchange, as `foretrace.sharding.costing` calls it; and its conversion into fewer bytes."""

    @property
    def lookups(self) -> Floats:
        """Of each rank, both ways."""
        return np.asarray(self.forward + self.backward)


@dataclass(frozen=True)
class Costing:
    """All that decides what a plan for some tables costs."""

    tables: Sequence[Table]
    ranks: Ranks
    kernels: Kernels
    exchange: Exchange
    dense_us: float = 0.0
    """What the step does besides lookups and their exchange."""

    @property
    def sparse_gradients(self) -> bool:
        """Whether gradients of looked-up rows lie in memory until the update."""
        return not isinstance(self.kernels, Batched)

    @cached_property
    def _made(self) -> dict[tuple[int, Way], Piece]:
        return {}

    @cached_property
    def _added(self) -> dict[tuple[int, Way], Floats]:
        return {}

    @cached_property
    def ids_of_a_call(self) -> float:
        """Ids that a call looks up on a rank, were all spread evenly over the ranks and the kinds of rows."""
        kinds = {(table.dim, table.dtype, table.optimizer) for table in self.tables}
        return self.ranks.batch * sum(table.ids for table in self.tables) / max(1, len(kinds))

    def piece(self, table: int, way: Way) -> Piece:
        """What a rank that has a part of a table holds."""
        key = table, way
        if key not in self._made:
            self._made[key] = KINDS[way.kind].piece(self.tables[table], self.ranks, way.parts)
        return self._made[key]

    def adds(self, parts: Sequence[tuple[int, Way]]) -> Floats:
        """What a piece of a table sharded in some way adds to a rank: microseconds, forward and backward."""
        new = [key for key in dict.fromkeys(parts) if key not in self._added]
        if new:
            priced = self.kernels.each(Pieces.of([self.piece(*key) for key in new]), self.ids_of_a_call)
            self._added.update(zip(new, priced))
        return np.array([self._added[key] for key in parts]).reshape(-1, 2)

    def held(self, plan: Plan) -> tuple[Pieces, Longs]:
        """All pieces of a plan, and the rank of each."""
        made = [(self.piece(t, p.way), rank) for t, p in enumerate(plan) for rank in p.ranks]
        return Pieces.of([piece for piece, _ in made]), np.array([rank for _, rank in made], np.int64)

    def each(self, plan: Plan) -> Floats:
        """What each of them adds to its rank: microseconds, forward and backward."""
        return self.adds([(table, p.way) for table, p in enumerate(plan) for _ in p.ranks])

    def estimate(self, plan: Plan) -> Estimate:
        """What a plan costs, by the models themselves."""
        pieces, rank = self.held(plan)
        each = self.each(plan)
        low, typical, high = self.kernels.ranks(pieces, each, rank, self.ranks.world)
        slowest = int(typical.sum(axis=1).argmax())
        nbytes, made = self.exchanged(plan, pieces, rank)
        times = {what: self.exchange.us(what, float(size.max())) for what, size in nbytes.items()}
        # Ids of the next step travel while the dense part of this one runs.
        times[IDS] = np.maximum(times[IDS] - self.dense_us, 0.0)
        lookup = self._slowest(plan, pieces, each, rank, typical.sum(axis=1))
        exchanged = {what: float(t[1]) for what, t in times.items()}
        exchanged[CONVERSION] = self._conversion(float(made.max(initial=0.0)))
        spread = [
            np.sqrt(((bound - typical)[slowest] ** 2).sum() + sum((t[end] - t[1]) ** 2 for t in times.values()))
            for bound, end in ((low, 0), (high, 2))
        ]
        step = lookup + sum(exchanged.values()) + self.dense_us
        return Estimate(
            step, step - float(spread[0]), step + float(spread[1]), typical[:, 0], typical[:, 1],
            summed(rank, memory(pieces, self.sparse_gradients), self.ranks.world),
            made * (1 - 1 / self.ranks.world),  # the samples are spread evenly, and a rank's own stay there
            lookup,
            {what: us for what, us in exchanged.items() if us > 0},
        )  # fmt: skip

    def _slowest(self, plan: Plan, pieces: Pieces, each: Floats, rank: Longs, us: Floats) -> float:
        """The longest lookups of a rank, on average over where the rows lie that are hit often.

        Who splits a table by rows does not know which rank gets them: its part of the ids is uneven by chance.
        """
        parts = np.array([len(p.ranks) if KINDS[p.kind].by_rows else 1 for p in plan for _ in p.ranks])
        if parts.max(initial=1) == 1:
            return float(us.max())
        often = (pieces.reuse * TIMES**2).sum(axis=1) * (1 - 1 / parts)
        per_id = each.sum(axis=1) / np.maximum(pieces.count, 1.0)
        spread = np.sqrt(summed(rank, often * per_id**2, self.ranks.world))
        chances = np.random.default_rng(0).standard_normal((CHANCES, self.ranks.world))
        return float((us + spread * chances).max(axis=1).mean())

    def exchanged(self, plan: Plan, pieces: Pieces, rank: Longs) -> tuple[dict[str, Floats], Floats]:
        """Bytes of each rank in each exchange, where the busiest decides; and of all embeddings that it makes."""
        world, batch, sent_bytes = self.ranks.world, self.ranks.global_batch, self.ranks.sent_bytes
        of_table = [exchange_of(table, placed.kind) for table, placed in zip(self.tables, plan)]
        of_piece = np.repeat(of_table, [len(placed.ranks) for placed in plan])
        made = np.where((of_piece != COPIES) & (world > 1), pieces.bags * pieces.dim * sent_bytes, 0.0)
        lengths = batch * LENGTH * np.repeat([t.features for t in self.tables], [len(placed.ranks) for placed in plan])
        asked = np.where(of_piece != COPIES, pieces.count * ID + lengths, 0.0)
        in_node = np.zeros(self.ranks.nodes)
        for table, placed, what in zip(self.tables, plan, of_table):
            in_node[placed.ranks[0] // self.ranks.per_node] += table.dim * table.features * (what == NODE_SUMS)
        of_node = in_node[np.arange(world) // self.ranks.per_node] * batch * sent_bytes
        sums = sum(table.dim * table.features for table, what in zip(self.tables, of_table) if what == SUMS)
        copies = sum(table.rows * table.dim for table, what in zip(self.tables, of_table) if what == COPIES)
        return {
            IDS: summed(rank, asked, world),
            POOLED: summed(rank, np.where(of_piece == POOLED, made, 0.0), world),
            SUMS: np.full(world, sums * batch * sent_bytes),
            NODE_SUMS: of_node,
            ACROSS: of_node / self.ranks.per_node,
            COPIES: np.full(world, float(copies * OUTPUT)),
        }, summed(rank, made, world)

    def _conversion(self, made: float) -> float:
        """Microseconds in which the busiest rank makes fewer bytes of what is exchanged, and more of what it gets."""
        narrow = self.ranks.sent_bytes
        if narrow >= OUTPUT or self.ranks.world < 2:
            return 0.0
        device = self.kernels.platform.device
        moved = 4 * made / narrow * (OUTPUT + narrow)  # there and back, at both ends
        return moved / (device.measured.memory_gbps or device.memory_gbps) / 1e3


# --- was sharding.exchange: What ranks exchange because of how tables are sharded, and how long that takes on a fabric.

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
