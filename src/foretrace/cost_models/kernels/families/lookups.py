"""Lookups of rows by id, their gradients, and sparse updates: rows, dim, pooling, and how often rows are hit."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import COLUMNS as REUSE
from foretrace.cost_models.kernels.features import (
    alignment,
    argument,
    dtype_code,
    evenly,
    flag,
    integer,
    log,
    most_hits,
    per,
    ragged,
    reuse,
    tensors_of,
)  # fmt: skip
from foretrace.graph import Indices, Op, Tensor

BAGS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
ROWS = ("aten::embedding", "aten::index_select")
NUM_WEIGHTS = {"aten::_embedding_bag_backward": 6, "aten::embedding_dense_backward": 2,
               "aten::_embedding_bag_dense_backward": 5, "aten::_embedding_bag_sparse_backward": 5}  # fmt: skip
"""Gradients, and where each says how many rows the table has."""
MODE = {"aten::_embedding_bag": 4, "aten::_embedding_bag_forward_only": 4, "aten::_embedding_bag_backward": 8,
        "aten::_embedding_bag_dense_backward": 7, "aten::_embedding_bag_sparse_backward": 7}  # fmt: skip
UPDATES = ("aten::add_", "aten::sub_")
COALESCE = "aten::_coalesce"
BY_VALUE = (*UPDATES, COALESCE)
"""Calls whose ids are inside a sparse tensor."""
SECTOR, LOAD = 32, 16
"""Bytes that memory hands over at least, and that a thread loads at most."""
WARP, WARPS, BLOCKS = 32, 8, 1024
"""Lanes of a warp, warps of a block, and blocks that walk over the bags."""
SERIAL = 0.4
"""Trips to memory for each of the rows that are added up one after the other."""
FEW = 3072
"""Ids up to which a dense gradient is added up without sorting them."""
NO_COPY, BY_FEW, BY_BLOCK, BY_ELEMENT, BY_ADDING = range(5)
"""The kernel that copies or adds rows: none; one for a few ids; one with a block for each row; one for rows that begin
anywhere; one that adds in memory."""
FEW_IDS = 16
BLOCK_TRIPS = 4.4
"""Trips to memory that a block lasts which copies a row; an SM has as many of them at once as a warp has lanes."""
ADDED, ADDED_TO_ONE = 640, 140
"""Additions in memory while a trip there takes: of an SM, and to one and the same place."""
ONE_TILE = 5888
"""Ids up to which one block sorts them."""


class Sizes(NamedTuple):
    """Ids, distinct ones, rows of the table, their length, bags, bytes of an element."""

    ids: int
    unique: int
    rows: int
    dim: int
    bags: int
    item: int


class Lookups(Family):
    """Rows of tables, picked by id."""

    name = "lookups"
    ops = (*BAGS, *ROWS, *NUM_WEIGHTS, *UPDATES, COALESCE)
    columns = ("op", "dtype", "rows", "dim", "bags", "pooling", "sparse", "mode", "dim_aligned", "stepped",
               "table_bytes", "moved", "from_memory", "flag", "count", "wide", "rounds", "rounds_ragged", "length",
               "sorted_in", "digits", "roof", "in_cache", "waves", "weighted", "kernel", *REUSE,
               "most_hits")  # fmt: skip

    def takes(self, op: Op) -> bool:
        """Of additions, those of a sparse gradient."""
        tensors = tensors_of(op)
        return bool(tensors) and (op.name not in UPDATES or any(t.layout != "strided" for t in tensors))

    def describe(self, op: Op, facts: Facts) -> Described:
        """Sizes, the walk over bags or sorted ids, and the reuse of rows."""
        tensors = tensors_of(op)
        first = tensors[0]
        count = facts.indices.count if facts.indices and op.name in BY_VALUE else _count(op, tensors)
        rows, dim, bags = _sizes(op, tensors, count)
        item = first.itemsize
        sparse = flag(op, 9, "sparse") or "sparse_backward" in op.name
        found = facts.indices or evenly(rows, count)
        if sparse and op.name in NUM_WEIGHTS:
            rows, found = bags, _each_bag_as_often(bags, count)
        row_bytes = dim * item
        chunks = bags * per(dim, WARP)
        pooling = count / max(1, bags)
        rounds = chunks / (WARPS * BLOCKS)
        fetched = per(row_bytes, SECTOR) * SECTOR
        step = first.stride[0] if first.stride is not None and len(first.stride) == 2 else dim
        stepped = step > max(1, dim)
        wide = alignment(row_bytes) >= LOAD and (not stepped or alignment(step * item) >= LOAD)
        kernel = _copying_kernel(op.name, sparse, count, wide)
        sizes = Sizes(found.count or count, found.unique, rows, dim, bags, item)
        chain = math.ceil(rounds) * pooling / 8
        if op.name == COALESCE:
            chain = SERIAL * most_hits(found)
        elif kernel != NO_COPY:
            chain = _trips(kernel, sizes, most_hits(found), facts.device.sms)
        work = _work(op.name, sizes, sparse, chain)
        ways = 0 if op.name not in NUM_WEIGHTS or sparse else 1 if count <= FEW else 2 if count <= ONE_TILE else 3
        features = [
            PLACE[op.name], dtype_code(first.dtype), log(rows), log(dim), log(bags), pooling, sparse,
            integer(op, MODE[op.name], "mode", 0) if op.name in MODE else -1, alignment(dim), stepped,
            log(rows * row_bytes), log(count * row_bytes), log(found.unique * fetched),
            flag(op, 5, "sparse") if op.name in BAGS else -1, log(count), wide, log(64 * rounds), ragged(rounds),
            math.ceil(rounds) * pooling, ways, per(log(rows), 8), log(64 * work.us(facts.device)),
            found.unique * fetched / (facts.device.l2_mb * 1e6),
            log(64 * count * row_bytes / LOAD / (facts.device.sms * 2048)),
            isinstance(argument(op, 6, "per_sample_weights"), Tensor) if op.name in BAGS else 0, kernel, *reuse(found),
            log(most_hits(found)),
        ]  # fmt: skip
        return Described(features, work)


PLACE = {name: place for place, name in enumerate(Lookups.ops)}


def _copying_kernel(name: str, sparse: bool, count: int, wide: bool) -> int:
    """Which one copies the rows of a table, or of the gradient of each bag, or adds them."""
    if name not in (*ROWS, *UPDATES) and not (sparse and name in NUM_WEIGHTS):
        return NO_COPY
    if count <= FEW_IDS:
        return BY_FEW
    if name in UPDATES:
        return BY_ADDING
    return BY_BLOCK if wide else BY_ELEMENT


def _trips(kernel: int, sizes: Sizes, hottest: float, sms: int) -> float:
    """Trips to memory that copying or adding rows takes, one after the other.

    >>> _trips(BY_FEW, Sizes(ids=9, unique=9, rows=9, dim=64, bags=9, item=4), hottest=1.0, sms=132)
    9.0
    """
    if kernel == BY_FEW:
        return float(sizes.ids)  # one id after the other
    if kernel == BY_BLOCK:
        return BLOCK_TRIPS * sizes.ids / (sms * WARP)
    if kernel == BY_ADDING:
        return max(sizes.ids * sizes.dim / (sms * ADDED), hottest * (4 / sizes.item) / ADDED_TO_ONE)
    return 0.0


def _each_bag_as_often(bags: int, count: int) -> Indices:
    """A sparse gradient copies the gradient of each bag for each of its ids, whatever they are."""
    often = max(1, count // max(1, bags))
    return Indices(op=-1, rows=bags, count=count, unique=bags, bags=bags, reuse=(*[0] * int(math.log2(often)), bags))


def _count(op: Op, tensors: list[Tensor]) -> int:
    """Ids that are looked up; a sparse tensor does not say, and may hold each row once."""
    if op.name in BY_VALUE:
        sparse = next((t for t in tensors if t.layout != "strided"), tensors[0])
        return sparse.shape[0] if sparse.shape else 1
    return next((t.numel for t in tensors if t.dtype in ("int64", "int32")), 1)


def _sizes(op: Op, tensors: list[Tensor], count: int) -> tuple[int, int, int]:
    """Rows of the table, their length, bags or ids."""
    first = tensors[0]
    dim = first.shape[-1] if first.shape else 1
    if op.name in NUM_WEIGHTS:
        rows = integer(op, NUM_WEIGHTS[op.name], "num_weights", 1)
        return max(1, rows), dim, first.numel // max(1, dim)
    if op.name == "aten::index_select" and first.shape:
        place = integer(op, 1, "dim", 0) % len(first.shape)
        return first.shape[place], first.numel // max(1, first.shape[place]), count
    bags = tensors[2].numel if op.name in BAGS and len(tensors) > 2 else count
    if op.name in BAGS and flag(op, 7, "include_last_offset"):
        bags -= 1
    return (first.shape[0] if first.shape else 1), dim, max(1, bags)


def _work(name: str, sizes: Sizes, sparse: bool, chain: float) -> Work:
    """Distinct rows come from memory; what is made of them goes there; a dense gradient is cleared first."""
    count, unique, rows, dim, bags, item = sizes
    row = dim * item
    whole = per(row, SECTOR) * SECTOR
    if name in BAGS:
        return Work(flops=count * dim, bytes=whole * unique + row * bags + 8 * count, trips=chain)
    if name in ROWS:
        return Work(bytes=whole * unique + row * count + 8 * count, trips=chain)
    if name == COALESCE:
        return Work(bytes=row * (count + unique) + 8 * count * per(log(count), 8), trips=chain)
    if name in UPDATES:
        return Work(flops=count * dim, bytes=2 * whole * unique + row * count + 8 * count, trips=chain)
    cleared = 0 if sparse else rows * row
    return Work(bytes=cleared + row * (count + bags) + 8 * count, trips=chain if sparse else 0.0)


# --- was cost_models.spread_of_ids: Which reuse of rows goes with which call: a lookup's own, and the same one for its gradient and its update.

READS = (*BAGS, "aten::embedding")


def spread_of_ids(ops: Sequence[Op], known: Sequence[Indices]) -> dict[int, Indices]:
    """Statistics by position of the op; ids nobody looked at are taken to be spread evenly.

    >>> from foretrace.graph import Tensor
    >>> table, ids = Tensor((100, 8), "float32", storage=1), Tensor((40,), "int64", storage=2)
    >>> grad = Tensor((100, 8), "float32", layout="sparse_coo")
    >>> found = spread_of_ids([Op("aten::embedding", (table, ids)), Op("aten::add_", (table, grad))], [])
    >>> found[0].count, found[1] is found[0]
    (40, True)
    """
    given = {indices.op: indices for indices in known}
    result: dict[int, Indices] = {}
    by_ids: dict[Hashable, Indices] = {}
    by_table: dict[Hashable, Indices] = {}
    for place, op in enumerate(ops):
        found = given.get(place)
        if op.name in READS and len(op.tensors) > 1:
            table, ids = op.tensors[:2]
            found = found or evenly(table.shape[0] if table.shape else 1, ids.numel)
            by_ids[_known_by(ids)] = by_table[_known_by(table)] = found
        elif op.name in NUM_WEIGHTS and len(op.tensors) > 1:
            found = found or by_ids.get(_known_by(op.tensors[1]))
        elif op.name in UPDATES and op.tensors:
            found = found or by_table.get(_known_by(op.tensors[0]))
        if found is not None:
            result[place] = found
    return result


def _known_by(tensor: Tensor) -> Hashable:
    """Its storage; its shape in a trace that does not tell storages."""
    return tensor.storage if tensor.storage >= 0 else tensor.shape
