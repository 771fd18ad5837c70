"""The search for a plan: iterated local search from greedy heuristics, judged by the cost models.

Each start is improved by the sums of `OptionCosts`, perturbed and improved again. Its plan is then priced by
`Costing.estimate`, the sums are corrected by the result, and the search goes on. The last moves are judged by the cost
models themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from foretrace._progress import OnProgress, Progress
from foretrace.graph.tables import Floats, Longs
from foretrace.sharding.costing import Costing, Estimate
from foretrace.sharding.options import SHARDING_TYPES
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.search.capacity import check_capacity, no_rank_fits
from foretrace.sharding.search.heuristics import HEURISTICS, NoFitError, at_random, greedy, round_robin, split_heavy
from foretrace.sharding.search.local_search import improve_options, improve_placement
from foretrace.sharding.search.state import LOAD, OptionCosts, PlanState
from foretrace.sharding.shards import Shards, shard_bytes, sum_by

PERTURBATIONS = 12
"""How often the best plan is perturbed and improved again, if there is time."""
PERTURBED_SHARE = 0.08
"""Share of the tables that a perturbation moves."""
MIN_PERTURBED = 5
"""Tables that it moves at least."""
OPTION_CHANGES = 0.3
"""Share of those that get another option."""
ROUNDS = 3
"""How often the cost models price the plan, and the sums are corrected."""
CORRECTION = 0.7
"""Exponent of a correction: the share of it that is applied, on a logarithmic scale."""
CHOOSING_TIME = 0.1
"""Share of the time for choosing one of the plans with split tables as a start."""
MOVES_PRICED = 96
"""Moves, the best by the sums, that the cost models price at once."""
NOTHING = -1


@dataclass
class SearchResult:
    """The best plan, and the estimates of others."""

    plan: Plan
    estimate: Estimate
    heuristics: dict[str, Estimate] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    """Of the heuristics."""
    seconds: float = 0.0
    """Duration of the search."""
    cut_short: bool = False
    """Whether the time was over before the search was."""


def search(
    costing: Costing, hbm_budget: float, seconds: float, seed: int = 0, on_progress: OnProgress | None = None
) -> SearchResult:
    """The fastest plan found that fits the bytes that each rank has for tables.

    ``seconds`` is the time limit once tables are priced; most searches end before. The same seed gives the same plan,
    unless the time ran out.
    """
    begun = time.monotonic()

    def report(stage: str) -> None:
        if on_progress is not None:
            on_progress(Progress(stage, min(time.monotonic() - begun, seconds), seconds))

    report("pricing tables")
    check_capacity(costing, hbm_budget)
    empty = PlanState.empty(OptionCosts.of(costing, hbm_budget), costing.ranks, hbm_budget)
    report("heuristics")
    starts = _starts(costing, empty, seed)
    plans = {name: state.plan() for name, state in starts.items()}
    heuristics = {name: costing.estimate(plan) for name, plan in plans.items()}
    best_name = min(heuristics, key=lambda name: _judged(heuristics[name], hbm_budget))
    found = SearchResult(plans[best_name], heuristics[best_name], heuristics, plans)
    moving = time.monotonic()
    best = min(starts.values(), key=lambda state: state.value()).copy()
    split = _best_split(split_heavy(empty), moving + CHOOSING_TIME * seconds)
    results = [found, *(SearchResult(state.plan(), costing.estimate(state.plan())) for state in split)]
    for number, (result, state) in enumerate(zip(results, [best, *split]), 1):
        _improve(result, state, costing, seed, moving + seconds * number / len(results), report)
    shortest = min(results, key=lambda result: _judged(result.estimate, hbm_budget))
    found.plan, found.estimate = shortest.plan, shortest.estimate
    found.seconds, found.cut_short = time.monotonic() - begun, any(result.cut_short for result in results)
    return found


def _starts(costing: Costing, empty: PlanState, seed: int) -> dict[str, PlanState]:
    """The plan of each heuristic; heuristics whose tables do not fit are left out."""
    makers: dict[str, Callable[[], PlanState]] = {name: partial(greedy, name, costing, empty) for name in HEURISTICS}
    makers["in turn"] = partial(round_robin, empty)
    makers["at random"] = partial(at_random, empty, seed)
    made: dict[str, PlanState] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except NoFitError as full:
            last = full
    if not made:
        raise no_rank_fits(costing, empty.hbm_budget, costing.tables[last.table])
    return made


def _best_split(starts: list[PlanState], until: float) -> list[PlanState]:
    """The best start after local search, in a list; an empty one where there are no starts."""
    for start in starts:
        improve_placement(start)
    return sorted((improve_options(start, until) for start in starts), key=lambda state: state.score())[:1]


def _improve(
    result: SearchResult, state: PlanState, costing: Costing, seed: int, until: float, report: Callable[[str], None]
) -> None:
    """Improve a plan by its sums, price it, correct the sums, and repeat; then by the cost models alone."""
    begun = time.monotonic()
    for turn in range(ROUNDS):
        report(f"moving tables, round {turn + 1} of {ROUNDS}")
        state = _improved(state, begun + (until - begun) * (turn + 1) / ROUNDS, seed + turn, report)
        estimate = costing.estimate(state.plan())
        if _judged(estimate, state.hbm_budget) < _judged(result.estimate, state.hbm_budget):
            result.plan, result.estimate = state.plan(), estimate
        if time.monotonic() > until:
            break
        _correct(state, estimate)
    result.plan, result.estimate = polish(costing, result.plan, state.hbm_budget, until)
    result.cut_short = time.monotonic() > until


def _judged(estimate: Estimate, hbm_budget: float) -> float:
    """Microseconds of a plan by the cost models, with a large penalty where it does not fit."""
    return estimate.step + float(np.maximum(estimate.memory - hbm_budget, 0.0).sum())


def _improved(state: PlanState, until: float, seed: int, report: Callable[[str], None]) -> PlanState:
    """Local search with perturbations, until nothing helps or the time is over."""
    improve_placement(state)
    best = improve_options(state, until)
    generator = np.random.default_rng(seed)
    for number in range(PERTURBATIONS):
        if time.monotonic() > until:
            break
        report(f"perturbing the best plan, {number + 1} of {PERTURBATIONS}")
        perturbed = best.copy()
        _perturb(perturbed, generator)
        improve_placement(perturbed)
        perturbed = improve_options(perturbed, until)
        if perturbed.score() < best.score():
            best = perturbed
    return best


def _perturb(state: PlanState, generator: np.random.Generator) -> None:
    """Remove some tables, and place each on the least busy ranks; some of them by another option."""
    tables = len(state.places)
    count = max(min(MIN_PERTURBED, tables), round(PERTURBED_SHARE * tables))
    some = generator.choice(tables, count, replace=False).tolist()
    options = {table: int(state.choice[table]) for table in some}
    for table in some:
        state.remove(table)
        if generator.random() < OPTION_CHANGES:
            options[table] = int(generator.choice(state.costs.of_table[table]))
    for table in some:
        state.put(table, options[table], state.best_ranks(options[table]))


def _correct(state: PlanState, estimate: Estimate) -> None:
    """Scale the loads of shards by the ratio of their ranks' estimates to the sums."""
    ratio = (estimate.lookups / np.maximum(state.totals[:, LOAD], 1e-9)) ** CORRECTION
    load = state.load.copy()
    for table, ranks in enumerate(state.places):
        load[state.choice[table]] *= float(ratio[list(ranks)].mean())
    state.set_load(load)


@dataclass
class _PlacedShards:
    """All shards of a plan, a row each."""

    shards: Shards
    marginal: Floats
    """About what each adds to its rank, forward and backward."""
    rank: Longs
    table: Longs
    movable: Longs
    """Rows of those that may lie on any rank."""
    nbytes: Floats

    @classmethod
    def of(cls, costing: Costing, plan: Plan) -> _PlacedShards:
        shards, rank = costing.shards_of(plan)
        table = np.array([table for table, p in enumerate(plan) for _ in p.ranks], np.int64)
        movable = np.flatnonzero([SHARDING_TYPES[plan[number].kind].on_any_rank for number in table.tolist()])
        nbytes = shard_bytes(shards, costing.sparse_gradients)
        return cls(shards, costing.marginal_of(plan), rank, table, movable, nbytes)


def polish(costing: Costing, plan: Plan, hbm_budget: float, until: float) -> tuple[Plan, Estimate]:
    """Move and swap shards of the slowest rank while the cost models say that the step gets shorter."""
    estimate = costing.estimate(plan)
    while time.monotonic() < until:
        placed = _PlacedShards.of(costing, plan)
        moves = _promising_moves(placed, plan, estimate.lookups, hbm_budget)
        if not len(moves):
            break
        order = np.argsort(_priced_moves(costing, placed, moves, int(estimate.lookups.argmax())), kind="stable")
        changed = _after_move(plan, placed, *moves[order[0]].tolist())
        found = costing.estimate(changed)
        if found.step >= estimate.step:
            break
        plan, estimate = changed, found
    return plan, estimate


def _promising_moves(placed: _PlacedShards, plan: Plan, load: Floats, hbm_budget: float) -> Longs:
    """Moves off the slowest rank, a row each: the shard, its target, and the shard that comes back, if any."""
    source, world = int(load.argmax()), len(load)
    added, totals = placed.marginal.sum(axis=1), sum_by(placed.rank, placed.nbytes, world)
    mine = placed.movable[placed.rank[placed.movable] == source]
    if not len(mine):
        return np.zeros((0, 3), np.int64)
    others = placed.movable[placed.rank[placed.movable] != source]
    # A column for each other rank, with nothing back, and for each shard there.
    target = np.concatenate([np.delete(np.arange(world), source), placed.rank[others]])
    back = np.concatenate([np.full(world - 1, NOTHING), others])
    returned, bytes_back = (np.where(back >= 0, column[back], 0.0) for column in (added, placed.nbytes))
    less = added[mine][:, None] - returned[None, :]
    larger = placed.nbytes[mine][:, None] - bytes_back[None, :]
    then = np.maximum(load[source] - less, load[target][None, :] + less)
    fits = (totals[target][None, :] + larger <= hbm_budget) & (totals[source] - larger <= hbm_budget)
    tables = placed.table[mine].tolist()
    split = np.array([[r in plan[t].ranks for r in range(world)] for t in tables]).reshape(-1, world)
    coming = np.array([b >= 0 and source in plan[placed.table[b]].ranks for b in back.tolist()], np.bool_)
    allowed = fits & ~split[:, target] & ~coming[None, :] & (then < load[source])
    row, column = np.nonzero(allowed)
    best = np.argsort(then[row, column], kind="stable")[:MOVES_PRICED]
    return np.stack([mine[row[best]], target[column[best]], back[column[best]]], axis=1)


def _priced_moves(costing: Costing, placed: _PlacedShards, moves: Longs, source: int) -> Floats:
    """Lookup time of the slower one of both ranks after each move, by the cost models."""
    held: list[Longs] = []
    for shard, target, back in moves.tolist():
        here, there = (np.flatnonzero(placed.rank == rank) for rank in (source, target))
        held.append(np.append(here[here != shard], [back] if back >= 0 else []).astype(np.int64))
        held.append(np.append(there[there != back], shard))
    rows = np.concatenate(held)
    which = np.repeat(np.arange(len(held)), [len(some) for some in held])
    priced = costing.kernels.of_ranks(placed.shards.select(rows), placed.marginal[rows], which, len(held))
    return np.asarray(priced.typical.sum(axis=1).reshape(-1, 2).max(axis=1))


def _after_move(plan: Plan, placed: _PlacedShards, shard: int, target: int, back: int) -> Plan:
    """The plan after one move."""
    placements = list(plan)
    source = int(placed.rank[shard])
    for moving, before, after in ((shard, source, target), (back, target, source)):
        if moving >= 0:
            kind, ranks = placements[placed.table[moving]]
            placements[placed.table[moving]] = Placement(kind, tuple(after if r == before else r for r in ranks))
    return tuple(placements)
