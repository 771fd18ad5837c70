"""Local search over ways: a table on a busiest rank is sharded in another way, while that makes the step shorter."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from foretrace.sharding.kinds import KINDS
from foretrace.sharding.moves import improve
from foretrace.sharding.options import ASKED, LOAD, MEMORY, SENT
from foretrace.sharding.state import State

FOLLOWED = 4
"""Changes, the best at first sight, after each of which parts are moved until nothing helps."""
LEAST = 1e-6
"""Share of the step that a change must save."""
AFTER = 60
"""Moves after each of those."""
SEEN = 24
"""Tables of a busiest rank, the heaviest first, whose other ways are looked at."""


def improve_ways(state: State, until: float) -> State:
    """The state with other ways for some of its tables, as far as that helps before the time is over."""
    while time.monotonic() < until:
        value = state.pressed()
        tried = sorted(_changes(state), key=lambda change: change[0])[:FOLLOWED]
        better = (followed for *_, changed in tried if (followed := _followed(changed)).pressed() < value * (1 - LEAST))
        found = next(better, None)
        if found is None:
            return state
        state = found
    return state


def _followed(state: State) -> State:
    improve(state, AFTER)
    return state


def _changes(state: State) -> Iterator[tuple[float, int, int, State]]:
    """Each other way of a table on a busiest rank, in the places that look best; with what the step then takes."""
    for table in _on_busiest(state):
        for option in state.options.of_table[table]:
            if option != state.choice[table]:
                changed = state.copy()
                changed.take(table)
                changed.put(table, option, best_spot(changed, option))
                yield changed.pressed(), table, option, changed


def _on_busiest(state: State) -> list[int]:
    """Tables with other ways on the ranks that have most to look up, to send or to hold."""
    busiest = {int(state.has[:, column].argmax()) for column in (LOAD, SENT, ASKED, MEMORY)}
    there = [
        table
        for table, ranks in enumerate(state.places)
        if len(state.options.of_table[table]) > 1 and not busiest.isdisjoint(ranks)
    ]
    return sorted(there, key=lambda table: -float(state.load[state.options.of_table[table][0]]))[:SEEN]


def best_spot(state: State, option: int) -> tuple[int, ...]:
    """Where an option's parts would leave the ranks with least."""
    adds = state.adds(option)
    then = state.has + adds
    busy = state.value_of(then[:, LOAD], then[:, SENT], then[:, ASKED]) + state.over_of(then)
    way = state.options.options[option].way
    if KINDS[way.kind].anywhere:
        return tuple(sorted(np.argsort(busy, kind="stable")[: way.parts].tolist()))
    return min(state.spots(option), key=lambda spot: float(busy[list(spot)].max()))
