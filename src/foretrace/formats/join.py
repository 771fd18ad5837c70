"""Joining an execution trace and a profiler trace of one rank: arguments from one, times from the other.

Ops are matched by record-function ids if both were taken at once, otherwise by name and order. The structure (an
execution trace, or the flat list of calls that a recording saw below autograd) and the profile are nearly equal
sequences of names, one per thread; the profile has composite calls and internals besides. Both are walked in parallel,
and where they differ they jump to the nearest place from which they agree again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.execution_trace.read import NO_TIMES
from foretrace.formats.kineto.read import NO_SHAPES
from foretrace.graph import Collective, ForetraceError, Graph, Names, Op, OpTable, Storage
from foretrace.graph.tables import Ints, StorageTable, distinct, nested_in

SAME_STEP = 0.5
"""Share of the structure's ops that must be found in the profile, for both to be of the same step."""
SAME_RUN = 0.9
"""Share of the record-function ids found on both sides that must have the same name, for ids to be used."""
CONTEXTS = (4, 2, 1)
"""How many names in a row must agree for two places to be the same; fewer between two places found with more."""
RUN = 32
"""Names that are compared at once: two sequences are equal for long, and each comparison takes as long as three."""
SAME_WORK = {"aten::_reshape_alias": "aten::view", "aten::new_zeros": "aten::zeros"}
"""Calls that PyTorch makes under different names in different places, or when it is observed."""
CASTS = ("aten::to", "aten::_to_copy")
_END = -2


def join_traces(structure: Graph, profile: Graph) -> Graph:
    """The rows and times of a profile, with the arguments, storages and collective sizes of a structure.

    Without common record-function ids, each step of the profile is matched with the structure anew.

    >>> from foretrace.graph import Tensor
    >>> seen = Graph(OpTable.of([Op("aten::relu", (Tensor((4,), "float32", id=3),))]))
    >>> timed = Graph(OpTable.of([Op("aten::relu", start_us=1.0, end_us=2.0)]))
    >>> op = join_traces(seen, timed).ops[0]
    >>> op.end_us, op.tensors[0].id
    (2.0, 3)
    """
    found = match_steps(structure.ops, profile)
    best = found[int(np.argmax([(rows >= 0).sum() for rows in found]))]
    share = float((best >= 0).mean()) if len(best) else 1.0
    if share < SAME_STEP:
        raise ForetraceError(
            f"{structure.source} and {profile.source} are not of one job: "
            f"only {100 * share:.0f} % of the execution trace's ops are in the profiler trace",
            "Give the traces of one job only.",
        )
    notes = [note for note in (*profile.notes, *structure.notes) if note not in (NO_SHAPES, NO_TIMES)]
    return replace(
        profile,
        ops=_with_arguments(structure.ops, profile.ops, found),
        collectives=_collectives(structure, profile, found),
        storages=_storages(structure.storages, best),
        groups=structure.groups | {name: ranks for name, ranks in profile.groups.items() if ranks},
        world=max(structure.world, profile.world),
        notes=[*notes, f"{100 * share:.1f} % of the execution trace's ops found in the profiler trace"],
    )


def match_ops(structure: OpTable, profile: OpTable) -> Ints:
    """For each op of the structure, its row in the profile by name and order; -1 for none.

    Rows of both are in the order they started. Rows below a matched call that has no children in the structure are its
    internals, and never matched.

    >>> seen = OpTable.of([Op("aten::t"), Op("aten::addmm"), Op("aten::empty")])
    >>> timed = OpTable.of([
    ...     Op("aten::linear"), Op("aten::t", parent=0), Op("aten::addmm", parent=0),
    ...     Op("aten::empty", parent=2), Op("aten::empty")])
    >>> match_ops(seen, timed).tolist()
    [1, 2, 4]
    """
    known = Names()
    seen = _codes(structure, [known.code(_canonical(name)) for name in structure.names.items])
    names = dict(zip(known.items, range(len(known))))
    code = _codes(profile, [names.get(_canonical(name), -1) for name in profile.names.items])
    leaf = np.ones(len(known) + 1, bool)  # the last one is for names that the structure does not have
    leaf[seen[structure.parent[structure.parent >= 0]]] = leaf[-1] = False
    around = _casting(profile) & leaf[code]
    internal = nested_in(leaf[code] & ~around, profile.parent)  # below a call that has no children in the structure
    rows = np.flatnonzero(~internal & ~around & (code >= 0))
    found = np.full(len(structure), -1, np.int32)
    for mine, theirs in _paired_threads(structure.thread, seen, profile.thread, code, rows):
        pairs = align_sequences(seen[mine].tolist(), code[theirs].tolist())
        i, j = np.fromiter(chain.from_iterable(pairs), np.intp, 2 * len(pairs)).reshape(-1, 2).T
        found[mine[i]] = theirs[j]
    return found


def align_sequences(a: Sequence[int], b: Sequence[int], contexts: Sequence[int] = CONTEXTS) -> list[tuple[int, int]]:
    """Positions at which two sequences are the same, in order.

    >>> align_sequences([1, 2, 3, 4, 5], [9, 1, 2, 4, 5])
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
            run = RUN if i + RUN <= a_end and j + RUN <= b_end and a[i : i + RUN] == b[j : j + RUN] else 1
            pairs += zip(range(i, i + run), range(j, j + run))
            i, j = i + run, j + run
            continue
        places = places or _places(b, length)
        skip_a, skip_b = _nearest_agreement(a, i, places, j, length)
        if shorter and skip_a and skip_b:
            pairs += [(i + x, j + y) for x, y in align_sequences(a[i : i + skip_a], b[j : j + skip_b], shorter)]
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
    """The smallest skips in both sequences after which the next names agree; at worst to both ends."""
    best = (len(a) - length - i, places[(_END,) * length][-1] - j)
    for skip in range(len(a) - length - i):
        if skip >= sum(best):
            break
        there = places.get(tuple(a[i + skip : i + skip + length]), ())
        at = bisect_left(there, j)
        if at < len(there) and skip + there[at] - j < sum(best):
            best = (skip, there[at] - j)
    return best


def match_steps(structure: OpTable, profile: Graph) -> list[Ints]:
    """For each op of the structure, its row in the profile or -1; once for each step that repeats the structure."""
    by_id = _match_by_record_id(structure, profile.ops)
    if by_id is not None:
        return [by_id]
    is_step = structure.names.matching(lambda name: name.startswith("ProfilerStep#"))
    if len(profile.steps) <= 1 or (len(structure) and is_step[structure.name].sum() > 1):
        return [match_ops(structure, profile.ops)]
    found = []
    for start, end in pairwise([*(step.start for step in profile.steps), np.inf]):
        rows = np.flatnonzero((profile.ops.start >= start) & (profile.ops.start < end))
        matched = match_ops(structure, _selected(profile.ops, rows))
        found.append(np.where(matched >= 0, rows[matched], -1).astype(np.int32) if len(rows) else matched)
    return found


def _match_by_record_id(structure: OpTable, profile: OpTable) -> Ints | None:
    """Rows with the same record-function id; None if one side has none, or they are of different runs."""
    if structure.record is None or profile.record is None or not (profile.record >= 0).any():
        return None
    order = np.argsort(profile.record, kind="stable")
    at = np.searchsorted(profile.record[order], structure.record)
    rows = order[np.minimum(at, len(order) - 1)]
    found = (structure.record > 0) & (profile.record[rows] == structure.record)
    code_of = {name: code for code, name in enumerate(profile.names.items)}
    codes = np.array([code_of.get(name, -1) for name in structure.names.items], np.int32)
    same = found & (codes[structure.name] == profile.name[rows])
    if same.sum() < SAME_RUN * max(1, found.sum()):
        return None
    return np.where(same, rows, -1).astype(np.int32)


def _selected(ops: OpTable, rows: NDArray[np.intp]) -> OpTable:
    """Some rows of a table as a table of their own, without parents outside it."""
    part = ops.rows(rows)
    new_row = np.full(len(ops) + 1, -1, np.int32)
    new_row[rows] = np.arange(len(rows))
    part.parent = new_row[part.parent]
    return part


def _canonical(name: str) -> str:
    """One name for calls that do the same: when it is observed, PyTorch prefers a copy to a change in place.

    >>> [_canonical(n) for n in ("aten::add_", "aten::_reshape_alias", "aten::__or__", "ProfilerStep#3")]
    ['aten::add', 'aten::view', 'aten::__or__', 'ProfilerStep#']
    """
    if name.startswith("ProfilerStep#"):
        return "ProfilerStep#"
    name = SAME_WORK.get(name, name)
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _codes(table: OpTable, code_of_name: list[int]) -> Ints:
    return np.array(code_of_name, np.int32)[table.name] if len(table) else np.zeros(0, np.int32)


def _casting(profile: OpTable) -> NDArray[np.bool_]:
    """Which rows are autocast's: a call that casts its arguments and then calls an op of the same name, once."""
    inside = np.flatnonzero(profile.parent >= 0)
    outer = profile.parent[inside]
    again = profile.name[inside] == profile.name[outer]
    casts = profile.names.matching(lambda name: name in CASTS)[profile.name[inside]]
    casting: NDArray[np.bool_] = (
        np.bincount(outer[again], minlength=len(profile)) == 1
    )  # aten::roll rolls each dimension
    casting[outer[~again & ~casts]] = False
    return casting


def _paired_threads(
    thread: Ints, seen: Ints, profile_thread: Ints, code: Ints, rows: NDArray[np.intp]
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Rows of each thread of the structure with rows of the profile's thread that calls the same ops."""
    threads, sizes = np.unique(thread, return_counts=True)
    if len(threads) <= 1:
        return [(np.arange(len(seen)), rows)]
    names = int(seen.max()) + 1
    theirs = {int(t): rows[profile_thread[rows] == t] for t in distinct(profile_thread[rows])}
    left = {t: np.bincount(code[mine], minlength=names) for t, mine in theirs.items()}
    pairs = []
    for larger_first in threads[np.argsort(-sizes)]:
        if not left:
            break
        mine = np.flatnonzero(thread == larger_first)
        counts = np.bincount(seen[mine], minlength=names)
        shared = {t: int(np.minimum(called, counts).sum()) for t, called in left.items()}
        best = max(shared, key=shared.__getitem__)
        del left[best]
        pairs.append((mine, theirs[best]))
    return pairs


def _with_arguments(structure: OpTable, profile: OpTable, found: Sequence[Ints]) -> OpTable:
    """The profile's table, with the structure's ops and nesting in matched rows."""
    of_profile = np.full(len(profile), -1, np.int32)
    parent = profile.parent.copy()
    for rows in found:
        of_profile[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        above = np.where(structure.parent >= 0, rows[structure.parent], -1)
        nested = (rows >= 0) & (above >= 0) & (above < rows)
        parent[rows[nested]] = above[nested]
    joined = replace(profile, parent=parent, source=np.arange(len(profile), dtype=np.int32))
    joined.detail = _JoinedOps(structure, profile, of_profile)
    return joined


@dataclass
class _JoinedOps:
    """Creates the op of a row: the structure's if it is matched, else the profile's."""

    structure: OpTable
    profile: OpTable
    of_profile: Ints

    def __call__(self, row: int) -> Op:
        matched = self.of_profile[row]
        return self.structure.call(matched) if matched >= 0 else self.profile.call(row)


def _storages(storages: Mapping[int, Storage], found: Ints) -> StorageTable:
    """Births and deaths in the profile's rows: those of the op itself, or of the next matched op."""
    last = int(found.max(initial=-1)) + 1
    rows = np.append(np.where(found >= 0, found, last), last)
    following = np.minimum.accumulate(rows[::-1])[::-1]
    return StorageTable.of(storages).renumbered(np.append(following, -1))  # the last one is for -1, which means unknown


def _collectives(structure: Graph, profile: Graph, found: Sequence[Ints]) -> list[Collective]:
    """The profile's collectives, completed by the structure's; the structure's own if the profile has none."""
    known: dict[int, Collective] = {}
    for rows in found:
        known |= {int(rows[c.op]): c for c in structure.collectives if rows[c.op] >= 0}
    if not profile.collectives:
        return [replace(c, op=row) for row, c in sorted(known.items())]
    return [_completed(c, known.get(_nearest_around(c.op, profile.ops, known))) for c in profile.collectives]


def _nearest_around(row: int, ops: OpTable, known: dict[int, Collective]) -> int:
    while row >= 0 and row not in known:
        row = int(ops.parent[row])
    return row


def _completed(timed: Collective, known: Collective | None) -> Collective:
    if known is None or known.kind != timed.kind:
        return timed
    return replace(
        timed,
        group=timed.group or known.group,
        nbytes=known.nbytes or timed.nbytes,
        ranks=timed.ranks or known.ranks,
        dtype=known.dtype or timed.dtype,
    )
