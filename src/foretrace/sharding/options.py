"""The ways to shard a table: a new one is a function that says what each rank then holds, and a line in `KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from foretrace.graph import ForetraceError
from foretrace.sharding.shards import Piece, hits
from foretrace.sharding.tables import COLUMN, DATA, ROW, TABLE, TABLE_ROW, Table

IDS, POOLED, SUMS, NODE_SUMS, ACROSS, COPIES = "ids", "pooled", "sums", "node sums", "across nodes", "copies"
"""What ranks exchange: `foretrace.sharding.costing` says when, and by which collectives."""
CONVERSION = "conversion"
"""What they do besides, where it is sent in fewer bytes."""
NARROWEST = 16
"""Columns that a piece has at least: narrower rows fill no 32-byte sector at 2 bytes each."""
MOST_PARTS = 8


class Way(NamedTuple):
    """A kind of sharding, and the number of parts that it makes of a table."""

    kind: str
    parts: int


@dataclass(frozen=True)
class Kind:
    """What a way of sharding does to a table."""

    parts: Callable[[Table, Ranks], Iterator[int]]
    """The numbers of parts that it may cut the table into."""
    piece: Callable[[Table, Ranks, int], Piece]
    """What a rank that has one of so many parts holds."""
    where: Callable[[Ranks], list[tuple[int, ...]]]
    """The groups of ranks that may hold parts; of those free to go anywhere, each rank by itself."""
    exchange: str
    """What ranks exchange of sums then, as `foretrace.sharding.costing` calls it."""

    @property
    def anywhere(self) -> bool:
        """Whether each part may lie on any rank."""
        return self.where is _each

    @property
    def by_rows(self) -> bool:
        """Whether parts have other rows, and so other ids."""
        return self.piece is _by_rows


def exchange_of(table: Table, kind: str) -> str:
    """What ranks exchange of a table: rows by themselves go straight to their samples, wherever they lie.

    >>> exchange_of(Table("t", 100, 8), ROW), exchange_of(Table("t", 100, 8, sequence=True), ROW)
    ('sums', 'pooled')
    """
    return POOLED if table.sequence and kind != DATA else KINDS[kind].exchange


def ways(table: Table, ranks: Ranks) -> list[Way]:
    """All ways to shard a table among the ranks.

    >>> [way.kind for way in ways(Table("t", 10_000, 64), Ranks(world=2, per_node=2))]
    ['table_wise', 'column_wise', 'row_wise', 'data_parallel']
    """
    allowed = table.kinds or tuple(KINDS)
    return [Way(name, n) for name in KINDS if name in allowed for n in KINDS[name].parts(table, ranks)]


def _whole(table: Table, ranks: Ranks) -> Iterator[int]:
    yield 1


def _columns(table: Table, ranks: Ranks) -> Iterator[int]:
    parts = 2
    while parts <= min(MOST_PARTS, ranks.world) and table.dim % parts == 0 and table.dim // parts >= NARROWEST:
        yield parts
        parts *= 2


def _among_all(table: Table, ranks: Ranks) -> Iterator[int]:
    if ranks.world > 1 and table.rows >= ranks.world:
        yield ranks.world


def _in_a_node(table: Table, ranks: Ranks) -> Iterator[int]:
    even = ranks.world % ranks.per_node == 0
    if ranks.nodes > 1 and ranks.per_node > 1 and even and table.rows >= ranks.per_node:
        yield ranks.per_node


def _copies(table: Table, ranks: Ranks) -> Iterator[int]:
    if ranks.world > 1:
        yield ranks.world


def _by_columns(table: Table, ranks: Ranks, parts: int) -> Piece:
    """All ids, and of each row a part; a whole table is one part."""
    seen = hits(table, ranks.global_batch * table.ids)
    return Piece(table, table.rows, table.dim // parts, table.made_for(ranks.global_batch), *seen)


def _by_rows(table: Table, ranks: Ranks, parts: int) -> Piece:
    """The ids of its own rows, popular ones being scattered over all parts; it makes parts of sums, or the rows."""
    count, unique, reuse = hits(table, ranks.global_batch * table.ids)
    rows, made = -(-table.rows // parts), table.made_for(ranks.global_batch) / (parts if table.sequence else 1)
    return Piece(table, rows, table.dim, made, count / parts, unique / parts, reuse / parts)


def _by_samples(table: Table, ranks: Ranks, parts: int) -> Piece:
    """The ids of its own samples."""
    seen = hits(table, ranks.batch * table.ids)
    return Piece(table, table.rows, table.dim, table.made_for(ranks.batch), *seen, everywhere=True)


def _each(ranks: Ranks) -> list[tuple[int, ...]]:
    return [(rank,) for rank in range(ranks.world)]


def _all(ranks: Ranks) -> list[tuple[int, ...]]:
    return [tuple(range(ranks.world))]


def _nodes(ranks: Ranks) -> list[tuple[int, ...]]:
    return [tuple(ranks.of_node(node)) for node in range(ranks.nodes)]


KINDS = {
    TABLE: Kind(_whole, _by_columns, _each, POOLED),
    COLUMN: Kind(_columns, _by_columns, _each, POOLED),
    TABLE_ROW: Kind(_in_a_node, _by_rows, _nodes, NODE_SUMS),
    ROW: Kind(_among_all, _by_rows, _all, SUMS),
    DATA: Kind(_copies, _by_samples, _all, COPIES),
}
"""By the name that a plan and TorchRec call it."""


# --- was sharding.ranks: What all tables of a job share: how many ranks, how they lie on nodes, batch, and what they exchange in.

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
