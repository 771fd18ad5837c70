"""The best plan there is, for few tables: an integer program over all ways and ranks, solved by HiGHS.

It minimises what the search does: the sums of `Options`, the busiest rank's lookups and sending, and what all share.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from foretrace.sharding.costing import Costing
from foretrace.sharding.options import KINDS
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.search.state import LOAD, MEMORY, Option, Options, State, first_of
from foretrace.sharding.shards import Floats

TABLES, RANKS = 12, 4
"""More than so many take HiGHS long."""
SECONDS = 5.0
CLOSE = 1e-4
"""So near to the optimum it must be proven."""


def gap(costing: Costing, room: float, plan: Plan) -> float | None:
    """By how much a plan is longer than the best, as a share; None where that is not known."""
    ranks = costing.ranks.world
    if len(costing.tables) > TABLES or not 1 < ranks <= RANKS or find_spec("scipy") is None:
        return None
    options = Options.of(costing, room, every=True)
    best = solve(costing, room, options)
    if best is None:
        return None
    return state_of(plan, costing, room, options).value() / state_of(best, costing, room, options).value() - 1


def state_of(plan: Plan, costing: Costing, room: float, options: Options) -> State:
    """A plan's sums."""
    state = State.empty(options, costing.ranks, room)
    number = {option: place for place, option in enumerate(options.options)}
    for table, placement in enumerate(plan):
        state.put(table, number[Option(table, placement.way)], placement.ranks)
    return state


def solve(costing: Costing, room: float, options: Options) -> Plan | None:
    """The best plan by the sums; None where HiGHS did not prove it in time."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    program = _Program(costing, room, options)
    solved = milp(
        program.cost,
        integrality=program.whole,
        bounds=Bounds(0, program.most),
        constraints=LinearConstraint(np.array(program.rows), program.low, program.high),
        options={"time_limit": SECONDS, "mip_rel_gap": CLOSE},
    )
    return program.plan(solved.x) if solved.status == 0 else None


class _Program:
    """Variables: is a part of an option on a rank; is an option chosen; what calls there are; what the busiest has."""

    def __init__(self, costing: Costing, room: float, options: Options) -> None:
        self.options, self.ranks = options, costing.ranks
        world, groups = self.ranks.world, len(options.call)
        self.needed = sorted(set(options.needs))
        count = len(options.options)
        self.on = np.arange(count * world).reshape(count, world)
        self.chosen = self.on.size + np.arange(count)
        self.call = self.chosen[-1] + 1 + np.arange(world * groups).reshape(world, groups)
        self.first = self.call.max(initial=self.chosen[-1]) + 1 + np.arange(len(self.needed))
        self.busiest = self.first[-1] + 1 + np.arange(MEMORY)
        self.size = int(self.busiest[-1]) + 1
        self.whole = np.ones(self.size)
        self.whole[self.busiest] = 0
        self.most = np.where(self.whole > 0, 1.0, np.inf)
        # Bytes are counted in units that make them about as large as microseconds.
        self.unit = np.maximum(options.adds.max(axis=0), 1.0)
        self.cost = self._cost()
        self.rows: list[Floats] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self._place()
        self._load(room)

    def _cost(self) -> Floats:
        lines = self.options.lines
        cost = np.zeros(self.size)
        cost[self.busiest] = np.array([1.0, lines.sent.per_byte, lines.asked.per_byte]) * self.unit[:MEMORY]
        cost[self.chosen] = self.options.shared
        cost[self.first] = [first_of(exchange, lines) for exchange in self.needed]
        return cost

    def _add(self, terms: list[tuple[Any, Any]], low: float, high: float) -> None:
        row = np.zeros(self.size)
        for where, factor in terms:
            row[where] += factor
        self.rows.append(row)
        self.low.append(low)
        self.high.append(high)

    def _place(self) -> None:
        """Each table has one way; its parts lie where that way lets them; calls and exchanges that are needed exist."""
        for of_table in self.options.of_table:
            self._add([(self.chosen[of_table], 1.0)], 1, 1)
        for place, (_, way) in enumerate(self.options.options):
            self._add([(self.on[place], 1.0), (self.chosen[place], -float(way.parts))], 0, 0)
            if not KINDS[way.kind].anywhere:
                for spot in KINDS[way.kind].where(self.ranks):
                    for rank in spot[1:]:
                        self._add([(self.on[place, rank], 1.0), (self.on[place, spot[0]], -1.0)], 0, 0)
            needs = self.first[self.needed.index(self.options.needs[place])]
            self._add([(needs, 1.0), (self.chosen[place], -1.0)], 0, np.inf)
            for rank in range(self.ranks.world):
                call = self.call[rank, self.options.group[place]]
                self._add([(call, 1.0), (self.on[place, rank], -1.0)], 0, np.inf)

    def _load(self, room: float) -> None:
        adds = self.options.adds / self.unit
        for rank in range(self.ranks.world):
            for column in range(MEMORY):
                terms = [(self.busiest[column], 1.0), (self.on[:, rank], -adds[:, column])]
                if column == LOAD:
                    terms.append((self.call[rank], -self.options.call / self.unit[LOAD]))
                self._add(terms, 0, np.inf)
            self._add([(self.on[:, rank], adds[:, MEMORY])], 0, room / self.unit[MEMORY])

    def plan(self, solution: Floats) -> Plan:
        """What the variables say."""
        chosen = [max(of_table, key=lambda o: solution[self.chosen[o]]) for of_table in self.options.of_table]
        return tuple(
            Placement(self.options.options[o].way.kind, tuple(np.flatnonzero(solution[self.on[o]] > 0.5).tolist()))
            for o in chosen
        )
