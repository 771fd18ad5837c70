"""Starts for tables that are heavy for one rank: all of them are split at once.

Other moves change one table at a time. Where several tables hold up a rank each, splitting one leaves the step as long
as the next one takes, and a search by such moves alone ends before it has begun. So what one part may take is guessed,
a few times; each table that takes longer is sharded in the cheapest way none of whose parts does.
"""

from __future__ import annotations

import numpy as np

from foretrace.sharding.hits import Floats
from foretrace.sharding.options import ASKED, LOAD, SENT
from foretrace.sharding.splits import best_spot
from foretrace.sharding.state import State

GUESSES = 6
"""From what a heavy table takes at least to what the heaviest does."""
HEAVY = 0.25
"""Part of the mean rank's time that a heavy table takes: fewer of them than four fill a rank, and leave gaps."""
SEVERAL = 2
"""Of them there must be; one alone is split by other moves."""


def below_ceilings(empty: State) -> list[State]:
    """Such starts, one for each guess; none where tables are light.

    Parameters
    ----------
    empty
        A plan with no table placed yet.
    """
    options, world = empty.options, empty.ranks.world
    parts = np.array([option.way.parts for option in options.options])
    takes = empty.value_of(*options.adds[:, (LOAD, SENT, ASKED)].T)
    plain = np.array([of_table[0] for of_table in options.of_table])
    heavy = HEAVY * float((takes * parts)[plain].sum()) / world
    if world < 2 or (takes[plain] > heavy).sum() < SEVERAL:
        return []
    burden = takes * parts / world + options.shared
    return [
        _placed(empty, [_cheapest(of_table, takes, burden, ceiling) for of_table in options.of_table], takes)
        for ceiling in np.geomspace(heavy, takes[plain].max(), GUESSES)
    ]


def _cheapest(of_table: list[int], takes: Floats, burden: Floats, ceiling: float) -> int:
    """A table's first option where that is light enough; else the one that adds least to all, of those that are."""
    if takes[of_table[0]] <= ceiling:
        return of_table[0]
    light = [option for option in of_table if takes[option] <= ceiling]
    return min(light, key=lambda option: float(burden[option])) if light else min(of_table, key=takes.__getitem__)


def _placed(empty: State, choice: list[int], takes: Floats) -> State:
    """Each table by its option, the longest parts first, where there is least."""
    state = empty.copy()
    for table in sorted(range(len(choice)), key=lambda table: -float(takes[choice[table]])):
        state.put(table, choice[table], best_spot(state, choice[table]))
    return state
