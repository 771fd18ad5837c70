"""An execution trace and a profiler trace of one rank as one graph: arguments from one, times from the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.execution_trace import NO_TIMES
from foretrace.formats.matching import match
from foretrace.graph import Collective, ForetraceError, Graph, Op, OpTable, Storage
from foretrace.graph.tables import Ints

SAME_STEP = 0.5
"""Share of the structure's ops that must be found in the profile, for both to be of the same step."""
SAME_RUN = 0.9
"""Share of the record-function ids found on both sides that must stand for the same name, for ids to be believed."""


def join(structure: Graph, times: Graph) -> Graph:
    """The rows and times of a profile, with the arguments, storages and collective sizes of a structure.

    Ops are paired by their record-function ids where both were taken at once, otherwise by name in order, each step of
    the profile with the structure anew.

    >>> from foretrace.graph import Tensor
    >>> seen = Graph(OpTable.of([Op("aten::relu", (Tensor((4,), "float32", id=3),))]))
    >>> timed = Graph(OpTable.of([Op("aten::relu", start_us=1.0, end_us=2.0)]))
    >>> op = join(seen, timed).ops[0]
    >>> op.end_us, op.tensors[0].id
    (2.0, 3)
    """
    found = pair(structure.ops, times)
    once = found[int(np.argmax([(rows >= 0).sum() for rows in found]))]
    matched = float((once >= 0).mean()) if len(once) else 1.0
    if matched < SAME_STEP:
        raise ForetraceError(
            f"{structure.source} and {times.source} are not of one job: "
            f"only {100 * matched:.0f} % of the execution trace's ops are in the profiler trace",
            "Give the traces of one job only.",
        )
    return replace(
        times,
        ops=_with_arguments(structure.ops, times.ops, found),
        collectives=_collectives(structure, times, found),
        storages=_storages(structure.storages, once),
        groups=structure.groups | {name: ranks for name, ranks in times.groups.items() if ranks},
        world=max(structure.world, times.world),
        notes=[
            *times.notes,
            *(note for note in structure.notes if note != NO_TIMES),
            f"{100 * matched:.1f} % of the execution trace's ops found in the profiler trace",
        ],
    )


def pair(structure: OpTable, times: Graph) -> list[Ints]:
    """For each op of the structure, its row in the profile or -1; once for each step that repeats the structure."""
    by_id = _by_record_id(structure, times.ops)
    if by_id is not None:
        return [by_id]
    steps_seen = structure.names.matching(lambda name: name.startswith("ProfilerStep#"))
    if len(times.steps) <= 1 or (len(structure) and steps_seen[structure.name].sum() > 1):
        return [match(structure, times.ops)]
    found = []
    for start, end in pairwise([*(step.start for step in times.steps), np.inf]):
        rows = np.flatnonzero((times.ops.start >= start) & (times.ops.start < end))
        found.append(_in_rows(match(structure, _part(times.ops, rows)), rows))
    return found


def _by_record_id(structure: OpTable, profile: OpTable) -> Ints | None:
    """Pairs with the same record-function id; None where one side has none, or they are of different runs."""
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


def _part(ops: OpTable, rows: NDArray[np.intp]) -> OpTable:
    """Some rows of a table on their own: parents outside it are gone."""
    part = ops.rows(rows)
    new_row = np.full(len(ops) + 1, -1, np.int32)
    new_row[rows] = np.arange(len(rows))
    part.parent = new_row[part.parent]
    return part


def _in_rows(found: Ints, rows: NDArray[np.intp]) -> Ints:
    return np.where(found >= 0, rows[found], -1).astype(np.int32) if len(rows) else found


def _with_arguments(structure: OpTable, profile: OpTable, found: Sequence[Ints]) -> OpTable:
    """The profile's table, its ops made by the structure where they are matched, and nested as there."""
    of_profile = np.full(len(profile), -1, np.int32)
    parent = profile.parent.copy()
    for rows in found:
        of_profile[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        above = np.where(structure.parent >= 0, rows[structure.parent], -1)
        nested = (rows >= 0) & (above >= 0) & (above < rows)
        parent[rows[nested]] = above[nested]
    joined = replace(profile, parent=parent, source=np.arange(len(profile), dtype=np.int32))
    joined.detail = _Either(structure, profile, of_profile)
    return joined


@dataclass
class _Either:
    """Makes the op of a row: the structure's where there is one, else the profile's; the table says when and where."""

    structure: OpTable
    profile: OpTable
    of_profile: Ints

    def __call__(self, row: int) -> Op:
        matched = self.of_profile[row]
        return self.structure.call(matched) if matched >= 0 else self.profile.call(row)


def _storages(storages: dict[int, Storage], found: Ints) -> dict[int, Storage]:
    """Births and deaths in the profile's rows: of the op itself, or of the next one that was matched."""
    last = int(found.max(initial=-1)) + 1
    rows = np.append(np.where(found >= 0, found, last), last)
    following = np.minimum.accumulate(rows[::-1])[::-1]
    moved = [*following.tolist(), -1]  # the last one is for -1, where nobody knows
    return {i: Storage(s.id, s.nbytes, s.device, moved[s.birth], moved[s.death]) for i, s in storages.items()}


def _collectives(structure: Graph, times: Graph, found: Sequence[Ints]) -> list[Collective]:
    """The profile's collectives, with what only the structure knows; the structure's own where the profile has none."""
    told: dict[int, Collective] = {}
    for rows in found:
        told |= {int(rows[c.op]): c for c in structure.collectives if rows[c.op] >= 0}
    if not times.collectives:
        return [replace(c, op=row) for row, c in sorted(told.items())]
    return [_completed(c, told.get(_around(c.op, times.ops, told))) for c in times.collectives]


def _around(row: int, ops: OpTable, told: dict[int, Collective]) -> int:
    while row >= 0 and row not in told:
        row = int(ops.parent[row])
    return row


def _completed(timed: Collective, told: Collective | None) -> Collective:
    if told is None or told.kind != timed.kind:
        return timed
    return replace(
        timed,
        group=timed.group or told.group,
        nbytes=told.nbytes or timed.nbytes,
        ranks=timed.ranks or told.ranks,
        dtype=told.dtype or timed.dtype,
    )
