"""Embedding lookups, their gradients and sparse updates: rows, width, pooling, and the reuse of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    BLOCK_SORT,
    RESIDENT,
    SECTOR,
    SERIAL_ROUND_TRIPS,
    WARP,
    WIDEST_LOAD,
    alignment,
    argument,
    bool_argument,
    ceil_div,
    dtype_code,
    int_argument,
    log,
    max_row_hits,
    reuse_features,
    tensors_of,
    uniform_indices,
    wave_quantization,
)  # fmt: skip
from foretrace.cost_models.kernels.features import REUSE_COLUMNS as REUSE
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Indices, Op, Tensor, Value
from foretrace.graph.operators import EMBEDDING_BAGS, FBGEMM, LOOKUPS
from foretrace.platform.measurements.cases import Case, Draw, Ids

ROWS = ("aten::embedding", "aten::index_select")
NUM_WEIGHTS = {"aten::_embedding_bag_backward": 6, "aten::embedding_dense_backward": 2,
               "aten::_embedding_bag_dense_backward": 5, "aten::_embedding_bag_sparse_backward": 5}  # fmt: skip
"""Gradients, and the position of ``num_weights``, the rows of the table."""
MODE = {"aten::_embedding_bag": 4, "aten::_embedding_bag_forward_only": 4, "aten::_embedding_bag_backward": 8,
        "aten::_embedding_bag_dense_backward": 7, "aten::_embedding_bag_sparse_backward": 7}  # fmt: skip
UPDATES = ("aten::add_", "aten::sub_")
COALESCE = "aten::_coalesce"
BY_VALUE = (*UPDATES, COALESCE)
"""Calls whose ids are inside a sparse tensor: only statistics tell them."""
WARPS, BLOCKS = 8, 1024
"""Warps of a block, and blocks that loop over the bags."""
UNSORTED_IDS = 3072
"""Ids up to which a dense gradient is accumulated without sorting them."""
NO_COPY, BY_FEW, BY_BLOCK, BY_ELEMENT, BY_ADDING = range(5)
"""The kernel that copies or adds rows: none, index_select for few ids, a block per row, for unaligned rows, atomic."""
FEW_IDS = 16
BLOCK_ROUND_TRIPS = 4.4
"""Memory round trips of a block that copies a row; an SM runs as many blocks at once as a warp has lanes."""
ATOMICS, ATOMICS_TO_ONE = 640, 140
"""Atomic additions during a memory round trip: of an SM, and to one address."""
BATCHED_FORWARD = re.compile(
    rf"{FBGEMM}(split|dense|ssd)_embedding_(nobag_)?codegen_(lookup_(\w+_)?function\w*|forward_\w+)$"
)
BATCHED_BACKWARD = re.compile(
    rf"{FBGEMM}(split|dense|ssd)_embedding_(nobag_)?backward_codegen_(?P<optimizer>\w+?)_(un)?weighted"
)
ID_DTYPES = ("int64", "int32")


class Sizes(NamedTuple):
    """Ids, distinct ids, rows of the table, their width, bags, bytes of an element."""

    ids: int
    unique: int
    rows: int
    dim: int
    bags: int
    item: int


class Lookups(Family):
    """Embeddings and embedding bags, index_select, and the updates of tables."""

    name = "lookups"
    takes_sparse = True
    share = 9
    ops = (*EMBEDDING_BAGS, *ROWS, *NUM_WEIGHTS, *UPDATES, COALESCE)
    columns = ("op", "dtype", "rows", "dim", "bags", "pooling", "sparse", "mode", "dim_aligned", "stepped",
               "table_bytes", "moved", "from_memory", "flag", "count", "wide", "rounds", "rounds_ragged", "length",
               "sorted_in", "digits", "roof", "in_cache", "waves", "weighted", "kernel", *REUSE,
               "most_hits")  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Of in-place additions, those of a sparse gradient."""
        tensors = tensors_of(op)
        return bool(tensors) and (op.name not in UPDATES or any(t.layout != "strided" for t in tensors))

    def describe(self, op: Op, context: CallContext) -> Description:
        """Sizes, the loop over bags or sorted ids, and the reuse of rows."""
        tensors = tensors_of(op)
        first = tensors[0]
        count = context.indices.count if context.indices and op.name in BY_VALUE else _count(op, tensors)
        rows, dim, bags = _sizes(op, tensors, count)
        item = first.itemsize
        sparse = bool_argument(op, 9, "sparse") or "sparse_backward" in op.name
        found = context.indices or uniform_indices(rows, count)
        if sparse and op.name in NUM_WEIGHTS:
            rows, found = bags, _uniform_bags(bags, count)
        row_bytes = dim * item
        chunks = bags * ceil_div(dim, WARP)
        pooling = count / max(1, bags)
        rounds = chunks / (WARPS * BLOCKS)
        fetched = ceil_div(row_bytes, SECTOR) * SECTOR
        step = first.stride[0] if first.stride is not None and len(first.stride) == 2 else dim
        stepped = step > max(1, dim)
        wide = alignment(row_bytes) >= WIDEST_LOAD and (not stepped or alignment(step * item) >= WIDEST_LOAD)
        kernel = _copying_kernel(op.name, sparse, count, wide)
        sizes = Sizes(found.count or count, found.unique, rows, dim, bags, item)
        chain = math.ceil(rounds) * pooling / 8
        if op.name == COALESCE:
            chain = SERIAL_ROUND_TRIPS * max_row_hits(found)
        elif kernel != NO_COPY:
            chain = _round_trips(kernel, sizes, max_row_hits(found), context.device.sms)
        work = _work(op.name, sizes, sparse, chain)
        sorting = (
            0
            if op.name not in NUM_WEIGHTS or sparse
            else 1
            if count <= UNSORTED_IDS
            else 2
            if count <= BLOCK_SORT
            else 3
        )
        features = [
            self.op_codes[op.name], dtype_code(first.dtype), log(rows), log(dim), log(bags), pooling, sparse,
            int_argument(op, MODE[op.name], "mode", 0) if op.name in MODE else -1, alignment(dim), stepped,
            log(rows * row_bytes), log(count * row_bytes), log(found.unique * fetched),
            bool_argument(op, 5, "sparse") if op.name in EMBEDDING_BAGS else -1, log(count), wide, log(64 * rounds),
            wave_quantization(rounds), math.ceil(rounds) * pooling, sorting, ceil_div(log(rows), 8),
            log(64 * work.us(context.device)), found.unique * fetched / (context.device.l2_mb * 1e6),
            log(64 * count * row_bytes / WIDEST_LOAD / (context.device.sms * RESIDENT)),
            isinstance(argument(op, 6, "per_sample_weights"), Tensor) if op.name in EMBEDDING_BAGS else 0, kernel,
            *reuse_features(found), log(max_row_hits(found)),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """A lookup, its gradient or a sparse update, with random reuse of rows."""
        dtype = draw.weighted({"float32": 8, "bfloat16": 1, "float16": 1})
        dim = draw.size(1, 256) if draw.chance(0.9) else draw.size(256, 1024)
        rows = draw.whole(min(1000, draw.most // dim), max(1, min(10_000_000, 4 * draw.most // dim)))
        if draw.chance(0.2):
            rows = draw.whole(
                2, max(2, min(1000, 4 * draw.most // dim))
            )  # a country, a weekday: all bags hit the same few
        kind = draw.weighted(KINDS)
        pooling = draw.whole(1, 100) if kind in POOLED and draw.chance(0.75) else 1
        # Often all tables of a model are fused into one, each with its bags.
        tables = draw.whole(2, 64) if kind in POOLED and draw.chance(0.35) else 1
        bags = (
            draw.size(2, max(2, min(16384 if pooling > 1 else 65536, draw.most // (dim * pooling * tables)))) * tables
        )
        rows = max(tables, rows // tables * tables)
        ids = replace(id_distribution(draw, bags * pooling), tables=tables)
        op = _OPS[kind](draw, dtype, rows, dim, bags, pooling)
        return Case(op, ids=ids)


def _copying_kernel(name: str, sparse: bool, count: int, wide: bool) -> int:
    """The kernel that copies rows of a table or of the bags' gradients, or adds them."""
    if name not in (*ROWS, *UPDATES) and not (sparse and name in NUM_WEIGHTS):
        return NO_COPY
    if count <= FEW_IDS:
        return BY_FEW
    if name in UPDATES:
        return BY_ADDING
    return BY_BLOCK if wide else BY_ELEMENT


def _round_trips(kernel: int, sizes: Sizes, hottest: float, sms: int) -> float:
    """Serial memory round trips of copying or adding rows."""
    if kernel == BY_FEW:
        return float(sizes.ids)  # one id after the other
    if kernel == BY_BLOCK:
        return BLOCK_ROUND_TRIPS * sizes.ids / (sms * WARP)
    if kernel == BY_ADDING:
        return max(sizes.ids * sizes.dim / (sms * ATOMICS), hottest * (4 / sizes.item) / ATOMICS_TO_ONE)
    return 0.0


def _uniform_bags(bags: int, count: int) -> Indices:
    """Statistics of a sparse gradient, which copies each bag's gradient once per id, whatever the ids are."""
    often = max(1, count // max(1, bags))
    return Indices(op=-1, rows=bags, count=count, unique=bags, bags=bags, reuse=(*[0] * int(math.log2(often)), bags))


def _count(op: Op, tensors: list[Tensor]) -> int:
    """Number of ids; for a sparse tensor, which does not tell, as many as the table has rows."""
    if op.name in BY_VALUE:
        sparse = next((t for t in tensors if t.layout != "strided"), tensors[0])
        return sparse.shape[0] if sparse.shape else 1
    return next((t.numel for t in tensors if t.dtype in ("int64", "int32")), 1)


def _sizes(op: Op, tensors: list[Tensor], count: int) -> tuple[int, int, int]:
    """Rows of the table, their width, and bags or ids."""
    first = tensors[0]
    dim = first.shape[-1] if first.shape else 1
    if op.name in NUM_WEIGHTS:
        rows = int_argument(op, NUM_WEIGHTS[op.name], "num_weights", 1)
        return max(1, rows), dim, first.numel // max(1, dim)
    if op.name == "aten::index_select" and first.shape:
        place = int_argument(op, 1, "dim", 0) % len(first.shape)
        return first.shape[place], first.numel // max(1, first.shape[place]), count
    bags = tensors[2].numel if op.name in EMBEDDING_BAGS and len(tensors) > 2 else count
    if op.name in EMBEDDING_BAGS and bool_argument(op, 7, "include_last_offset"):
        bags -= 1
    return (first.shape[0] if first.shape else 1), dim, max(1, bags)


def _work(name: str, sizes: Sizes, sparse: bool, chain: float) -> Work:
    """Distinct rows are read from memory, outputs written; a dense gradient is zeroed first."""
    count, unique, rows, dim, bags, item = sizes
    row = dim * item
    whole = ceil_div(row, SECTOR) * SECTOR
    if name in EMBEDDING_BAGS:
        return Work(flops=count * dim, bytes=whole * unique + row * bags + 8 * count, round_trips=chain)
    if name in ROWS:
        return Work(bytes=whole * unique + row * count + 8 * count, round_trips=chain)
    if name == COALESCE:
        return Work(bytes=row * (count + unique) + 8 * count * ceil_div(log(count), 8), round_trips=chain)
    if name in UPDATES:
        return Work(flops=count * dim, bytes=2 * whole * unique + row * count + 8 * count, round_trips=chain)
    cleared = 0 if sparse else rows * row
    return Work(bytes=cleared + row * (count + bags) + 8 * count, round_trips=chain if sparse else 0.0)


def index_statistics(ops: Sequence[Op], known: Sequence[Indices]) -> dict[int, Indices]:
    """Index statistics by position of the op: a lookup's own, and the same for its gradient and its update.

    Ids without recorded statistics are taken to be uniform.
    """
    given: dict[int, Indices] = {}
    for indices in known:  # a call for many tables has statistics of each
        given[indices.op] = Indices.summed([given[indices.op], indices]) if indices.op in given else indices
    result: dict[int, Indices] = {}
    by_ids: dict[Hashable, Indices] = {}
    by_table: dict[Hashable, Indices] = {}
    for place, op in enumerate(ops):
        found = given.get(place)
        if op.name in LOOKUPS and len(op.tensors) > 1:
            table, ids = op.tensors[:2]
            found = found or uniform_indices(table.shape[0] if table.shape else 1, ids.numel)
            by_ids[_identity(ids)] = by_table[_identity(table)] = found
        elif op.name in NUM_WEIGHTS and len(op.tensors) > 1:
            found = found or by_ids.get(_identity(op.tensors[1]))
        elif op.name in UPDATES and op.tensors:
            found = found or by_table.get(_identity(op.tensors[0]))
        elif is_batched_lookup(op.name) and (sizes := batched_sizes(op)):
            found = found or by_ids.get(_identity(sizes.ids)) or uniform_indices(sizes.rows, sizes.ids.numel)
            by_ids[_identity(sizes.ids)] = found
        if found is not None:
            result[place] = found
    return result


def looks_up(name: str) -> bool:
    """Whether ops of a name read rows of a table by ids: statistics of others' ids follow from theirs."""
    return name in LOOKUPS or is_batched_lookup(name)


def _identity(tensor: Tensor) -> Hashable:
    """A tensor's storage; its shape in a trace that does not record storages."""
    return tensor.storage if tensor.storage >= 0 else tensor.shape


# Cases to measure

KINDS = {
    "bag": 8,
    "bag_backward": 8,
    "embedding": 3,
    "embedding_backward": 4,
    "select": 1,
    "sparse_update": 4,
    "coalesce": 2,
}
POOLED = ("bag", "bag_backward", "sparse_update", "coalesce")


def id_distribution(draw: Draw, count: int) -> Ids:
    """Uniform, a power law, or a histogram that falls off about like those of production tables."""
    style = draw.weighted({"uniform": 3, "power": 5, "histogram": 3})
    if style == "uniform":
        return Ids(count)
    if style == "power":
        return Ids(count, skew=round(draw.random.uniform(0.4, 1.4), 3))
    # Production tables: a third to a half of the rows has one hit, the next few powers of two are about as frequent as
    # each other, and from there on each is rarer by a steady factor.
    once, flat, fall = draw.random.uniform(0.2, 0.7), draw.random.uniform(0.7, 1.0), draw.random.uniform(0.3, 0.65)
    knee, last = draw.random.randint(1, 5), draw.random.randint(6, 15)
    tail = [flat ** min(k, knee) * fall ** max(0, k - knee) for k in range(last)]
    shares = [once] + [(1 - once) * share / sum(tail) for share in tail]
    return Ids(count, reuse=tuple(round(share, 5) for share in shares))


def _bag(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    kind = draw.weighted({"int64": 12, "int32": 1})
    last = draw.chance(0.1)
    weight, ids, offsets = Tensor((rows, dim), dtype), Tensor((bags * pooling,), kind), Tensor((bags + last,), kind)
    mode = draw.weighted({0: 8, 1: 2})
    weights = Tensor((bags * pooling,), dtype) if mode == 0 and draw.chance(0.08) else None
    args: tuple[Value, ...] = (weight, ids, offsets, False, mode, draw.chance(0.7), weights, last)
    return Op("aten::_embedding_bag", args, overload="default")


def _bag_backward(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    # The gradient is often a slice of the concatenated output of all tables.
    tables = draw.whole(1, 32) if draw.chance(0.6) else 1
    if bags * dim * tables > draw.most:
        tables = 1
    grad = Tensor((bags, dim), dtype, stride=(dim * tables, 1))
    count = bags * pooling
    sparse = draw.chance(0.6) or rows * dim > draw.most
    ids, offsets = Tensor((count,), "int64"), Tensor((bags,), "int64")
    bag_of_id, bag_size, no_maxima = Tensor((count,), "int64"), Tensor((bags,), "int64"), Tensor((0,), "int64")
    mode = draw.weighted({0: 8, 1: 2})
    args = (grad, ids, offsets, bag_of_id, bag_size, no_maxima, rows, False, mode, sparse, None)
    return Op("aten::_embedding_bag_backward", args, overload="default")


def _token_ids(draw: Draw, count: int) -> Tensor:
    """Ids as a vector, or as a row per sample; sometimes the same positions for all samples."""
    if count < 4 or draw.chance(0.3):
        return Tensor((count,), "int64")
    batch = draw.whole(2, min(256, count // 2))
    return Tensor((batch, count // batch), "int64", stride=(0, 1) if draw.chance(0.15) else None)


def _embedding(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    return Op("aten::embedding", (Tensor((rows, dim), dtype), _token_ids(draw, bags * pooling)), overload="default")


def _embedding_backward(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    rows = min(rows, max(1, draw.most // dim))
    ids = _token_ids(draw, bags * pooling)
    grad = Tensor((*ids.shape, dim), dtype)
    padding = 0 if draw.chance(0.3) else -1
    return Op("aten::embedding_dense_backward", (grad, ids, rows, padding, False), overload="default")


def _select(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    table, ids = Tensor((rows, dim), dtype), Tensor((bags * pooling,), "int64")
    return Op("aten::index_select", (table, 0, ids), overload="default")


def _sparse_update(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    table, grad = Tensor((rows, dim), dtype), Tensor((rows, dim), dtype, layout="sparse_coo")
    return Op("aten::add_", (table, grad), {"alpha": -0.01}, overload="Tensor")


def _coalesce(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    return Op("aten::_coalesce", (Tensor((rows, dim), dtype, layout="sparse_coo"),), overload="default")


_OPS = {
    "bag": _bag,
    "bag_backward": _bag_backward,
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "select": _select,
    "sparse_update": _sparse_update,
    "coalesce": _coalesce,
}


# FBGEMM's table-batched lookups: one call for all tables of a rank


class BatchedSizes(NamedTuple):
    """Sizes of all tables together."""

    rows: int
    dim: int
    """The mean of all tables."""
    ids: Tensor
    examples: int
    width: int
    """Of a row of the result, with the embeddings of all tables."""
    itemsize: int
    pooled_itemsize: int


def is_batched_lookup(name: str) -> bool:
    """Whether an op is a table-batched lookup, or its backward.

    >>> is_batched_lookup("fbgemm::split_embedding_codegen_forward_unweighted_pt2_wrapper")
    True
    >>> is_batched_lookup("fbgemm::permute_2D_sparse_data")
    False
    """
    return name.startswith(FBGEMM) and bool(BATCHED_FORWARD.match(name) or BATCHED_BACKWARD.match(name))


def batched_sizes(op: Op) -> BatchedSizes | None:
    """Sizes of a table-batched call; None where its tensors do not tell.

    Versions of FBGEMM differ in the order of arguments. Offsets have one element more than tables times examples, right
    after the ids; where each table begins in a row of the result, one more than tables.
    """
    made = op.produced if BATCHED_FORWARD.match(op.name) else op.tensors
    rows = [t for t in made if len(t.shape) == 2 and t.dtype not in ID_DTYPES]
    weights = max((t for t in op.tensors if t.dtype not in ID_DTYPES and len(t.shape) == 1), key=lambda t: t.numel,
                  default=None)  # fmt: skip
    if not rows or weights is None:
        return None
    examples, width = rows[0].shape
    lists = [tensor for tensor in op.tensors if tensor.dtype in ID_DTYPES and len(tensor.shape) == 1]
    begins = {tensor.shape[0] - 1 for tensor in lists}
    for ids, offsets in pairwise(lists):
        bags, tables = offsets.shape[0] - 1, 1
        if "nobag" not in op.name:
            tables = bags // max(1, examples)
            if not tables or bags != tables * examples or (tables > 1 and tables not in begins):
                continue
        elif ids.shape[0] != examples:
            continue
        dim = max(1, width // tables)
        return BatchedSizes(weights.numel // dim, dim, ids, examples, width, weights.itemsize, rows[0].itemsize)
    return None
