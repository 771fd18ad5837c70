"""What each way of sharding each table adds to ranks and to the step: plain sums, which a search can go through fast.

The models' own answer is no sum: a call that looks up ten tables takes less than ten calls. `Options` says about what
each piece adds; a plan that the search likes is priced by `Costing.estimate`, and the sums are put right by that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foretrace.sharding.costing import LENGTH, Costing, Line
from foretrace.sharding.options import (
    ACROSS,
    COPIES,
    DATA,
    IDS,
    KINDS,
    NODE_SUMS,
    POOLED,
    SUMS,
    Ranks,
    Way,
    exchange_of,
    ways,
)
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.shards import ID, OUTPUT, Floats, Longs, Pieces, memory

WORTH_SPLITTING = 0.2
"""A table that takes less of a rank's mean load, and of its memory, stays whole: there are enough to fill gaps."""
WORTH_COPYING = 1 << 28
"""Bytes of the largest table that is copied to all ranks."""
WORTH_TRYING = 400
"""Tables, the largest loads first, whose other ways are looked at."""
LOAD, SENT, ASKED, MEMORY = range(4)
"""What a piece adds to its rank: microseconds, pooled bytes that it sends, bytes of ids that it gets, memory."""


class Option(NamedTuple):
    """One way of sharding one table."""

    table: int
    way: Way


class Lines(NamedTuple):
    """Exchange times as straight lines over bytes."""

    sent: Line
    asked: Line
    sums: Line
    node_sums: Line
    across: Line
    copies: Line


@dataclass
class Options:
    """A row per option."""

    options: list[Option]
    adds: Floats
    """What a piece adds to its rank: columns LOAD, SENT, ASKED, MEMORY."""
    shared: Floats
    """Microseconds that it adds to the exchange of all."""
    group: Longs
    """Pieces of one group on a rank are looked up by one call."""
    call: Floats
    """By group: microseconds that the call takes besides."""
    needs: list[str]
    """What ranks exchange."""
    lines: Lines
    of_table: list[list[int]]
    """For each table its options; first, whole, where it may be."""

    @classmethod
    def of(cls, costing: Costing, room: float, every: bool = False) -> Options:
        """Of all tables, on ranks with so many bytes of room: those worth looking at, or every one."""
        tables = range(len(costing.tables))
        plain = [Option(t, _plainest(costing, t)) for t in tables]
        loads = _adds(costing, plain)
        split = list(tables) if every else _worth_it(costing, plain, loads, room)
        more = [Option(table, way) for table in split for way in _other_ways(costing, plain[table])]
        options = plain + more
        pieces = _pieces(costing, options)
        adds = np.concatenate([loads, _adds(costing, more)])
        _, first, group = np.unique(pieces.kind, return_index=True, return_inverse=True)
        of_table: list[list[int]] = [[t] for t in tables]
        for place, option in enumerate(more, len(plain)):
            of_table[option.table].append(place)
        lines = _lines(costing, loads)
        shared = np.array([_shared(costing, option, lines) for option in options])
        call = costing.kernels.fixed(pieces.pick(first)).sum(axis=1)
        needs = [_needs(costing, option) for option in options]
        return cls(options, adds, shared, group.ravel(), call, needs, lines, of_table)


def _needs(costing: Costing, option: Option) -> str:
    return exchange_of(costing.tables[option.table], option.way.kind)


def _plainest(costing: Costing, table: int) -> Way:
    """Whole where that is allowed; else the first way that is."""
    return ways(costing.tables[table], costing.ranks)[0]


def _other_ways(costing: Costing, plain: Option) -> Iterable[Way]:
    table = costing.tables[plain.table]
    for way in ways(table, costing.ranks):
        if way != plain.way and (way.kind != DATA or table.nbytes <= WORTH_COPYING):
            yield way


def _worth_it(costing: Costing, plain: list[Option], adds: Floats, room: float) -> list[int]:
    """Tables that are heavy, long to send or large; the heaviest where those are many."""
    world = costing.ranks.world
    if world < 2:
        return []
    parts = np.array([option.way.parts for option in plain])
    mean = (adds[:, :MEMORY] * parts[:, None]).sum(axis=0) / world
    share = (adds[:, :MEMORY] / np.maximum(mean, 1e-9)).max(axis=1)
    large = adds[:, MEMORY] / room
    worth = np.flatnonzero((share >= WORTH_SPLITTING) | (large >= WORTH_SPLITTING) | (share.max() < WORTH_SPLITTING))
    order = np.argsort(-np.maximum(share, large)[worth], kind="stable")
    must = set(np.flatnonzero(large > 1).tolist())
    return sorted({*worth[order][:WORTH_TRYING].tolist(), *must})


def _pieces(costing: Costing, options: list[Option]) -> Pieces:
    return Pieces.of([costing.piece(*option) for option in options])


def _adds(costing: Costing, options: list[Option]) -> Floats:
    if not options:
        return np.zeros((0, 4))
    pieces = _pieces(costing, options)
    needs = np.array([_needs(costing, option) for option in options])
    load = costing.adds(options).sum(axis=1)
    sent = np.where(needs == POOLED, pieces.bags * pieces.dim * costing.ranks.sent_bytes, 0.0)
    features = np.array([costing.tables[option.table].features for option in options])
    asked = np.where(needs == COPIES, 0.0, pieces.count * ID + costing.ranks.global_batch * LENGTH * features)
    return np.stack([load, sent, asked, memory(pieces, costing.sparse_gradients)], axis=1)


def _lines(costing: Costing, adds: Floats) -> Lines:
    """Around what a rank has to send and to get where all ranks have as much."""
    _, sent, asked, _ = adds.sum(axis=0) / costing.ranks.world
    line = costing.exchange.line
    some = costing.ranks.global_batch * costing.ranks.sent_bytes * 128.0
    ids = line(IDS, asked) if not costing.dense_us else Line(0.0, 0.0)  # hidden behind the dense part
    return Lines(line(POOLED, sent), ids, line(SUMS, some), line(NODE_SUMS, some),
                 line(ACROSS, some / costing.ranks.per_node), line(COPIES, 2.0**24))  # fmt: skip


def _shared(costing: Costing, option: Option, lines: Lines) -> float:
    """What a way adds to the exchange of all, but for what the first such table adds."""
    table, ranks = costing.tables[option.table], costing.ranks
    pooled = table.dim * table.features * ranks.global_batch * ranks.sent_bytes
    needs = _needs(costing, option)
    if needs == SUMS:
        return lines.sums.per_byte * pooled
    if needs == NODE_SUMS:
        # Nodes exchange at the same time: a table adds its part where they have as many.
        return (lines.node_sums.per_byte * pooled + lines.across.per_byte * pooled / ranks.per_node) / ranks.nodes
    if needs == COPIES:
        return lines.copies.per_byte * table.rows * table.dim * OUTPUT
    return 0.0


def first_of(exchange: str, lines: Lines) -> float:
    """What the first table that needs an exchange adds to the step: collectives that were not there before."""
    fixed = {POOLED: lines.sent.fixed, SUMS: lines.sums.fixed, COPIES: lines.copies.fixed,
             NODE_SUMS: lines.node_sums.fixed + lines.across.fixed}  # fmt: skip
    return fixed[exchange]


# --- was sharding.state: A plan while it is searched for: which option each table has, where its parts lie, and what every rank then has.

OVER = 1.0
"""Microseconds that a byte too much costs: a plan that does not fit is worse than any that does."""

TIES, STEEP = 1e-2, 8
"""How much it counts to relieve one of several busy ranks, and how much more the busier ones count."""


@dataclass
class State:
    """Arrays that follow each move."""

    options: Options
    ranks: Ranks
    room: float
    """Bytes that a rank has for tables."""
    load: Floats
    """By option: microseconds that a piece adds, put right by what the models said of plans before."""
    choice: Longs
    """By table: its option; -1 while it has no place."""
    places: list[tuple[int, ...]]
    """By table: the ranks of its parts."""
    has: Floats
    """By rank: LOAD, SENT, ASKED, MEMORY."""
    calls: Longs
    """By rank and group: pieces there."""

    @classmethod
    def empty(cls, options: Options, ranks: Ranks, room: float) -> State:
        """Nothing placed."""
        tables = len(options.of_table)
        return cls(options, ranks, room, options.adds[:, LOAD].copy(), np.full(tables, -1), [()] * tables,
                   np.zeros((ranks.world, 4)), np.zeros((ranks.world, len(options.call)), np.int64))  # fmt: skip

    def copy(self) -> State:
        """One that can go its own way."""
        return State(self.options, self.ranks, self.room, self.load, self.choice.copy(), list(self.places),
                     self.has.copy(), self.calls.copy())  # fmt: skip

    def adds(self, option: int) -> Floats:
        """What a piece of an option adds to its rank, but for its call."""
        found = self.options.adds[option].copy()
        found[LOAD] = self.load[option]
        return np.asarray(found)

    def put(self, table: int, option: int, ranks: tuple[int, ...]) -> None:
        """Place a table that has no place."""
        group, there = self.options.group[option], list(ranks)
        self.has[there] += self.adds(option)
        self.has[there, LOAD] += self.options.call[group] * (self.calls[there, group] == 0)
        self.calls[there, group] += 1
        self.choice[table], self.places[table] = option, ranks

    def take(self, table: int) -> None:
        """Away from where it is."""
        option = int(self.choice[table])
        group, there = self.options.group[option], list(self.places[table])
        self.calls[there, group] -= 1
        self.has[there] -= self.adds(option)
        self.has[there, LOAD] -= self.options.call[group] * (self.calls[there, group] == 0)
        self.choice[table], self.places[table] = -1, ()

    def set_load(self, load: Floats) -> None:
        """Other loads of the same pieces."""
        for table, ranks in enumerate(self.places):
            self.has[list(ranks), LOAD] += load[self.choice[table]] - self.load[self.choice[table]]
        self.load = load

    def value(self) -> float:
        """Microseconds of the step, about; more than any step where something does not fit."""
        most = self.has.max(axis=0)
        return float(self.value_of(most[LOAD], most[SENT], most[ASKED])) + self.shared() + self.over()

    def pressed(self) -> float:
        """The same, and a little for all other ranks that are nearly as busy as the busiest."""
        load = self.has[:, LOAD]
        most = max(float(load.max()), 1e-9)
        return self.value() + TIES * most * float(((load / most) ** STEEP).sum() ** (1 / STEEP))

    def value_of(self, load: Floats, sent: Floats, asked: Floats) -> Floats:
        """Of what the busiest ranks have."""
        lines = self.options.lines
        return np.asarray(load + lines.sent.per_byte * sent + lines.asked.per_byte * asked)

    def shared(self) -> float:
        """What the chosen ways add to the exchange of all."""
        placed = self.choice[self.choice >= 0]
        needed = set(map(self.options.needs.__getitem__, placed.tolist()))
        first = sum(first_of(exchange, self.options.lines) for exchange in sorted(needed))  # sums depend on the order
        return float(self.options.shared[placed].sum() + first)

    def over(self) -> float:
        """Far more than a step takes, where a rank has more than it has room for."""
        return float(self.over_of(self.has).sum())

    def over_of(self, has: Floats) -> Floats:
        """The same of ranks that have so much."""
        return np.asarray(OVER * np.maximum(has[..., MEMORY] - self.room, 0.0))

    def movable(self, table: int) -> bool:
        """Whether its parts may lie on any rank."""
        return KINDS[self.options.options[self.choice[table]].way.kind].anywhere

    def spots(self, option: int) -> list[tuple[int, ...]]:
        """The groups of ranks that may hold an option's parts."""
        return KINDS[self.options.options[option].way.kind].where(self.ranks)

    def plan(self) -> Plan:
        """As a plan."""
        ways = [self.options.options[option].way for option in self.choice]
        return tuple(Placement(way.kind, tuple(ranks)) for way, ranks in zip(ways, self.places))
