"""Scaling: the same step in jobs of other sizes, each rank doing what the recorded one did, and the curve of
several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from foretrace.analysis.collectives import ONE_SIDED, members, times_of
from foretrace.analysis.report import NotebookDocument, StepReport, plain
from foretrace.errors import check_count
from foretrace.graph import MAX_RANKS, Collective, ForetraceError, Graph, Job
from foretrace.graph.graph import UNKNOWN_GROUPS
from foretrace.prediction.notes import note_key

WEAK = "weak scaling: each rank keeps its work and the bytes of its collectives; groups of all ranks grow with the job"
NOT_COMMUNICATING = (
    "the ranks do not communicate in this step: each does the same alone; --parallel data=N, or --set data=N, makes "
    "it data parallel"
)
ALIKE = re.compile(r"ranks (that )?do the same")
"""Notes that a curve says by its first column."""


@dataclass(slots=True)
class ScalingRow:
    """One job of a scaling curve."""

    world: int
    fabric: str | None
    step_ms: float
    low_ms: float
    high_ms: float
    device_active_ms: float
    exposed_communication_ms: float
    hidden_communication_ms: float
    efficiency: float
    """The step of the smallest job over this one's."""


@dataclass
class Scaling(NotebookDocument):
    """Predictions of one step in jobs of several sizes."""

    source: str = ""
    platform: str | None = ""
    rows: list[ScalingRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The fields of its JSON: ``scaling`` is the list to plot."""
        return {"source": self.source, "platform": self.platform, "scaling": plain(self.rows), "notes": self.notes}


def scaling_curve(reports: Sequence[StepReport]) -> Scaling:
    """The curve of several predictions.

    >>> scaling_curve([StepReport(world=1, step_ms=4.0), StepReport(world=2, step_ms=5.0)]).rows[1].efficiency
    0.8
    """
    ordered = sorted(reports, key=lambda report: report.world)
    smallest = ordered[0]
    taken = [field.name for field in fields(ScalingRow) if field.name != "efficiency"]
    rows = [
        ScalingRow(
            **{name: getattr(report, name) for name in taken},
            efficiency=smallest.step_ms / report.step_ms if report.step_ms else 1.0,
        )
        for report in ordered
    ]
    return Scaling(smallest.source, smallest.platform, rows, _common_notes(ordered))


def _common_notes(ordered: Sequence[StepReport]) -> list[str]:
    """The notes of all: of those that differ in numbers alone the largest job's."""
    notes = {note_key(note): note for report in ordered for note in report.notes if not ALIKE.search(note)}
    return list(notes.values())


def at_world_resharded(job: Job, world: int) -> Job:
    """A job of so many ranks that all do what the first one does, its weights in as many shards as there are ranks.

    As `at_world`, for a step that is priced anew. A trace that does not tell its calls well enough keeps its shards.

    >>> from foretrace.graph import Op, OpTable
    >>> at_world_resharded(Job([Graph(OpTable.of([Op("aten::mm")]))]), 64).world
    64
    """
    grown = at_world(job, world)
    (rank,) = grown.graphs
    ranks = _scattering(rank)
    if ranks == _scattering(job.graphs[0]):
        return grown
    from foretrace.transforms.parallel.fsdp_reshard import shards, uses_fsdp  # here, since few steps scatter anything

    if not uses_fsdp(rank):
        return grown
    try:
        return replace(grown, graphs=[shards(rank, ranks)])
    except ForetraceError as unknown:
        return replace(grown, notes=[*grown.notes, f"shards stay as large as they were: {unknown}"])


def _scattering(graph: Graph) -> int:
    """Ranks of the first reduce_scatter; 0 without any."""
    return next((len(members(graph, one)) for one in graph.collectives if one.kind == "reduce_scatter"), 0)


def at_world(job: Job, world: int) -> Job:
    """A job of so many ranks that all do what the first one of this job does.

    A group that is the whole job stays the whole job; one that reaches through it in steps, as data parallel groups
    around tensor parallel ones, gets more members at the same distance; any other stays as it is.
    """
    check_count(world, "world", MAX_RANKS)
    if not job.graphs:
        raise ForetraceError(f"{job.source or 'the job'} holds no rank", "Record the job again.")
    first = job.graphs[0]
    if any(one.kind in ONE_SIDED for one in first.collectives):
        raise ForetraceError(
            f"rank {first.rank} sends to single ranks, as a stage of a pipeline does: others do not do the same",
            "Leave out --world. In --parallel, data=N says how many ranks each stage has.",
        )
    grown: dict[tuple[int, ...], tuple[int, ...]] = {}
    sizes: dict[str, tuple[int, int]] = {}

    unknown: list[Collective] = []

    def members_of(collective: Collective) -> tuple[int, ...]:
        ranks = collective.ranks or first.groups.get(collective.group, ())
        if not ranks and job.world == 1:
            unknown.append(collective)
            return tuple(range(world))
        ranks = ranks or tuple(range(job.world))
        if ranks not in grown:
            grown[ranks] = _grown(ranks, first, job.world, world)
        sizes[collective.group] = len(ranks), len(grown[ranks])
        return grown[ranks]

    collectives = [replace(one, ranks=members_of(one)) for one in first.collectives]
    _check_sizes(job, collectives, sizes if world == 1 else sizes | {one.group: (0, world) for one in unknown})
    graph = replace(first, rank=0, world=world, collectives=collectives, groups={})
    notes = [*job.notes, *_unknown_groups(first, unknown, world)]
    notes += [*([WEAK] if world != job.world else []), *_regrouped(sizes)]
    if len(job.graphs) > 1:
        notes.append(
            f"all ranks are taken to do what rank {first.rank} did: how much later others came is not in the step"
        )
    if world > 1 and not collectives:
        notes.append(NOT_COMMUNICATING)
    return Job([graph], job.source, notes, dict.fromkeys(range(1, world), 0))


def _check_sizes(job: Job, collectives: Sequence[Collective], sizes: dict[str, tuple[int, int]]) -> None:
    """Refuse to scale collectives without sizes: known is only how long they took among the measured ranks."""
    changed = [one for one in collectives if one.group in sizes and sizes[one.group][0] != sizes[one.group][1]]
    unknown = sum(not one.is_sized for one in changed)
    if unknown:
        raise ForetraceError(
            f"{job.source or 'the job'} does not have the size of {unknown:,} of its {len(collectives):,} collectives: "
            "how long they take among other ranks can't be known",
            "Profile with record_shapes=True, or give the execution traces too. Without --world they take as measured.",
        )


def _unknown_groups(graph: Graph, unknown: Sequence[Collective], world: int) -> list[str]:
    """A caution on communication of a trace that tells neither its ranks nor how many there are."""
    if not unknown:
        return []
    spent = [float(end - start) for start, end in (times_of(graph, one) for one in unknown)]
    took = f"{np.nansum(spent) / 1e3:.2f} ms in the trace, " if np.isfinite(spent).any() else ""
    many = f"{len(unknown):,} collective{'s' if len(unknown) > 1 else ''} ({took}in groups that it does not tell)"
    now = "take no time, as one rank alone has none" if world == 1 else f"are taken to be of all {world:,} ranks"
    return [f"{UNKNOWN_GROUPS}{many} {now}"]


def _regrouped(sizes: dict[str, tuple[int, int]]) -> list[str]:
    """Which groups have more or fewer members than they had."""
    changed = [
        f"group {name.removeprefix('group ') or 'without a name'} goes from {old:,} to {new:,} ranks"
        for name, (old, new) in sizes.items()
        if old != new
    ]
    if not changed:
        return []
    return [f"{', '.join(changed)}: right for data parallel groups; a group that splits layers would not grow"]


def _grown(ranks: tuple[int, ...], graph: Graph, old: int, new: int) -> tuple[int, ...]:
    """The members of a group in a job of another size, seen from its first rank."""
    distance = _distance(ranks)
    if distance and distance * len(ranks) == old:
        if new % distance:
            raise ForetraceError(
                f"a job of {new} ranks can't be cut into groups whose members are {distance} apart",
                f"Give a multiple of {distance}.",
            )
        return tuple(range(0, new, distance))
    moved = tuple(rank - ranks[0] for rank in ranks)
    if max(moved) >= new:
        raise ForetraceError(
            f"a group of rank {graph.rank} reaches over {max(moved) + 1} ranks, and the job shall have {new}",
            f"Give a world of at least {max(moved) + 1}.",
        )
    return moved


def _distance(ranks: Sequence[int]) -> int:
    """How far apart the members of a group are, all alike; 0 where they are not."""
    if len(ranks) < 2:
        return 0
    step = ranks[1] - ranks[0]
    return step if step > 0 and list(ranks) == list(range(ranks[0], ranks[-1] + 1, step)) else 0


def parse_worlds(text: str) -> list[int]:
    """The sizes that a text lists; dots stand for what doubles, or goes on as the two before them.

    >>> parse_worlds("64"), parse_worlds("1,2,4,...,64"), parse_worlds("8,16,24")
    ([64], [1, 2, 4, 8, 16, 32, 64], [8, 16, 24])
    """
    found: list[int] = []
    fills = False
    for item in text.replace("…", "...").split(","):
        if item.strip() == "...":
            fills = True
            continue
        if not item.strip().isdecimal() or not 1 <= int(item) <= MAX_RANKS:
            raise ForetraceError(
                f"{item.strip()!r} is no number of ranks from 1 to {MAX_RANKS:,}",
                "Say for instance 64, or 1,2,4,...,1024.",
            )
        if fills:
            found += _between(found, int(item))
            fills = False
        found.append(int(item))
    if len(set(found)) < len(found):
        raise ForetraceError(f"{text!r} lists a world twice", "Say for instance 1,2,4,...,1024.")
    if fills or not found:
        raise ForetraceError(f"{text!r} lists no worlds", "Say for instance 64, or 1,2,4,...,1024.")
    return found


def _between(found: list[int], last: int) -> list[int]:
    """The worlds that dots stand for: between those found and the last one."""
    if not found:
        raise ForetraceError("there is no number before the dots", "Say for instance 1,2,4,...,1024.")
    latest = found[-1]
    step = latest - found[-2] if len(found) > 1 and latest != 2 * found[-2] else 0
    if step < 0 or last <= latest:
        raise ForetraceError("worlds around dots must grow", "Say for instance 1,2,4,...,1024.")
    more = []
    while (latest := latest + step if step else latest * 2) < last:
        more.append(latest)
    return more
