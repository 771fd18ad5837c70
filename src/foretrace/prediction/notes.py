"""The notes of a prediction: what it rests on, what it leaves out, and how the job was recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from foretrace.analysis.breakdown import kernels_in
from foretrace.analysis.critical_path import LATENCY_US
from foretrace.analysis.report import StepReport
from foretrace.graph import Graph, Job
from foretrace.graph.graph import ANOTHER_TIME, UNEXPLAINED_TIME, cautions, chosen_step
from foretrace.graph.tables import median
from foretrace.simulation.task_graph import merged

if TYPE_CHECKING:
    from foretrace.platform.platform import Platform
    from foretrace.prediction.gaps import Unexplained
    from foretrace.prediction.rank_models import MeasuredRank, PricedRank

STALLED_SHARE = 0.01
"""A device that stalls unexplained for more than this share of the step is noted."""
GUESSED_SHARE = 0.2
"""Share of a step from which on device time that no model knows belongs in the headline."""
QUEUED_SHARE = 0.05
"""Share of the measured device span from which on idle time with launched work is noted."""
NUMBER = re.compile(r"(?<![\w-])\d[\d,.]*(?![\w-])")
"""A number by itself; those of a name, as a100-8x, are none."""
EXAMPLES = re.compile(r"\([^()]*\)")


def stall_notes(ranks: Sequence[MeasuredRank], step_ms: float) -> list[str]:
    """A note on ranks whose device stalls for no reason that the trace shows."""
    limit_us = STALLED_SHARE * step_ms * 1e3
    stalled = {rank.graph.rank: rank.stalled_us / 1e3 for rank in ranks if rank.stalled_us > limit_us}
    shares = {rank: f"{ms:.1f} ms ({100 * ms / step_ms:.0f} % of the step)" for rank, ms in stalled.items()}
    which = ", ".join(f"rank {rank} for {share}" for rank, share in shares.items())
    reason = "for no reason that the trace shows (earlier work that is not recorded, another user of the machine?)"
    return [f"launched work does not start on an idle device of {which}, {reason}: stays as measured"] * bool(stalled)


def overhead_notes(ranks: Sequence[MeasuredRank]) -> list[str]:
    """A note that the overhead of the profiler was taken off host times."""
    low, high = (some(rank.profiling_overhead for rank in ranks) for some in (min, max))
    if low == high == 1.0:
        return []
    by = f"{low:.2f} to {high:.2f}" if f"{low:.2f}" != f"{high:.2f}" else f"{high:.2f}"
    return [f"host times are scaled to those of unprofiled steps: the profiled one took {by} times as long"]


def idle_device_note(ranks: Sequence[PricedRank], platform: Platform) -> list[str]:
    """A note that a step for a GPU launches nothing there."""
    if any(len(rank.step.work) for rank in ranks) or platform.device.runs_on_host:
        return []
    return [f"the step launches nothing on {platform.name}'s device: were its model and data on the device?"]


def measured_note(report: StepReport, job: Job, platform: Platform) -> list[str]:
    """How long the step took when it was recorded on the same device: a caution where its prediction differs."""
    if len(job.graphs) != 1 or job.world != 1 or platform.device.runs_on_host:
        return []
    graph = job.graphs[0]
    if graph.device != platform.device.matches:
        return []
    if not graph.unprofiled.synced_ms:
        return _profiled_note(report, graph, platform)
    measured = float(median(np.array(graph.unprofiled.synced_ms)))
    took = f"{measured:.3g} ms on {graph.device}, without a profiler"
    if report.low_ms <= measured <= report.high_ms:
        return [f"recorded, the step took {took}"]
    return [
        f"{ANOTHER_TIME}{took}: the prediction has the host of {platform.name}, which may be slower or faster than "
        "that of the recording; `foretrace calibrate` measures a host, `foretrace check` compares the two op by op"
    ]


def _profiled_note(report: StepReport, graph: Graph, platform: Platform) -> list[str]:
    """How long a step took that was traced on the same device, where its prediction is shorter."""
    name = chosen_step(Job([graph]), None)
    profiled = next((span.ms for span in graph.steps if span.name == name), 0.0)
    if profiled <= report.high_ms:
        return []
    return [
        f"in the trace the step took {profiled:.3g} ms on {graph.device}: profiling slows the host; a step without a "
        f"profiler is predicted, with the host of {platform.name}"
    ]


def guess_note(report: StepReport) -> list[str]:
    """A note that much of the step is device time of calls that no model knows.

    >>> unknown = StepReport(platform="h200", step_ms=10.0, device_active_ms=8.0, coverage={"fallback": 0.5})
    >>> guess_note(unknown)
    ["much rests on guesses: 50 % of the device time is of calls that h200's models do not know"]
    """
    unknown = sum(report.coverage.get(how, 0.0) for how in ("extrapolated", "fallback"))
    if unknown * report.device_active_ms < GUESSED_SHARE * report.step_ms or not unknown:
        return []
    whose = f"calls that {report.platform}'s models do not know"
    return [f"much rests on guesses: {100 * unknown:.0f} % of the device time is of {whose}"]


def queued_note(ranks: Sequence[PricedRank]) -> list[str]:
    """A note on measured time in which a device idled although work was launched, which no forecast has."""
    each, span = [], 0.0
    for rank in ranks:
        cut, whole = rank.dispatched.calls, rank.uncut
        if not len(cut.kernels) or not len(cut.calls) or not np.isfinite(cut.kernels.start).all():
            return []
        begin, last = float(cut.calls.start.min()), float(cut.kernels.end.max())
        kernels = kernels_in(whole, begin, last)  # what the step before launched keeps the device busy, too
        start, end, first = merged(kernels.start, kernels.end)
        launched = np.append(whole.calls.end, np.inf)[kernels.call[first]]
        late = start - np.maximum(np.append(begin, end[:-1]), launched)
        each.append(float(late[late > LATENCY_US].sum()) / 1e3)
        span += (last - begin) / 1e3
    if not each or sum(each) < QUEUED_SHARE * span:
        return []
    ms = sum(each) / len(each)
    return [f"{ms:.1f} ms in which the measured device idled although work was launched are not in the forecast"]


def most_unexplained(ranks: Sequence[PricedRank]) -> Unexplained | None:
    """The measured host time of the rank that leaves out most of it unexplained."""
    found = [rank.step.unexplained for rank in ranks if rank.step.unexplained]
    return max(found, key=lambda one: one.here, default=None)


def unexplained_note(ranks: Sequence[PricedRank]) -> list[str]:
    """A caution that measured host time is left out although no model explains it."""
    most = most_unexplained(ranks)
    if most is None:
        return []
    return [
        f"{UNEXPLAINED_TIME}calls and the pauses between them take {most.taken:.1f} ms in the trace, "
        f"{most.beyond_model:.1f} ms more than the model of the host has, and a profiler seldom adds as much. It is "
        "not carried over, as each of them is short; the range reaches to where it would be"
    ]


def note_key(note: str) -> frozenset[str]:
    """The words of a note without numbers, order and examples: equal for notes that say the same.

    >>> note_key("a (6%) and b (2.0%) on 2 nodes") == note_key("b (4%) and a (3.0%) on 4 nodes")
    True
    >>> note_key("a100-8x on 4 nodes") == note_key("a100-4x on 4 nodes")
    False
    """
    return frozenset(NUMBER.sub("", EXAMPLES.sub("", note)).replace(",", " ").split())


def merge_rank_notes(notes: Mapping[int, Iterable[str]]) -> list[str]:
    """The notes of several ranks: of those that differ in numbers alone, the first one's.

    >>> merge_rank_notes({0: ["guessed", "5 ms are guesses"], 1: ["guessed", "6 ms are guesses"]})
    ['guessed', 'on rank 0, and likewise on others: 5 ms are guesses']
    """
    found: dict[frozenset[str], dict[str, int]] = {}
    for rank, of_rank in notes.items():
        for note in of_rank:
            found.setdefault(note_key(note), {}).setdefault(note, rank)
    return [
        note if len(same) == 1 else f"on rank {rank}, and likewise on others: {note}"
        for same in found.values()
        for note, rank in [next(iter(same.items()))]
    ]


def recorded_notes(job: Job) -> list[str]:
    """The notes of how a job was recorded or sketched, such as what was not done meanwhile; cautions first."""
    cautioned = [note for graph in job.graphs for note in cautions(graph.notes)]
    others = {graph.rank: [note for note in graph.notes if note not in cautioned] for graph in job.graphs}
    return list(dict.fromkeys([*job.notes, *cautioned, *merge_rank_notes(others)]))


def job_notes(job: Job, more: list[str], waits_included: bool = False) -> list[str]:
    """All notes of a prediction, each once: how the job was recorded, ranks without a trace, and ``more``.

    ``waits_included`` says that the collectives of one rank alone take as measured.
    """
    notes = recorded_notes(job)
    if job.missing:
        if len(job.graphs) == 1:
            which = f"rank {job.graphs[0].rank} of {job.world:,} is predicted alone"
            measured = [one.takes_as_measured for one in job.graphs[0].collectives]
            included = "the time it waits for other ranks is not included"
            if waits_included or (measured and all(measured)):
                included = "its collectives take as measured, its waits for other ranks included"
            elif any(measured):
                included = f"{sum(measured):,} of {len(measured):,} collectives take as measured, waits included"
            notes.append(f"{which}: {included}")
        else:
            ranks = "rank" if len(job.missing) == 1 else f"{len(job.missing):,} ranks"
            notes.append(f"no other rank waits for the {ranks} of {job.world:,} that have no trace")
    if job.alike:
        notes.append(f"ranks that run the same step are simulated once: {len(job.graphs):,} for all {job.world:,}")
    return list(dict.fromkeys([*notes, *more]))
