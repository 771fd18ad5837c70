"""Tables that do not fit into the memory of the ranks: which, by how much, and the smallest change that would help."""

from __future__ import annotations

from dataclasses import replace

from foretrace.errors import ForetraceError
from foretrace.sharding.costing import Costing
from foretrace.sharding.options import MIN_COLUMNS, SHARDING_TYPES, Ranks, ShardingOption, sharding_options
from foretrace.sharding.shards import Shards, shard_bytes
from foretrace.sharding.tables import DATA_PARALLEL, ROW_WISE, Table, format_bytes

MAX_GROWTH = 64
"""Advice looks at up to this many times the ranks."""


def check_capacity(costing: Costing, hbm_budget: float) -> None:
    """Raise if no plan can hold the tables in the bytes that each rank has for them."""
    for table in costing.tables:
        if not sharding_options(table, costing.ranks):  # none of the allowed sharding types is possible
            raise ForetraceError(
                f"on {costing.ranks.world} ranks table {table.name} can't be sharded {' or '.join(table.kinds)}, "
                f"as it should be: it has {table.rows:,} rows of {table.dim}",
                "Allow table_wise too. Splits need two ranks; by rows, as many rows as ranks, and full nodes if in "
                f"nodes; by columns, parts of {MIN_COLUMNS} columns or more.",
            )
    least = [_least_bytes(table, costing.ranks, costing.sparse_gradients) for table in costing.tables]
    for table, (shard, _, option) in zip(costing.tables, least):
        if shard > hbm_budget:
            how = "whole" if option.shards == 1 else f"{option.sharding_type} in {option.shards} parts"
            raise ForetraceError(
                f"table {table.name} fits on no rank: even {how} a rank needs {format_bytes(shard)} of "
                f"it, {format_bytes(shard - hbm_budget)} more than its {format_bytes(hbm_budget)}",
                _advice(costing, hbm_budget, [table]),
            )
    needed, available = sum(total for _, total, _ in least), hbm_budget * costing.ranks.world
    if needed > available:
        largest = max(costing.tables, key=lambda table: table.nbytes)
        raise ForetraceError(
            f"the tables need {format_bytes(needed)}, {format_bytes(needed - available)} more than the "
            f"{format_bytes(available)} of {costing.ranks.world} ranks; the largest, {largest.name}, has "
            f"{format_bytes(largest.nbytes)} of weights",
            _advice(costing, hbm_budget, list(costing.tables)),
        )


def no_rank_fits(costing: Costing, hbm_budget: float, table: Table) -> ForetraceError:
    """The error for tables that fit by their sum, but of which one fits on no rank after the others are placed."""
    return ForetraceError(
        f"after the other tables no rank has memory for {table.name} ({format_bytes(table.nbytes)} of weights)",
        _advice(costing, hbm_budget, list(costing.tables)),
    )


def _least_bytes(table: Table, ranks: Ranks, sparse_gradients: bool) -> tuple[float, float, ShardingOption]:
    """The least that a rank must hold of a table, what all ranks hold then, and the option."""
    allowed = sharding_options(table, ranks)
    options = [option for option in allowed if option.sharding_type != DATA_PARALLEL] or allowed
    made = [SHARDING_TYPES[option.sharding_type].shard(table, ranks, option.shards) for option in options]
    sizes = [float(shard_bytes(Shards.of([shard]), sparse_gradients)[0]) for shard in made]
    smallest = min(range(len(options)), key=lambda place: sizes[place])
    return sizes[smallest], min(size * o.shards for size, o in zip(sizes, options)), options[smallest]


def _advice(costing: Costing, hbm_budget: float, tables: list[Table]) -> str:
    """The smallest change of each sort with which the tables would fit."""
    found = []
    if world := _enough_ranks(costing, hbm_budget, tables):
        found.append(f"{world} ranks")
    for dtype, name in (("float16", "fp16"), ("int8", "int8")):
        if _fits(costing, hbm_budget, [replace(table, dtype=dtype) for table in tables], costing.ranks):
            found.append(f"{name} tables")
            break
    if any(table.kinds and ROW_WISE not in table.kinds for table in tables):
        found.append("to allow row_wise")
    found.append("more --memory, or a smaller --batch")
    return f"What would help: {'; or '.join(found)}."


def _fits(costing: Costing, hbm_budget: float, tables: list[Table], ranks: Ranks) -> bool:
    if not all(sharding_options(table, ranks) for table in tables):
        return False
    least = [_least_bytes(table, ranks, costing.sparse_gradients) for table in tables]
    return all(shard <= hbm_budget for shard, *_ in least) and sum(t for _, t, _ in least) <= hbm_budget * ranks.world


def _enough_ranks(costing: Costing, hbm_budget: float, tables: list[Table]) -> int | None:
    """The smallest larger number of ranks for the same global batch; a multiple of a node where they fill one."""
    ranks = costing.ranks
    step = 1 if ranks.world < ranks.per_node else ranks.per_node
    for world in range(ranks.world + step, MAX_GROWTH * ranks.world + 1, step):
        batch = max(1, ranks.global_batch // world)
        if _fits(costing, hbm_budget, tables, replace(ranks, world=world, batch=batch)):
            return world
    return None
