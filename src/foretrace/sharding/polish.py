"""The last step of a search: moves off the slowest rank, judged by the models themselves and not by sums."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from foretrace.sharding.costing import Costing, Estimate
from foretrace.sharding.hits import Floats
from foretrace.sharding.kinds import KINDS
from foretrace.sharding.memory import memory
from foretrace.sharding.pieces import Longs, Pieces, summed
from foretrace.sharding.plan import Placement, Plan

ASKED = 96
"""Moves that look best by the sums: of these the models are asked."""
NOTHING = -1


@dataclass
class Held:
    """All parts of a plan, a row each."""

    pieces: Pieces
    each: Floats
    """What each adds to its rank, about, forward and backward."""
    rank: Longs
    table: Longs
    free: Longs
    """Rows of those that may lie anywhere."""
    nbytes: Floats

    @classmethod
    def of(cls, costing: Costing, plan: Plan) -> Held:
        """Those of a plan."""
        pieces, rank = costing.held(plan)
        table = np.array([table for table, p in enumerate(plan) for _ in p.ranks], np.int64)
        each = costing.adds([(number, plan[number].way) for number in table.tolist()])
        free = np.flatnonzero([KINDS[plan[number].kind].anywhere for number in table.tolist()])
        return cls(pieces, each, rank, table, free, memory(pieces, costing.sparse_gradients))


def polish(costing: Costing, plan: Plan, room: float, until: float) -> tuple[Plan, Estimate]:
    """The plan after all moves and swaps that make it faster, as far as the time does."""
    estimate = costing.estimate(plan)
    while time.monotonic() < until:
        held = Held.of(costing, plan)
        moves = _promising(held, plan, estimate.lookups, room)
        if not len(moves):
            break
        order = np.argsort(_asked(costing, held, moves, int(estimate.lookups.argmax())), kind="stable")
        changed = _moved(plan, held, *moves[order[0]].tolist())
        found = costing.estimate(changed)
        if found.step >= estimate.step:
            break
        plan, estimate = changed, found
    return plan, estimate


def _promising(held: Held, plan: Plan, load: Floats, room: float) -> Longs:
    """Moves off the slowest rank, a row each: the part, where it goes, and the part that comes back for it, if any."""
    source, world = int(load.argmax()), len(load)
    adds, has = held.each.sum(axis=1), summed(held.rank, held.nbytes, world)
    mine = held.free[held.rank[held.free] == source]
    if not len(mine):
        return np.zeros((0, 3), np.int64)
    others = held.free[held.rank[held.free] != source]
    # A column for each other rank, with nothing back, and for each part there.
    target = np.concatenate([np.delete(np.arange(world), source), held.rank[others]])
    back = np.concatenate([np.full(world - 1, NOTHING), others])
    returned, bytes_back = (np.where(back >= 0, column[back], 0.0) for column in (adds, held.nbytes))
    less = adds[mine][:, None] - returned[None, :]
    larger = held.nbytes[mine][:, None] - bytes_back[None, :]
    then = np.maximum(load[source] - less, load[target][None, :] + less)
    fits = (has[target][None, :] + larger <= room) & (has[source] - larger <= room)
    split = np.array([[r in plan[t].ranks for r in range(world)] for t in held.table[mine].tolist()]).reshape(-1, world)
    coming = np.array([b >= 0 and source in plan[held.table[b]].ranks for b in back.tolist()], np.bool_)
    allowed = fits & ~split[:, target] & ~coming[None, :] & (then < load[source])
    row, column = np.nonzero(allowed)
    best = np.argsort(then[row, column], kind="stable")[:ASKED]
    return np.stack([mine[row[best]], target[column[best]], back[column[best]]], axis=1)


def _asked(costing: Costing, held: Held, moves: Longs, source: int) -> Floats:
    """What the slower of the two ranks would take after each move, by the models."""
    parts: list[Longs] = []
    for part, target, back in moves.tolist():
        here, there = (np.flatnonzero(held.rank == rank) for rank in (source, target))
        parts.append(np.append(here[here != part], [back] if back >= 0 else []).astype(np.int64))
        parts.append(np.append(there[there != back], part))
    rows = np.concatenate(parts)
    which = np.repeat(np.arange(len(parts)), [len(some) for some in parts])
    priced = costing.kernels.ranks(held.pieces.pick(rows), held.each[rows], which, len(parts))
    return np.asarray(priced.typical.sum(axis=1).reshape(-1, 2).max(axis=1))


def _moved(plan: Plan, held: Held, part: int, target: int, back: int) -> Plan:
    """The plan after one move."""
    placed = list(plan)
    source = int(held.rank[part])
    for moving, before, after in ((part, source, target), (back, target, source)):
        if moving >= 0:
            kind, ranks = placed[held.table[moving]]
            placed[held.table[moving]] = Placement(kind, tuple(after if r == before else r for r in ranks))
    return tuple(placed)
