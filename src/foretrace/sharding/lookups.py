"""What looking up pieces of tables takes on a device: forward, and backward with the optimizer's update.

A piece is priced as the calls that PyTorch makes of it: ``_embedding_bag`` or ``embedding``, its gradient, and the
update of the rows that were hit, each by the platform's fitted model of lookups, which knows how often rows are hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.forecast.predict import predict
from foretrace.graph import Graph, Indices, Job, Op, OpTable, Tensor
from foretrace.platform.platform import Platform
from foretrace.sharding.linear_models import Law, holds, price_tbe
from foretrace.sharding.shards import DTYPES, OPTIMIZERS, Floats, Longs, Piece, Pieces, Priced, hits, summed
from foretrace.sharding.tables import STATE, Table

FORWARD, BACKWARD = 0, 1
STORAGES = 10
"""Numbers that a piece's tensors take."""
SGD = OPTIMIZERS.index("sgd")
UPDATE_SPREAD = 0.15
"""How far an update that only moves rows may be off what it moves at the rate of a copy."""


def price(pieces: Pieces, platform: Platform) -> Priced:
    """Each piece in calls of its own, with nothing of it in the device's caches.

    >>> from foretrace.sharding.options import Ranks
    >>> from foretrace.sharding.options import KINDS, TABLE
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


# --- was sharding.kernels: How a rank looks up the pieces that it holds: many in one call, one call each, or by FBGEMM's batched kernels.

MOST_COPIES = 64.0
"""A piece is priced as a part of a call that looks up at most so many like it."""
FEW = 128.0
"""Bags of a call that takes as long as one with none."""
TINY, MANY = 16, 8
"""Rows, columns and bags of a lookup that the host takes longer for than the device, and how many of them in a row."""
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Kernels:
    """What the pieces of a rank take together, and about what each adds to that."""

    platform: Platform

    def each(self, pieces: Pieces, ids: float) -> Floats:
        """Microseconds that each piece adds, forward and backward, to a rank whose calls look up about so many ids."""
        return self.alone(pieces).typical

    def fixed(self, pieces: Pieces) -> Floats:
        """What the first piece of its kind on a rank adds besides, for each piece: a row as of `each`."""
        return np.zeros((len(pieces), 2))

    def ranks(self, pieces: Pieces, each: Floats, rank: Longs, world: int) -> Priced:
        """What each rank takes for the pieces that it holds, given what each adds."""
        return self.devices(pieces, each, rank, world)

    def devices(self, pieces: Pieces, each: Floats, rank: Longs, world: int) -> Priced:
        """What the device of each rank has to do for that."""
        return Priced(*(_by_rank(us, rank, world) for us in self.alone(pieces)))

    def calls(self, pieces: Pieces) -> Pieces:
        """What one rank looks up, a row a call: pieces with rows as long, of one dtype and optimizer, share a call."""
        kinds, kind = np.unique(pieces.kind, return_inverse=True)
        return pieces.together(kind.ravel(), len(kinds))

    def alone(self, pieces: Pieces) -> Priced:
        """Each piece in a call of its own."""
        return price(pieces, self.platform)


class Batched(Kernels):
    """FBGEMM: all pieces of a rank in one kernel."""

    def alone(self, pieces: Pieces) -> Priced:
        """Each piece's part of that kernel."""
        return price_tbe(pieces, self.platform.device)


class Single(Kernels):
    """One ``nn.EmbeddingBag`` a piece: the host may take longer for the calls than the device does.

    A CPU is both, and does one after the other.
    """

    def each(self, pieces: Pieces, ids: float) -> Floats:
        """The longer of the two."""
        return self._with_host(self.alone(pieces).typical, np.ones((len(pieces), 1)))

    def ranks(self, pieces: Pieces, each: Floats, rank: Longs, world: int) -> Priced:
        """The longer of the two, on each rank."""
        device = self.devices(pieces, each, rank, world)
        held = np.bincount(rank, minlength=world)[:, None].astype(np.float64)
        return Priced(*(self._with_host(us, held) for us in device))

    def calls(self, pieces: Pieces) -> Pieces:
        """Each by itself."""
        return pieces

    def _with_host(self, us: Floats, held: Floats) -> Floats:
        host = held * self._host_us
        return np.asarray(us + host if self.platform.device.kind == "cpu" else np.maximum(us, host))

    @cached_property
    def _host_us(self) -> Floats:
        """What the host takes for the calls of a piece, forward and backward: found with tiny ones, which it holds
        up."""
        table = Table("tiny", rows=TINY, dim=TINY)
        tiny = Pieces.of([Piece(table, TINY, TINY, TINY, *hits(table, TINY))])
        by_phase = zip(*(calls_of(tiny, 0) for _ in range(MANY)))
        forward, backward, update = (self._step(ops, phase) for ops, phase in zip(by_phase, PHASES))
        return np.array([forward, backward + update]) / MANY

    def _step(self, ops: Sequence[Op], phase: str) -> float:
        graph = Graph(OpTable.of([replace(op, phase=phase) for op in ops]))
        return predict(Job([graph]), self.platform, "model").step_ms * 1e3


class Fused(Kernels):
    """Pieces with rows as long, of one dtype and optimizer, lie in one tensor and are looked up by one call.

    By the device's law where it has one that holds. Else the call's time is known in two ways: of the call itself, and
    as the sum of what each piece adds to calls of many like it. Where one is off, the other seldom is in the same
    direction: halfway between is taken.
    """

    @cached_property
    def _law(self) -> Law | None:
        # A device on paper is another one: what its memory or clock would change, the models tell.
        return None if self.platform.carry else Law.of(self.platform.device)

    def each(self, pieces: Pieces, ids: float) -> Floats:
        """Its part of a call that looks up as many like it as a rank may have."""
        lawful, result = self._lawful(pieces), np.zeros((len(pieces), 2))
        if self._law and lawful.any():
            some = pieces.pick(lawful)
            result[lawful] = self._law.us(some) - self._law.call_us()
        others = pieces.pick(~lawful)
        if len(others):
            copies = np.clip(np.round(ids / np.maximum(others.count, 1)), 1, MOST_COPIES)
            many = price(others.times(copies), self.platform).typical
            result[~lawful] = np.maximum((many - self.fixed(others)) / copies[:, None], 0.0)
        return result

    def fixed(self, pieces: Pieces) -> Floats:
        """What a call takes that looks up next to nothing."""
        lawful, result = self._lawful(pieces), np.zeros((len(pieces), 2))
        if self._law:
            result[lawful] = self._law.call_us()
        others = pieces.pick(~lawful)
        if len(others):
            _, first, group = np.unique(others.kind, return_index=True, return_inverse=True)
            some = others.pick(first)
            few = price(some.times(np.minimum(1.0, FEW / some.bags)), self.platform).typical
            result[~lawful] = few[group.ravel()]
        return result

    def devices(self, pieces: Pieces, each: Floats, rank: Longs, world: int) -> Priced:
        """Each rank's calls, one after the other."""
        if not len(pieces):
            return Priced(*(np.zeros((world, 2)) for _ in range(3)))
        groups, group = np.unique(np.stack([rank, pieces.kind], axis=1), axis=0, return_inverse=True)
        calls = pieces.together(group.ravel(), len(groups))
        lawful, priced = self._lawful(calls), np.zeros((3, len(calls), 2))
        if self._law and lawful.any():
            us, doubt = self._law.us(calls.pick(lawful)), 1 + self._law.spread
            priced[:, lawful] = us / doubt, us, us * doubt
        if not lawful.all():
            added = _by_rank(each, group.ravel(), len(groups))
            priced[:, ~lawful] = self._halfway(calls.pick(~lawful), added[~lawful])
        return Priced(*(_by_rank(us, groups[:, 0], world) for us in priced))

    def _lawful(self, pieces: Pieces) -> NDArray[np.bool_]:
        return holds(pieces) if self._law else np.zeros(len(pieces), np.bool_)

    def _halfway(self, calls: Pieces, added: Floats) -> Priced:
        priced = price(calls, self.platform)
        share = np.sqrt((self.fixed(calls) + added) / np.maximum(priced.typical, 1e-9))
        return Priced(*(us * share for us in priced))


KERNELS: dict[str, type[Kernels]] = {"fused": Fused, "single": Single, "tbe": Batched}
"""By what `foretrace shard --kernels` calls them."""


def _by_rank(us: Floats, rank: Longs, world: int) -> Floats:
    return np.stack([summed(rank, column, world) for column in us.T], axis=1)
