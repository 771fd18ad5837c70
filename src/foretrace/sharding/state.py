"""A plan while it is searched for: which option each table has, where its parts lie, and what every rank then has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.sharding.hits import Floats
from foretrace.sharding.kinds import KINDS
from foretrace.sharding.options import ASKED, LOAD, MEMORY, SENT, Options, first_of
from foretrace.sharding.pieces import Longs
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.ranks import Ranks

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
