"""Which collectives of several traces are the same, where these do not show equally many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrace.graph.tables import Floats, Longs

Ended = tuple[float, str]
"""When a rank ended a collective, in microseconds, and its kind."""


def ended_together(queues: Sequence[Sequence[Ended]]) -> list[Longs]:
    """For each rank the places, in its queue, of the collectives that all of them show.

    A trace begins later than others, ends earlier, or has lost a record in between; a job that went on after that did
    not hang, whatever its traces show. The ranks of a collective end it together, so that those are one which are of a
    kind and whose ends are closest to each other, seen from either side.

    Parameters
    ----------
    queues
        Of each rank, in the order of their ends. One that nobody timed is never the same as another.

    >>> whole = [(10.0, "all_reduce"), (20.0, "all_gather"), (30.0, "all_reduce")]
    >>> [places.tolist() for places in ended_together([whole, [(10.5, "all_reduce"), (30.5, "all_reduce")]])]
    [[0, 2], [0, 1]]
    """
    every_end = [np.array([end for end, _ in queue], np.float64) for queue in queues]
    timed = [np.flatnonzero(np.isfinite(ends)) for ends in every_end]
    ends = [some[places] for some, places in zip(every_end, timed)]
    kinds = [np.array([kind for _, kind in queue], object)[places] for queue, places in zip(queues, timed)]
    fewest = int(np.argmin([len(some) for some in ends]))
    shared, partners = np.ones(len(ends[fewest]), bool), []
    for end, kind in zip(ends, kinds):
        there, back = _closest(ends[fewest], end), _closest(end, ends[fewest])
        shared &= (back[there] == np.arange(len(there))) & (kind[there] == kinds[fewest])
        partners.append(there)
    return [places[there[shared]] for places, there in zip(timed, partners)]


def _closest(some: Floats, others: Floats) -> Longs:
    """For each of some times the place of the closest among others, which rise.

    >>> _closest(np.array([1.0, 8.0]), np.array([0.0, 2.5, 9.0])).tolist()
    [0, 2]
    """
    if len(others) < 2:
        return np.zeros(len(some), np.int64)
    after = np.clip(np.searchsorted(others, some), 1, len(others) - 1)
    return np.where(some - others[after - 1] <= others[after] - some, after - 1, after)
