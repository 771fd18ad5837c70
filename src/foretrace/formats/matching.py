"""Which row of a profile is which call of a structure, where nothing but names and order can tell.

The structure may be a nested execution trace or a flat list of calls seen below autograd; the profile has everything:
composite calls around those of the structure and internals below them. Both are seen as nearly equal sequences of
names, one for each thread. They are walked side by side; where they differ, both jump to the nearest place from which
they agree again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Names, OpTable
from foretrace.graph.tables import Ints, distinct

CONTEXTS = (4, 2, 1)
"""How many names in a row must agree for two places to be the same; fewer between two places found with more."""

SAME_WORK = {"aten::_reshape_alias": "aten::view", "aten::new_zeros": "aten::zeros"}
"""What PyTorch calls in one place by one name and in another, or when watched, by another."""

CASTS = ("aten::to", "aten::_to_copy")

_END = -2


def match(structure: OpTable, profile: OpTable) -> Ints:
    """For each op of the structure, its row in the profile; -1 where it has none.

    Rows of both are in the order they started. What lies below a matched call that has nothing inside it in the
    structure is its internals, and never matched.

    >>> from foretrace.graph import Op
    >>> seen = OpTable.of([Op("aten::t"), Op("aten::addmm"), Op("aten::empty")])
    >>> timed = OpTable.of([
    ...     Op("aten::linear"), Op("aten::t", parent=0), Op("aten::addmm", parent=0),
    ...     Op("aten::empty", parent=2), Op("aten::empty")])
    >>> match(seen, timed).tolist()
    [1, 2, 4]
    """
    known = Names()
    seen = _codes(structure, [known.code(_same_work(name)) for name in structure.names.items])
    names = dict(zip(known.items, range(len(known))))
    code = _codes(profile, [names.get(_same_work(name), -1) for name in profile.names.items])
    simple = np.ones(len(known) + 1, bool)  # the last one is that of names the structure does not have
    simple[seen[structure.parent[structure.parent >= 0]]] = simple[-1] = False
    around = _casting(profile) & simple[code]
    rows = np.flatnonzero(~_internal(profile, simple[code] & ~around) & ~around & (code >= 0))
    found = np.full(len(structure), -1, np.int32)
    for mine, theirs in _paired_threads(structure.thread, seen, profile.thread, code, rows):
        pairs = aligned(seen[mine].tolist(), code[theirs].tolist())
        if pairs:
            i, j = np.array(pairs).T
            found[mine[i]] = theirs[j]
    return found


def _same_work(name: str) -> str:
    """One name for calls that do the same: being watched makes PyTorch prefer a copy to a change in place.

    >>> [_same_work(n) for n in ("aten::add_", "aten::_reshape_alias", "aten::__or__", "ProfilerStep#3")]
    ['aten::add', 'aten::view', 'aten::__or__', 'ProfilerStep#']
    """
    if name.startswith("ProfilerStep#"):
        return "ProfilerStep#"
    name = SAME_WORK.get(name, name)
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _codes(table: OpTable, code_of_name: list[int]) -> Ints:
    return np.array(code_of_name, np.int32)[table.name] if len(table) else np.zeros(0, np.int32)


def _casting(profile: OpTable) -> NDArray[np.bool_]:
    """Whether each row is autocast's: a call that casts what it was given and then calls the same by the same name."""
    inside = np.flatnonzero(profile.parent >= 0)
    outer = profile.parent[inside]
    again = profile.name[inside] == profile.name[outer]
    casts = profile.names.matching(lambda name: name in CASTS)[profile.name[inside]]
    casting = np.zeros(len(profile), bool)
    casting[outer[again]] = True
    casting[outer[~again & ~casts]] = False
    return casting


def _internal(profile: OpTable, simple: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each row of the profile is below a call that the structure knows as one without anything inside."""
    hides = simple.tolist()
    internal: list[bool] = []
    for parent in profile.parent.tolist():
        internal.append(parent >= 0 and (hides[parent] or internal[parent]))
    return np.array(internal, bool)


def _paired_threads(
    thread: Ints, seen: Ints, profile_thread: Ints, code: Ints, rows: NDArray[np.intp]
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Rows of each thread of the structure with rows of the profile's thread that calls the same things."""
    threads, sizes = np.unique(thread, return_counts=True)
    if len(threads) <= 1:
        return [(np.arange(len(seen)), rows)]
    kinds = int(seen.max()) + 1
    theirs = {int(t): rows[profile_thread[rows] == t] for t in distinct(profile_thread[rows])}
    left = {t: np.bincount(code[mine], minlength=kinds) for t, mine in theirs.items()}
    pairs = []
    for larger_first in threads[np.argsort(-sizes)]:
        if not left:
            break
        mine = np.flatnonzero(thread == larger_first)
        counts = np.bincount(seen[mine], minlength=kinds)
        shared = {t: int(np.minimum(called, counts).sum()) for t, called in left.items()}
        best = max(shared, key=shared.__getitem__)
        del left[best]
        pairs.append((mine, theirs[best]))
    return pairs


def aligned(a: Sequence[int], b: Sequence[int], contexts: Sequence[int] = CONTEXTS) -> list[tuple[int, int]]:
    """Positions at which two sequences are the same, in order.

    >>> aligned([1, 2, 3, 4, 5], [9, 1, 2, 4, 5])
    [(0, 1), (1, 2), (3, 3), (4, 4)]
    """
    length, *shorter = contexts
    a_end, b_end = len(a), len(b)
    a, b = [*a, *[_END] * length], [*b, *[_END] * length]
    places: dict[tuple[int, ...], list[int]] = {}
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < a_end and j < b_end:
        if a[i] == b[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
            continue
        places = places or _places(b, length)
        skip_a, skip_b = _nearest_agreement(a, i, places, j, length)
        if shorter and skip_a and skip_b:
            pairs += [(i + x, j + y) for x, y in aligned(a[i : i + skip_a], b[j : j + skip_b], shorter)]
        i, j = i + skip_a, j + skip_b
    return pairs


def _places(names: Sequence[int], length: int) -> dict[tuple[int, ...], list[int]]:
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at in range(len(names) - length + 1):
        places[tuple(names[at : at + length])].append(at)
    return places


def _nearest_agreement(
    a: Sequence[int], i: int, places: dict[tuple[int, ...], list[int]], j: int, length: int
) -> tuple[int, int]:
    """How far to go in both for the next names to agree, going as little as can be; at worst to both ends."""
    best = (len(a) - length - i, places[(_END,) * length][-1] - j)
    for skip in range(len(a) - length - i):
        if skip >= sum(best):
            break
        there = places.get(tuple(a[i + skip : i + skip + length]), ())
        at = bisect_left(there, j)
        if at < len(there) and skip + there[at] - j < sum(best):
            best = (skip, there[at] - j)
    return best
