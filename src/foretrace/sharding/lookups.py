"""What looking up pieces of tables takes on a device: forward, and backward with the optimizer's update.

A piece is priced as the calls that PyTorch makes of it: ``_embedding_bag`` or ``embedding``, its gradient, and the
update of the rows that were hit, each by the platform's fitted model of lookups, which knows how often rows are hit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.graph import Graph, Indices, Op, OpTable, Tensor
from foretrace.platform.platform import Platform
from foretrace.sharding.hits import Floats
from foretrace.sharding.pieces import DTYPES, OPTIMIZERS, Longs, Pieces, summed
from foretrace.sharding.tables import STATE

FORWARD, BACKWARD = 0, 1
STORAGES = 10
"""Numbers that a piece's tensors take."""
SGD = OPTIMIZERS.index("sgd")
UPDATE_SPREAD = 0.15
"""How far an update that only moves rows may be off what it moves at the rate of a copy."""


class Priced(NamedTuple):
    """Microseconds of each piece (rows), forward and backward (columns): 10th percentile, median, 90th."""

    low: Floats
    typical: Floats
    high: Floats


def price(pieces: Pieces, platform: Platform) -> Priced:
    """Each piece in calls of its own, with nothing of it in the device's caches.

    >>> from foretrace.sharding.ranks import Ranks
    >>> from foretrace.sharding.kinds import KINDS, TABLE
    >>> from foretrace.sharding.tables import Table
    >>> made = [KINDS[TABLE].piece(Table("t", rows, 64, pooling=8), Ranks(2), 1) for rows in (1_000, 10_000_000)]
    >>> few, many = price(Pieces.of(made), Platform.named("h200")).typical.sum(axis=1)
    >>> bool(few < many)
    True
    """
    if not len(pieces):
        none = np.zeros((0, 2))
        return Priced(none, none, none)
    graph, owner, phase = graph_of(pieces)
    costs = price_kernels(graph, np.arange(len(owner), dtype=np.int32), platform)
    where = owner[costs.op] * 2 + phase[costs.op]
    gap = platform.device.measured.kernel_gap_us
    low, typical, high = (
        summed(where, us + gap, 2 * len(pieces)).reshape(-1, 2) for us in (costs.low, costs.typical, costs.high)
    )
    moved = _moved_by_update(pieces, platform)
    for column, share in ((low, 1 / (1 + UPDATE_SPREAD)), (typical, 1.0), (high, 1 + UPDATE_SPREAD)):
        column[:, BACKWARD] += share * moved
    return Priced(low, typical, high)


def graph_of(pieces: Pieces) -> tuple[Graph, Longs, Longs]:
    """The calls of all pieces, all forwards, all backwards, then all updates; and of each call its piece and phase."""
    calls = [calls_of(pieces, place) for place in range(len(pieces))]
    ops = [op for column in range(3) for made in calls for op in made[column : column + 1]]
    owner = np.array([place for column in range(3) for place, made in enumerate(calls) if len(made) > column])
    phase = np.array([min(column, BACKWARD) for column in range(3) for made in calls if len(made) > column])
    known = [_spread(pieces, int(place), row) for row, place in enumerate(owner)]
    return Graph(OpTable.of(ops), indices=known), owner, phase


def calls_of(pieces: Pieces, place: int) -> list[Op]:
    """The calls that a step makes for a piece; an update that has no call of its own is priced by its traffic."""
    dtype, dim = DTYPES[pieces.dtype[place]], int(pieces.dim[place])
    if dtype == "int8":
        dtype, dim = "bfloat16", max(1, dim // 2)  # rows of as many bytes
    rows, count, bags = (max(1, round(column[place])) for column in (pieces.rows, pieces.count, pieces.bags))
    number = iter(range(STORAGES * place, STORAGES * (place + 1)))

    def tensor(shape: tuple[int, ...], of: str = "int64", layout: str = "strided") -> Tensor:
        return Tensor(shape, of, "cuda:0", storage=next(number), layout=layout)

    sparse = not pieces.everywhere[place]
    weight, ids, made = tensor((rows, dim), dtype), tensor((count,)), tensor((bags, dim), dtype)
    gradient = tensor((rows, dim), dtype, "sparse_coo" if sparse else "strided")
    if pieces.sequence[place]:
        calls = [Op("aten::embedding", (weight, ids, -1, False, sparse), outputs=(made,), overload="default")]
        if not sparse:  # a sparse gradient is made of what is there already
            calls.append(Op("aten::embedding_dense_backward", (made, ids, rows, -1, False),
                            outputs=(gradient,), overload="default"))  # fmt: skip
    else:
        offsets, bag_of_id, sizes, maxima = tensor((bags,)), tensor((count,)), tensor((bags,)), tensor((0,))
        calls = [
            Op("aten::_embedding_bag", (weight, ids, offsets, False, 0, sparse, None, False),
               outputs=(made, bag_of_id, sizes, maxima), overload="default"),
            Op("aten::_embedding_bag_backward",
               (tensor((bags, dim), dtype), ids, offsets, bag_of_id, sizes, maxima, rows, False, 0, sparse, None),
               outputs=(gradient,), overload="default"),
        ]  # fmt: skip
    if sparse and pieces.optimizer[place] == SGD:
        calls.append(Op("aten::add_", (weight, gradient), {"alpha": -0.01}, outputs=(weight,), overload="Tensor"))
    elif sparse:
        calls.append(Op("aten::_coalesce", (gradient,), outputs=(gradient,), overload="default"))
    return calls


def _spread(pieces: Pieces, place: int, op: int) -> Indices:
    """How a piece's ids are spread, said of a call."""
    reuse = np.trim_zeros(np.rint(pieces.reuse[place]).astype(int), "b").tolist()
    count, unique = round(pieces.count[place]), round(pieces.unique[place])
    return Indices(op, round(pieces.rows[place]), max(1, count), max(1, unique), round(pieces.bags[place]),
                   tuple(reuse))  # fmt: skip


def _moved_by_update(pieces: Pieces, platform: Platform) -> Floats:
    """Microseconds in which an optimizer reads and writes rows and what it keeps of them; SGD's call does so itself."""
    device = platform.device
    element, row = np.array([STATE[name] for name in OPTIMIZERS], np.float64)[pieces.optimizer].T
    kept = pieces.dim * element + row
    weights = pieces.dim * pieces.itemsize
    touched = np.where(pieces.everywhere, pieces.rows, pieces.unique)
    nbytes = touched * (2 * kept + 3 * weights)
    nbytes[~pieces.everywhere & (pieces.optimizer == SGD)] = 0.0
    return np.asarray(nbytes / (device.measured.memory_gbps or device.memory_gbps) / 1e3)
