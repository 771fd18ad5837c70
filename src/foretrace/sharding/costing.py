"""Cost of a sharding plan: lookups of each rank, communication, and memory.

A rank waits for others at two points of a step: embeddings are sent after the forward, gradients return before the
backward. From the second point to the first one of the next step it updates its rows and looks up the next ones, and
the slowest rank holds up all others. Ids are sent a step ahead as by TorchRec's pipelines, overlapping with the dense
part if there is one.

| communication | when | collectives |
| --- | --- | --- |
| ids | before the lookup, to the ranks of the rows | all_to_all |
| pooled | embeddings, whole or by columns, to the ranks of the samples; gradients back | all_to_all, twice |
| sums | row-wise: partial sums are added at the ranks of the samples; gradients to all | reduce_scatter, all_gather |
| node sums | table-row-wise: the same inside a node, then across nodes | the same in a node, and all_to_all across |
| copies | data-parallel: dense gradients are added up | all_reduce |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.graph.tables import Floats, Longs
from foretrace.platform.fabric import Fabric
from foretrace.sharding.lookups import Batched, LookupKernels
from foretrace.sharding.options import (
    CONVERSION,
    CROSS_NODE,
    IDS,
    NODE_SUMS,
    POOLED,
    REPLICAS,
    SHARDING_TYPES,
    SUMS,
    Ranks,
    ShardingOption,
    communication_of,
)
from foretrace.sharding.plan import Plan
from foretrace.sharding.shards import EMBEDDING_BYTES, HISTOGRAM_BINS, ID_BYTES, Shard, Shards, shard_bytes, sum_by
from foretrace.sharding.tables import Table

LENGTH_BYTES = 4
"""Bytes of the number of a sample's ids, which is sent with them."""
BIN_ACCESSES = 1.5 * 2.0 ** np.arange(HISTOGRAM_BINS)
"""Accesses of a row in each bin of a histogram, about."""
HOT_ROW_SAMPLES = 256
"""Random placements of hot rows that the expected slowest rank is averaged over."""
PRICED_SIZES = 2.0 ** np.arange(8, 41)
"""Bytes at which a collective is priced; times in between are interpolated."""


class LinearTime(NamedTuple):
    """Microseconds as a linear function of bytes, near the expected size of a collective."""

    fixed: float
    per_byte: float


@dataclass(frozen=True)
class Communication:
    """Times of the collectives of all ranks on a fabric, for many sizes at once.

    >>> node = Communication(Fabric.named("h100-8x"), Ranks(world=8))
    >>> bool(node.us("pooled", 2.0**28)[1] > node.us("pooled", 2.0**20)[1])
    True
    """

    fabric: Fabric
    ranks: Ranks

    @cached_property
    def _priced(self) -> dict[str, Floats]:
        """By what is communicated: low, typical and high at each of `PRICED_SIZES`."""
        world, node = range(self.ranks.world), self.ranks.of_node(0)
        across = range(0, self.ranks.world, self.ranks.per_node)
        collectives = {
            IDS: [("all_to_all", world)],
            POOLED: [("all_to_all", world)] * 2,
            SUMS: [("reduce_scatter", world), ("all_gather", world)],
            NODE_SUMS: [("reduce_scatter", node), ("all_gather", node)],
            CROSS_NODE: [("all_to_all", across)] * 2,
            REPLICAS: [("all_reduce", world)],
        }

        def curve(kind: str, members: range) -> Floats:
            price = partial(price_collective, self.fabric, kind, members=members, gpus_per_node=self.ranks.per_node)
            return np.array([price(nbytes=int(size)) for size in PRICED_SIZES]).T

        return {what: sum(curve(*call) for call in calls) for what, calls in collectives.items()}  # type: ignore[misc]

    def us(self, what: str, nbytes: Floats | float) -> Floats:
        """Low, typical and high; zero for no bytes."""
        sizes = np.asarray(nbytes, np.float64)
        if self.ranks.world < 2:
            return np.zeros((3, *sizes.shape))
        place = np.log2(np.clip(sizes, PRICED_SIZES[0], PRICED_SIZES[-1]))
        known = np.log2(PRICED_SIZES)
        times = [np.exp(np.interp(place, known, np.log(np.maximum(c, 1e-6)))) for c in self._priced[what]]
        return np.where(sizes > 0, times, 0.0)

    def linear(self, what: str, nbytes: float) -> LinearTime:
        """Typical times near a size."""
        if nbytes <= 0 or self.ranks.world < 2:
            return LinearTime(0.0, 0.0)
        less, here, more = self.us(what, np.array([0.7, 1.0, 1.4]) * nbytes)[1]
        slope = (more - less) / (0.7 * nbytes)
        return LinearTime(float(max(0.0, here - slope * nbytes)), float(slope))


@dataclass
class Estimate:
    """The estimated cost of a plan: microseconds and bytes."""

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
    """By rank: bytes of embeddings and partial sums that leave it in the forward; as many gradients come back."""
    slowest: float
    """Expected lookup time of the slowest rank, with the hot rows that it may hold."""
    communication: dict[str, float] = field(default_factory=dict)
    """By what is communicated; and its conversion into a narrower dtype."""

    @property
    def lookups(self) -> Floats:
        """By rank: forward and backward, if the accesses of row-wise tables were spread evenly over the ranks."""
        return np.asarray(self.forward + self.backward)

    @property
    def hot_rows(self) -> float:
        """What hot rows of row-wise tables add to the slowest rank; which rank holds them is not known."""
        return self.slowest - float(self.lookups.max())

    @property
    def balance(self) -> float:
        """Lookup time of the mean rank over that of the slowest."""
        return float(self.lookups.mean()) / self.slowest if self.slowest else 1.0


@dataclass(frozen=True)
class Costing:
    """The cost of plans for some tables on some ranks."""

    tables: Sequence[Table]
    ranks: Ranks
    kernels: LookupKernels
    communication: Communication
    dense_us: float = 0.0
    """The step without lookups and their communication."""

    @property
    def sparse_gradients(self) -> bool:
        """Whether gradients of looked-up rows lie in memory until the update."""
        return not isinstance(self.kernels, Batched)

    @cached_property
    def _shards(self) -> dict[tuple[int, ShardingOption], Shard]:
        return {}

    @cached_property
    def _marginal(self) -> dict[tuple[int, ShardingOption], Floats]:
        return {}

    @cached_property
    def ids_per_call(self) -> float:
        """Ids of a call on a rank, if all were spread evenly over the ranks and the kinds of rows."""
        kinds = {(table.dim, table.dtype, table.optimizer) for table in self.tables}
        return self.ranks.batch * sum(table.ids for table in self.tables) / max(1, len(kinds))

    def shard(self, table: int, option: ShardingOption) -> Shard:
        """The shard of a table that one of its ranks holds."""
        key = table, option
        if key not in self._shards:
            of_type = SHARDING_TYPES[option.sharding_type]
            self._shards[key] = of_type.shard(self.tables[table], self.ranks, option.shards)
        return self._shards[key]

    def marginal(self, shards: Sequence[tuple[int, ShardingOption]]) -> Floats:
        """Microseconds that a shard of each table and option adds to a rank, forward and backward."""
        new = [key for key in dict.fromkeys(shards) if key not in self._marginal]
        if new:
            priced = self.kernels.marginal(Shards.of([self.shard(*key) for key in new]), self.ids_per_call)
            self._marginal.update(zip(new, priced))
        return np.array([self._marginal[key] for key in shards]).reshape(-1, 2)

    def shards_of(self, plan: Plan) -> tuple[Shards, Longs]:
        """All shards of a plan, and the rank of each."""
        placed = [(self.shard(t, p.option), rank) for t, p in enumerate(plan) for rank in p.ranks]
        return Shards.of([shard for shard, _ in placed]), np.array([rank for _, rank in placed], np.int64)

    def marginal_of(self, plan: Plan) -> Floats:
        """What each shard of a plan adds to its rank."""
        return self.marginal([(table, p.option) for table, p in enumerate(plan) for _ in p.ranks])

    def estimate(self, plan: Plan) -> Estimate:
        """The cost of a plan by the models of lookups and collectives."""
        shards, rank = self.shards_of(plan)
        marginal = self.marginal_of(plan)
        low, typical, high = self.kernels.of_ranks(shards, marginal, rank, self.ranks.world)
        slowest = int(typical.sum(axis=1).argmax())
        nbytes, made = self.bytes_sent(plan, shards, rank)
        times = {what: self.communication.us(what, float(size.max())) for what, size in nbytes.items()}
        # Ids of the next step are sent while the dense part of this one runs.
        times[IDS] = np.maximum(times[IDS] - self.dense_us, 0.0)
        lookups = self._expected_slowest(plan, shards, marginal, rank, typical.sum(axis=1))
        communication = {what: float(t[1]) for what, t in times.items()}
        communication[CONVERSION] = self._conversion_us(float(made.max(initial=0.0)))
        spread = [
            np.sqrt(((bound - typical)[slowest] ** 2).sum() + sum((t[end] - t[1]) ** 2 for t in times.values()))
            for bound, end in ((low, 0), (high, 2))
        ]
        step = lookups + sum(communication.values()) + self.dense_us
        return Estimate(
            step, step - float(spread[0]), step + float(spread[1]), typical[:, 0], typical[:, 1],
            sum_by(rank, shard_bytes(shards, self.sparse_gradients), self.ranks.world),
            made * (1 - 1 / self.ranks.world),  # samples are spread evenly over the ranks, and a rank's own stay there
            lookups,
            {what: us for what, us in communication.items() if us > 0},
        )  # fmt: skip

    def _expected_slowest(self, plan: Plan, shards: Shards, marginal: Floats, rank: Longs, us: Floats) -> float:
        """Lookup time of the slowest rank, averaged over random placements of frequently accessed rows.

        Which rank gets the hot rows of a row-wise table is not known, so that its share of the ids varies.
        """
        by_rows = [SHARDING_TYPES[p.kind].divides_rows for p in plan]
        counts = np.array([len(p.ranks) if rows else 1 for p, rows in zip(plan, by_rows) for _ in p.ranks])
        if counts.max(initial=1) == 1:
            return float(us.max())
        variance = (shards.histogram * BIN_ACCESSES**2).sum(axis=1) * (1 - 1 / counts)
        per_id = marginal.sum(axis=1) / np.maximum(shards.ids, 1.0)
        deviation = np.sqrt(sum_by(rank, variance * per_id**2, self.ranks.world))
        samples = np.random.default_rng(0).standard_normal((HOT_ROW_SAMPLES, self.ranks.world))
        return max(float(us.max()), float((us + deviation * samples).max(axis=1).mean()))

    def bytes_sent(self, plan: Plan, shards: Shards, rank: Longs) -> tuple[dict[str, Floats], Floats]:
        """Bytes of each rank in each communication, where the busiest decides; and of all embeddings that it makes."""
        world, batch, sent_bytes = self.ranks.world, self.ranks.global_batch, self.ranks.sent_bytes
        counts = [len(placed.ranks) for placed in plan]
        of_table = [communication_of(table, placed.kind) for table, placed in zip(self.tables, plan)]
        of_shard = np.repeat(of_table, counts)
        made = np.where((of_shard != REPLICAS) & (world > 1), shards.bags * shards.dim * sent_bytes, 0.0)
        lengths = batch * LENGTH_BYTES * np.repeat([t.features for t in self.tables], counts)
        ids = np.where(of_shard != REPLICAS, shards.ids * ID_BYTES + lengths, 0.0)
        node_columns = np.zeros(self.ranks.nodes)
        for table, placed, what in zip(self.tables, plan, of_table):
            node_columns[placed.ranks[0] // self.ranks.per_node] += table.dim * table.features * (what == NODE_SUMS)
        node_sums = node_columns[np.arange(world) // self.ranks.per_node] * batch * sent_bytes
        columns = sum(table.dim * table.features for table, what in zip(self.tables, of_table) if what == SUMS)
        elements = sum(table.rows * table.dim for table, what in zip(self.tables, of_table) if what == REPLICAS)
        return {
            IDS: sum_by(rank, ids, world),
            POOLED: sum_by(rank, np.where(of_shard == POOLED, made, 0.0), world),
            SUMS: np.full(world, columns * batch * sent_bytes),
            NODE_SUMS: node_sums,
            CROSS_NODE: node_sums / self.ranks.per_node,
            REPLICAS: np.full(world, float(elements * EMBEDDING_BYTES)),
        }, sum_by(rank, made, world)

    def _conversion_us(self, made: float) -> float:
        """Microseconds in which the busiest rank converts what it sends into a narrower dtype, and back."""
        narrow = self.ranks.sent_bytes
        if narrow >= EMBEDDING_BYTES or self.ranks.world < 2:
            return 0.0
        device = self.kernels.platform.device
        moved = 4 * made / narrow * (EMBEDDING_BYTES + narrow)  # embeddings and gradients, on both ends
        return moved / (device.measured.memory_gbps or device.memory_gbps) / 1e3
