"""How a rank looks up the pieces that it holds: many in one call, one call each, or by FBGEMM's batched kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foretrace.forecast.predict import predict
from foretrace.graph import Graph, Job, Op, OpTable
from foretrace.platform.platform import Platform
from foretrace.sharding.hits import Floats, hits
from foretrace.sharding.laws import Law, holds
from foretrace.sharding.lookups import Priced, calls_of, price
from foretrace.sharding.pieces import Longs, Piece, Pieces, summed
from foretrace.sharding.tables import Table
from foretrace.sharding.tbe import price_tbe

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
