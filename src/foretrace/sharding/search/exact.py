"""The optimal plan of few tables: an integer program over all options and ranks, solved by HiGHS.

It minimises what the search minimises: the sums of `OptionCosts`, the busiest rank's lookups and communication, and
what all ranks share.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from foretrace.graph.tables import Floats
from foretrace.sharding.costing import Costing
from foretrace.sharding.options import SHARDING_TYPES
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.search.state import LOAD, MEMORY, OptionCosts, PlanState, TableOption

SECONDS = 5.0
"""Time limit of the integer program."""
RELATIVE_GAP = 1e-4
"""How near to the optimum the solution must be proven."""


def optimality_gap(costing: Costing, hbm_budget: float, plan: Plan) -> float | None:
    """How much longer a plan is than the optimal one, as a share; None if SciPy is missing or HiGHS takes too long."""
    if find_spec("scipy") is None:
        return None
    costs = OptionCosts.of(costing, hbm_budget, every=True)
    best = solve(costing, hbm_budget, costs)
    if best is None:
        return None
    found, optimum = (state_of(one, costing, hbm_budget, costs).value() for one in (plan, best))
    return found / optimum - 1


def state_of(plan: Plan, costing: Costing, hbm_budget: float, costs: OptionCosts) -> PlanState:
    """The state of a given plan."""
    state = PlanState.empty(costs, costing.ranks, hbm_budget)
    number = {option: place for place, option in enumerate(costs.options)}
    for table, placement in enumerate(plan):
        state.put(table, number[TableOption(table, placement.option)], placement.ranks)
    return state


def solve(costing: Costing, hbm_budget: float, costs: OptionCosts) -> Plan | None:
    """The optimal plan by the sums; None if HiGHS did not prove it in time."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    program = _Program(costing, hbm_budget, costs)
    solved = milp(
        program.cost,
        integrality=program.integral,
        bounds=Bounds(0, program.upper),
        constraints=LinearConstraint(np.array(program.rows), program.low, program.high),
        options={"time_limit": SECONDS, "mip_rel_gap": RELATIVE_GAP},
    )
    return program.plan(solved.x) if solved.status == 0 else None


class _Program:
    """Variables: shard of an option on a rank; option chosen; calls of a rank; communication used; largest totals."""

    def __init__(self, costing: Costing, hbm_budget: float, costs: OptionCosts) -> None:
        self.costs, self.ranks = costs, costing.ranks
        world, groups = self.ranks.world, len(costs.call_us)
        self.communication = sorted(set(costs.communication))
        count = len(costs.options)
        self.on = np.arange(count * world).reshape(count, world)
        self.chosen = self.on.size + np.arange(count)
        self.call = self.chosen[-1] + 1 + np.arange(world * groups).reshape(world, groups)
        self.first = self.call.max(initial=self.chosen[-1]) + 1 + np.arange(len(self.communication))
        self.largest = self.first[-1] + 1 + np.arange(MEMORY)
        self.size = int(self.largest[-1]) + 1
        self.integral = np.ones(self.size)
        self.integral[self.largest] = 0
        self.upper = np.where(self.integral > 0, 1.0, np.inf)
        # Bytes are counted in units that make them about as large as microseconds.
        self.unit = np.maximum(costs.added.max(axis=0), 1.0)
        self.cost = self._cost()
        self.rows: list[Floats] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self._constrain_placement()
        self._constrain_totals(hbm_budget)

    def _cost(self) -> Floats:
        times = self.costs.times
        cost = np.zeros(self.size)
        cost[self.largest] = np.array([1.0, times.sent.per_byte, times.received.per_byte]) * self.unit[:MEMORY]
        cost[self.chosen] = self.costs.shared
        cost[self.first] = [self.costs.first_us(communication) for communication in self.communication]
        return cost

    def _add(self, terms: list[tuple[Any, Any]], low: float, high: float) -> None:
        row = np.zeros(self.size)
        for where, factor in terms:
            row[where] += factor
        self.rows.append(row)
        self.low.append(low)
        self.high.append(high)

    def _constrain_placement(self) -> None:
        """One option per table, its shards on allowed ranks, and the calls and communication that they need."""
        for of_table in self.costs.of_table:
            self._add([(self.chosen[of_table], 1.0)], 1, 1)
        for place, (_, option) in enumerate(self.costs.options):
            self._add([(self.on[place], 1.0), (self.chosen[place], -float(option.shards))], 0, 0)
            of_type = SHARDING_TYPES[option.sharding_type]
            if not of_type.on_any_rank:
                for group in of_type.rank_groups(self.ranks):
                    for rank in group[1:]:
                        self._add([(self.on[place, rank], 1.0), (self.on[place, group[0]], -1.0)], 0, 0)
            needs = self.first[self.communication.index(self.costs.communication[place])]
            self._add([(needs, 1.0), (self.chosen[place], -1.0)], 0, np.inf)
            for rank in range(self.ranks.world):
                call = self.call[rank, self.costs.group[place]]
                self._add([(call, 1.0), (self.on[place, rank], -1.0)], 0, np.inf)

    def _constrain_totals(self, hbm_budget: float) -> None:
        added = self.costs.added / self.unit
        for rank in range(self.ranks.world):
            for column in range(MEMORY):
                terms = [(self.largest[column], 1.0), (self.on[:, rank], -added[:, column])]
                if column == LOAD:
                    terms.append((self.call[rank], -self.costs.call_us / self.unit[LOAD]))
                self._add(terms, 0, np.inf)
            self._add([(self.on[:, rank], added[:, MEMORY])], 0, hbm_budget / self.unit[MEMORY])

    def plan(self, solution: Floats) -> Plan:
        """The plan of a solution."""
        chosen = [max(of_table, key=lambda o: solution[self.chosen[o]]) for of_table in self.costs.of_table]
        return tuple(
            Placement(
                self.costs.options[o].option.sharding_type, tuple(np.flatnonzero(solution[self.on[o]] > 0.5).tolist())
            )
            for o in chosen
        )
