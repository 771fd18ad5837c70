"""Sharding types and options: how a table can be divided among ranks, and what each rank then holds.

The types are TorchRec's. A new one is a function that makes the shard of a rank, and an entry in `SHARDING_TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from foretrace.errors import ForetraceError
from foretrace.sharding.shards import Shard, accesses
from foretrace.sharding.tables import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE, Table

IDS, POOLED, SUMS, NODE_SUMS, CROSS_NODE, REPLICAS = "ids", "pooled", "sums", "node sums", "across nodes", "copies"
"""What ranks communicate: `foretrace.sharding.costing` says when, and by which collectives."""
CONVERSION = "conversion"
"""The copies into and out of a narrower dtype for communication."""
SENT_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.0, "fp8": 1.0}
"""Bytes of an element that is sent, by its dtype."""
MIN_COLUMNS = 16
"""Columns of a column-wise shard at least: narrower rows fill no 32-byte sector at 2 bytes each."""
COLUMN_SHARDS = (2, 4, 8)
"""Parts that the columns of a table are cut into."""
MAX_WORLD = 4096
MAX_BATCH = 10**9 - 1
"""Ranks for which a search still ends within its time."""


@dataclass(frozen=True)
class Ranks:
    """The ranks that tables are placed on, and the batch of each.

    >>> Ranks(world=16, per_node=8, batch=4096).global_batch
    65536
    """

    world: int
    per_node: int = 8
    """Ranks of a node; nodes are filled one after the other."""
    batch: int = 4096
    """Samples of each rank."""
    sent_as: str = "fp32"
    """Dtype in which embeddings and their gradients are sent."""

    @property
    def global_batch(self) -> int:
        """Samples of all ranks: a rank looks up its shards for all of them."""
        return self.world * self.batch

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return -(-self.world // self.per_node)

    @property
    def sent_bytes(self) -> float:
        """Bytes of an element that is sent."""
        return SENT_BYTES[self.sent_as]

    def of_node(self, node: int) -> range:
        """Ranks of a node.

        >>> Ranks(world=12, per_node=8).of_node(1)
        range(8, 12)
        """
        return range(node * self.per_node, min(self.world, (node + 1) * self.per_node))

    def check(self) -> None:
        """Raise unless the values are possible."""
        if not 0 < self.world <= MAX_WORLD:
            raise ForetraceError(f"tables can't be placed on {self.world:,} ranks", f"Give from 1 to {MAX_WORLD:,}.")
        if not 0 < self.batch <= MAX_BATCH:
            raise ForetraceError(
                f"a batch can't have {self.batch:,} samples", f"Give those of one rank, 1 to {MAX_BATCH:,}."
            )
        if self.per_node < 1:
            raise ForetraceError(f"a node can't have {self.per_node} ranks", "Give 1 or more.")
        if self.sent_as not in SENT_BYTES:
            raise ForetraceError(f"nothing is sent as {self.sent_as!r}", f"Known are: {', '.join(SENT_BYTES)}.")


class ShardingOption(NamedTuple):
    """A sharding type, and the number of shards that it makes of a table."""

    sharding_type: str
    shards: int


@dataclass(frozen=True)
class ShardingType:
    """How a type divides a table, where its shards may lie, and what ranks communicate."""

    shard_counts: Callable[[Table, Ranks], Iterable[int]]
    """Numbers of shards that the table can be divided into."""
    shard: Callable[[Table, Ranks, int], Shard]
    """The shard of one rank, where there are so many."""
    rank_groups: Callable[[Ranks], list[tuple[int, ...]]]
    """The groups of ranks that may hold the shards; each rank by itself if every shard may lie on any rank."""
    communication: str
    """What ranks communicate of pooled embeddings."""

    @property
    def on_any_rank(self) -> bool:
        """Whether each shard may lie on any rank."""
        return self.rank_groups is _single_ranks

    @property
    def divides_rows(self) -> bool:
        """Whether shards have different rows, and so different ids."""
        return self.shard is _row_shard


def sharding_options(table: Table, ranks: Ranks) -> list[ShardingOption]:
    """All options of a table.

    >>> [option.sharding_type for option in sharding_options(Table("t", 10_000, 64), Ranks(world=2, per_node=2))]
    ['table_wise', 'column_wise', 'row_wise', 'data_parallel']
    """
    allowed = table.kinds or tuple(SHARDING_TYPES)
    return [
        ShardingOption(name, count)
        for name, of_type in SHARDING_TYPES.items()
        if name in allowed
        for count in of_type.shard_counts(table, ranks)
    ]


def communication_of(table: Table, sharding_type: str) -> str:
    """What ranks communicate of a table's embeddings: rows of sequences are sent to their samples from any shard.

    >>> communication_of(Table("t", 100, 8), ROW_WISE), communication_of(Table("t", 100, 8, sequence=True), ROW_WISE)
    ('sums', 'pooled')
    """
    if table.sequence and sharding_type != DATA_PARALLEL:
        return POOLED
    return SHARDING_TYPES[sharding_type].communication


def _column_counts(table: Table, ranks: Ranks) -> list[int]:
    counts = [count for count in COLUMN_SHARDS if count <= ranks.world and table.dim % count == 0]
    return [count for count in counts if table.dim // count >= MIN_COLUMNS]


def _one_per_rank_of_node(table: Table, ranks: Ranks) -> list[int]:
    full_nodes = ranks.nodes > 1 and ranks.world % ranks.per_node == 0
    return [ranks.per_node] if full_nodes and table.rows >= ranks.per_node > 1 else []


def _one_per_rank(table: Table, ranks: Ranks) -> list[int]:
    return [ranks.world] if table.rows >= ranks.world > 1 else []


def _column_shard(table: Table, ranks: Ranks, shards: int) -> Shard:
    """Some columns of all rows, for all ids; a whole table is one such shard."""
    seen = accesses(table, ranks.global_batch * table.ids)
    return Shard(table, table.rows, table.dim // shards, table.embeddings(ranks.global_batch), *seen)


def _row_shard(table: Table, ranks: Ranks, shards: int) -> Shard:
    """Some rows and their ids, frequent rows being scattered over all shards; it makes partial sums, or the rows."""
    ids, unique, histogram = accesses(table, ranks.global_batch * table.ids)
    rows, bags = -(-table.rows // shards), table.embeddings(ranks.global_batch) / (shards if table.sequence else 1)
    return Shard(table, rows, table.dim, bags, ids / shards, unique / shards, histogram / shards)


def _replica(table: Table, ranks: Ranks, shards: int) -> Shard:
    """The whole table, for the ids of the rank's own samples."""
    seen = accesses(table, ranks.batch * table.ids)
    return Shard(table, table.rows, table.dim, table.embeddings(ranks.batch), *seen, replicated=True)


def _single_ranks(ranks: Ranks) -> list[tuple[int, ...]]:
    return [(rank,) for rank in range(ranks.world)]


def _all_ranks(ranks: Ranks) -> list[tuple[int, ...]]:
    return [tuple(range(ranks.world))]


def _nodes(ranks: Ranks) -> list[tuple[int, ...]]:
    return [tuple(ranks.of_node(node)) for node in range(ranks.nodes)]


SHARDING_TYPES = {
    TABLE_WISE: ShardingType(lambda table, ranks: [1], _column_shard, _single_ranks, POOLED),
    COLUMN_WISE: ShardingType(_column_counts, _column_shard, _single_ranks, POOLED),
    TABLE_ROW_WISE: ShardingType(_one_per_rank_of_node, _row_shard, _nodes, NODE_SUMS),
    ROW_WISE: ShardingType(_one_per_rank, _row_shard, _all_ranks, SUMS),
    DATA_PARALLEL: ShardingType(lambda _, ranks: [ranks.world] * (ranks.world > 1), _replica, _all_ranks, REPLICAS),
}
"""By TorchRec's name, which plans use too."""
