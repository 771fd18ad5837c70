"""The search: from the heuristics, by local moves and other ways, to the plan that the models like best."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from foretrace.sharding.costing import Costing, Estimate
from foretrace.sharding.options import KINDS
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.search.capacity import check_room, no_room
from foretrace.sharding.search.heuristics import HEURISTICS, NoRoomError, at_random, below_ceilings, greedy, in_turn
from foretrace.sharding.search.local_search import best_spot, improve, improve_ways
from foretrace.sharding.search.state import LOAD, Options, State
from foretrace.sharding.shards import Floats, Longs, Pieces, memory, summed

Told = Callable[[str, float, float], None]
"""Told what is being done, the seconds so far, and of how many."""

KICKS = 12
"""How often the best plan is shaken and improved again, where there is time."""
SHAKEN = 0.08
"""Part of the tables that a shake moves."""
FEWEST = 5
"""Tables that it moves at least."""
OTHERWISE = 0.3
"""Part of those that it shards in another way."""
ROUNDS = 3
"""How often the models are asked, and the sums put right by what they say."""
CAREFUL = 0.7
"""Part of a correction that is made."""
CHOOSING = 0.1
"""Part of the time in which it is found out from which of the split plans to begin."""


@dataclass
class Found:
    """The best plan, and what others cost."""

    plan: Plan
    estimate: Estimate
    others: dict[str, Estimate] = field(default_factory=dict)
    """Of the heuristics."""
    plans: dict[str, Plan] = field(default_factory=dict)
    seconds: float = 0.0
    """That it took."""
    cut_short: bool = False
    """Whether the time was over before the search was."""


def search(costing: Costing, room: float, seconds: float, seed: int = 0, told: Told | None = None) -> Found:
    """The fastest plan that fits.

    Parameters
    ----------
    costing
        Tables, ranks, and what they cost.
    room
        Bytes that each rank has for tables.
    seconds
        Once tables are priced, the search ends after so many, with the best plan so far; most end by themselves before.
    seed
        The same one gives the same plan, unless time ran out.
    told
        Told how far it is.
    """
    begun = time.monotonic()

    def say(what: str) -> None:
        if told is not None:
            told(what, min(time.monotonic() - begun, seconds), seconds)

    say("pricing tables")
    check_room(costing, room)
    options = Options.of(costing, room)
    empty = State.empty(options, costing.ranks, room)
    say("heuristics")
    starts = _starts(costing, empty, room, seed)
    plans = {name: state.plan() for name, state in starts.items()}
    others = {name: costing.estimate(plan) for name, plan in plans.items()}
    best_name = min(others, key=lambda name: _judged(others[name], room))
    found = Found(plans[best_name], others[best_name], others, plans)
    moving = time.monotonic()
    best = min(starts.values(), key=lambda state: state.value()).copy()
    begin = [best, *_furthest(below_ceilings(empty), moving + CHOOSING * seconds)]
    climbs = [found, *(Found(split.plan(), costing.estimate(split.plan())) for split in begin[1:])]
    for number, (climb, state) in enumerate(zip(climbs, begin), 1):
        _climb(climb, state, costing, seed, moving + seconds * number / len(begin), say)
    shortest = min(climbs, key=lambda climb: _judged(climb.estimate, room))
    found.plan, found.estimate = shortest.plan, shortest.estimate
    found.seconds, found.cut_short = time.monotonic() - begun, any(climb.cut_short for climb in climbs)
    return found


def _starts(costing: Costing, empty: State, room: float, seed: int) -> dict[str, State]:
    """What each heuristic makes; those that find no room are left out."""
    makers: dict[str, Callable[[], State]] = {name: partial(greedy, name, costing, empty) for name in HEURISTICS}
    makers["in turn"] = partial(in_turn, empty)
    makers["at random"] = partial(at_random, empty, seed)
    made: dict[str, State] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except NoRoomError as full:
            last = full
    if not made:
        raise no_room(costing, room, costing.tables[last.table])
    return made


def _furthest(starts: list[State], until: float) -> list[State]:
    """Of some starts the one that moves and other ways take furthest; none of none."""
    for start in starts:
        improve(start)
    return sorted((improve_ways(start, until) for start in starts), key=lambda state: state.pressed())[:1]


def _climb(found: Found, state: State, costing: Costing, seed: int, until: float, say: Callable[[str], None]) -> None:
    """Improve a plan by its sums, ask the models, put the sums right, and again; then by the models alone.

    The best is kept in `found`.
    """
    begun = time.monotonic()
    for turn in range(ROUNDS):
        say(f"moving tables, round {turn + 1} of {ROUNDS}")
        state = _improved(state, begun + (until - begun) * (turn + 1) / ROUNDS, seed + turn, say)
        estimate = costing.estimate(state.plan())
        if _judged(estimate, state.room) < _judged(found.estimate, state.room):
            found.plan, found.estimate = state.plan(), estimate
        if time.monotonic() > until:
            break
        _put_right(state, estimate)
    found.plan, found.estimate = polish(costing, found.plan, state.room, until)
    found.cut_short = time.monotonic() > until


def _judged(estimate: Estimate, room: float) -> float:
    """Microseconds; far more where it does not fit."""
    return estimate.step + float(np.maximum(estimate.memory - room, 0.0).sum())


def _improved(state: State, until: float, seed: int, say: Callable[[str], None]) -> State:
    """Moves, other ways, and shakes, until nothing helps or the time is over."""
    improve(state)
    best = improve_ways(state, until)
    draw = np.random.default_rng(seed)
    for kick in range(KICKS):
        if time.monotonic() > until:
            break
        say(f"shaking the best plan, {kick + 1} of {KICKS}")
        shaken = best.copy()
        _shake(shaken, draw)
        improve(shaken)
        shaken = improve_ways(shaken, until)
        if shaken.pressed() < best.pressed():
            best = shaken
    return best


def _shake(state: State, draw: np.random.Generator) -> None:
    """Take some tables off, and put each where there is least; some of them in another way."""
    tables = len(state.places)
    some = draw.choice(tables, max(min(FEWEST, tables), round(SHAKEN * tables)), replace=False).tolist()
    options = {table: int(state.choice[table]) for table in some}
    for table in some:
        state.take(table)
        if draw.random() < OTHERWISE:
            options[table] = int(draw.choice(state.options.of_table[table]))
    for table in some:
        state.put(table, options[table], best_spot(state, options[table]))


def _put_right(state: State, estimate: Estimate) -> None:
    """Scale the loads of pieces by how far their ranks' sums are off."""
    off = (estimate.lookups / np.maximum(state.has[:, LOAD], 1e-9)) ** CAREFUL
    load = state.load.copy()
    for table, ranks in enumerate(state.places):
        load[state.choice[table]] *= float(off[list(ranks)].mean())
    state.set_load(load)


# --- was sharding.polish: The last step of a search: moves off the slowest rank, judged by the models themselves and not by sums.

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
