"""Tables that fit nowhere: which, by how much, and the smallest change that would help."""

from __future__ import annotations

from dataclasses import replace

from foretrace.graph import ForetraceError
from foretrace.sharding.costing import Costing
from foretrace.sharding.options import DATA, KINDS, NARROWEST, ROW, Ranks, Way, ways
from foretrace.sharding.shards import Pieces, memory
from foretrace.sharding.tables import Table, gigabytes

MOST_TIMES = 64
"""So many times the ranks are looked at."""


def check_room(costing: Costing, room: float) -> None:
    """Refuse tables that no plan can hold.

    Parameters
    ----------
    costing
        Tables and ranks.
    room
        Bytes of each rank.
    """
    for table in costing.tables:
        _check_ways(table, costing.ranks)
    least = [_least(table, costing.ranks, costing.sparse_gradients) for table in costing.tables]
    for table, (piece, _, way) in zip(costing.tables, least):
        if piece > room:
            raise ForetraceError(
                f"table {table.name} fits on no rank: even {_in_words(way)} a rank needs {gigabytes(piece)} of it, "
                f"{gigabytes(piece - room)} more than its {gigabytes(room)}",
                _advice(costing, room, [table]),
            )
    together, there = sum(total for _, total, _ in least), room * costing.ranks.world
    if together > there:
        largest = max(costing.tables, key=lambda table: table.nbytes)
        raise ForetraceError(
            f"the tables need {gigabytes(together)}, {gigabytes(together - there)} more than the {gigabytes(there)} of "
            f"{costing.ranks.world} ranks; the largest, {largest.name}, has {gigabytes(largest.nbytes)} of weights",
            _advice(costing, room, list(costing.tables)),
        )


def _check_ways(table: Table, ranks: Ranks) -> None:
    """Refuse a table that may be sharded only in ways in which it can't be."""
    if not ways(table, ranks):
        raise ForetraceError(
            f"on {ranks.world} ranks table {table.name} can't be sharded {' or '.join(table.kinds)}, "
            f"as it should be: it has {table.rows:,} rows of {table.dim}",
            f"Allow table_wise too. Splits need two ranks; by rows, as many rows as ranks, and full nodes if in nodes; "
            f"by columns, parts of {NARROWEST} columns or more.",
        )


def no_room(costing: Costing, room: float, table: Table) -> ForetraceError:
    """Of tables that would fit by their sum, and for one of which no rank has a gap that is large enough."""
    return ForetraceError(
        f"after the other tables no rank has room for {table.name} ({gigabytes(table.nbytes)} of weights)",
        _advice(costing, room, list(costing.tables)),
    )


def _least(table: Table, ranks: Ranks, gradients: bool) -> tuple[float, float, Way]:
    """The least that a rank must hold of a table, what all hold then, and the way that does it."""
    allowed = ways(table, ranks)
    made = [way for way in allowed if way.kind != DATA] or allowed
    sizes = [_bytes(table, ranks, way, gradients) for way in made]
    smallest = min(range(len(made)), key=lambda place: sizes[place])
    return sizes[smallest], min(s * w.parts for s, w in zip(sizes, made)), made[smallest]


def _bytes(table: Table, ranks: Ranks, way: Way, gradients: bool) -> float:
    piece = KINDS[way.kind].piece(table, ranks, way.parts)
    return float(memory(Pieces.of([piece]), gradients)[0])


def _advice(costing: Costing, room: float, tables: list[Table]) -> str:
    """The smallest change of each sort that would fit."""
    found = []
    ranks = _enough_ranks(costing, room, tables)
    if ranks:
        found.append(f"{ranks} ranks")
    smaller = _smaller(costing, room, tables)
    if smaller:
        found.append(f"{smaller} tables")
    if any(table.kinds and ROW not in table.kinds for table in tables):
        found.append("to allow row_wise")
    found.append("more --memory, or a smaller --batch")
    return f"What would help: {'; or '.join(found)}."


def _fits(costing: Costing, room: float, tables: list[Table], ranks: Ranks) -> bool:
    if not all(ways(table, ranks) for table in tables):
        return False
    least = [_least(table, ranks, costing.sparse_gradients) for table in tables]
    return all(piece <= room for piece, *_ in least) and sum(t for _, t, _ in least) <= room * ranks.world


def _enough_ranks(costing: Costing, room: float, tables: list[Table]) -> int | None:
    """The same global batch on more ranks; to the rank where they are few, to the node where they are many."""
    ranks = costing.ranks
    step = 1 if ranks.world < ranks.per_node else ranks.per_node
    for world in range(ranks.world + step, MOST_TIMES * ranks.world + 1, step):
        batch = max(1, ranks.global_batch // world)
        if _fits(costing, room, tables, replace(ranks, world=world, batch=batch)):
            return world
    return None


def _smaller(costing: Costing, room: float, tables: list[Table]) -> str | None:
    """The widest dtype under which all fit."""
    for dtype, name in (("float16", "fp16"), ("int8", "int8")):
        narrow = [replace(table, dtype=dtype) for table in tables]
        if _fits(costing, room, narrow, costing.ranks):
            return name
    return None


def _in_words(way: Way) -> str:
    return "whole" if way.parts == 1 else f"{way.kind} in {way.parts} parts"
