"""All steps of a trace: how long each takes, and what differs in the slow ones."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from foretrace.analysis.breakdown import kernel_family, kernels_in
from foretrace.analysis.host_time import busy_ms, host_segments
from foretrace.analysis.idle import host_limits, idle_rows, lost_ms
from foretrace.analysis.iterations import with_iterations
from foretrace.analysis.report import NotebookDocument, bound_by, idle_by_cause, plain, unrecorded_ms
from foretrace.analysis.step_time import step_window
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job
from foretrace.graph.graph import LATE_CLOCK, MISSING_KERNELS, cautions, cut_to_step
from foretrace.graph.tables import COLLECTIVE, LAUNCH, median
from foretrace.simulation.task_graph import total

SLOW = 1.1
"""A step that takes this many times the median is slow."""
WORTH_NAMING = 0.1
"""Share of what a slow step takes longer, from which on a part of it is named."""
WORK, EXPOSED, ELSEWHERE = "device work", "exposed communication", "work of other steps"
"""The parts of a step in which its device is active: what it launched, and work that others launched, less its own
that runs in the time of others."""
OTHERS, REST = "others", "the rest"
"""What is left of a cause, and of all, where each single part is too small to be named."""


@dataclass(slots=True)
class StepRow:
    """One step, of the rank that takes longest for it."""

    step: str
    ms: float
    rank: int
    device_active_ms: float | None
    """None, as below, where the step launches work of which the trace holds nothing."""
    device_idle_ms: float | None
    kernels: int
    """Launched in it."""
    bound: str | None
    slow: bool = False
    """Whether it takes more than 1.1 times the median."""
    differs: dict[str, float] = field(default_factory=dict)
    """Of a slow step, what it has more of than the median step, in milliseconds, the most first; less is negative. All
    of it adds up to what the step takes longer."""


@dataclass
class StepList:
    """All steps of a trace in their order."""

    source: str
    median_ms: float
    steps: list[StepRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stragglers: NotebookDocument | None = None
    """Of a job of several ranks, what stragglers cost it over all steps."""

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``foretrace show --steps --json``."""
        stragglers = None if self.stragglers is None else self.stragglers.to_dict()
        return {f.name: plain(getattr(self, f.name)) for f in fields(self)} | {"stragglers": stragglers}


def list_steps(job: Job) -> StepList:
    """The steps that all ranks of a job mark, with what differs in the slow ones.

    A step is the device work that it launches, by kernel family, exposed communication, how much more of other steps'
    work runs in its time than of its own in theirs, and what the device idles for, by cause and name; where a slow one
    has more of something than the median over all steps, or less, that is what differs.
    """
    job = job if any(graph.steps for graph in job.graphs) else with_iterations(job)
    names = [span.name for span in job.graphs[0].steps] if job.graphs else []
    names = [name for name in names if all(any(s.name == name for s in graph.steps) for graph in job.graphs)]
    if not names or not all(graph.has_times for graph in job.graphs):
        raise ForetraceError(
            f"{job.source or 'the trace'} marks no steps that have times",
            "Call the profiler's step() after each step, or put an NVTX range named step_N around it for Nsight "
            "Systems; without --steps all of the trace is shown as one.",
        )
    each = [_row(job, name) for name in names]
    typical = float(median(np.array([row.ms for row, _ in each])))
    parts = {part: float(median(np.array([has.get(part, 0.0) for _, has in each]))) for _, has in each for part in has}
    for row, has in each:
        row.slow = row.ms > SLOW * typical
        if row.slow:
            more = {part: has.get(part, 0.0) - ms for part, ms in parts.items()}
            row.differs = _named_parts(more, row.ms - typical)
    several = len(job.graphs) > 1
    cautioned = [
        f"{note} (rank {graph.rank})" if several else note for graph in job.graphs for note in cautions(graph.notes)
    ]
    return StepList(job.source, typical, [row for row, _ in each], list(dict.fromkeys([*job.notes, *cautioned])))


def _named_parts(more: dict[str, float], longer_ms: float) -> dict[str, float]:
    """What a step takes longer, by parts: those that are large, those of a cause that are large together, the rest."""
    least = WORTH_NAMING * longer_ms
    parts = {part: ms for part, ms in more.items() if abs(ms) > least}
    causes: dict[str, float] = {}
    for part in more.keys() - parts.keys():
        cause = part.partition(": ")[0]
        causes[cause] = causes.get(cause, 0.0) + more[part]
    parts |= {f"{cause}: {OTHERS}": ms for cause, ms in causes.items() if abs(ms) > least}
    rest = longer_ms - sum(parts.values())
    parts |= {REST: rest} if abs(rest) > least else {}
    return dict(sorted(parts.items(), key=lambda one: -one[1]))


def _row(job: Job, name: str) -> tuple[StepRow, dict[str, float]]:
    """A step on the rank that takes longest for it, and what it is made of, in milliseconds."""
    windows = {graph.rank: step_window(graph, name) for graph in job.graphs}
    graph = max(job.graphs, key=lambda graph: windows[graph.rank].ms)
    start, end, _ = window = windows[graph.rank]
    cut, _ = cut_to_step(graph, name)
    kernels = kernels_in(graph, start, end)
    active = total(kernels.start, kernels.end) / 1e3
    segments = host_segments(cut)
    idle = idle_rows(graph, kernels, segments, start, end, cut.ops)
    if not len(kernels) and not len(cut.kernels):
        kinds = [segments.label(row, "") for row in range(len(segments))]
        parts: dict[str, float] = {}
        for (kind, _), us in zip(kinds, segments.duration.tolist()):
            parts[kind] = parts.get(kind, 0.0) + us / 1e3
        unknown = None if (cut.calls.kind == LAUNCH).any() else 0.0
        return StepRow(name, window.ms, graph.rank, unknown, unknown, 0, None), parts
    host_ms, idle_ms = busy_ms(segments, graph.kernels), window.ms - active
    bound = bound_by(window.ms, idle_ms, idle_by_cause(idle), host_ms)
    missing_ms = lost_ms(cut) if any(note.startswith(MISSING_KERNELS) for note in graph.notes) else 0.0
    if bound == "host" and not host_limits(window.ms, idle_ms, idle, host_ms, missing_ms):
        bound = None
    late = any(note.startswith(LATE_CLOCK) for note in graph.notes)
    if bound == "queue" and (late or unrecorded_ms(idle, idle_ms)):
        bound = None
    parts = _device_parts(cut)
    parts[ELSEWHERE] = active - sum(parts.values())
    for row in idle:
        label = f"{row.cause}: {row.name}" if row.name else row.cause
        parts[label] = parts.get(label, 0.0) + row.ms
    return StepRow(name, window.ms, graph.rank, active, idle_ms, len(cut.kernels), bound), parts


def _device_parts(graph: Graph) -> dict[str, float]:
    """Milliseconds in which a device does what a step launched, whenever it runs: by kernel family, of kernels side by
    side the one that began first, and in communication that no other work hides.
    """
    kernels = graph.kernels
    work = kernels.rows(kernels.kind != COLLECTIVE)
    work = work.rows(np.argsort(work.start, kind="stable"))
    reached = np.maximum.accumulate(np.append(-np.inf, work.end))[:-1]
    own = np.maximum(work.end - np.maximum(work.start, reached), 0.0)
    parts: dict[str, float] = {}
    ops = [*graph.ops.names.items, ""]
    op = np.append(graph.ops.name, len(ops) - 1)[work.op]
    for name, number, us in zip(work.name.tolist(), op.tolist(), own.tolist()):
        label = f"{WORK}: {kernel_family(work.names[name], ops[number])}"
        parts[label] = parts.get(label, 0.0) + us / 1e3
    exposed = (total(kernels.start, kernels.end) - float(own.sum())) / 1e3
    return {**parts, EXPOSED: exposed} if exposed > 0 else parts
