"""Two steps compared: a step before and after a change (`diff`), and a prediction against a recording (`check`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace.analysis.breakdown import active_and_idle, by_op
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.analysis.host_time import host_segments
from foretrace.analysis.report import StepReport, TimeRow, plain
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job

if TYPE_CHECKING:
    from foretrace.analysis.op_matching import Replacement
    from foretrace.analysis.report import Workings

WAIT_AND_TRANSFER = "exposed wait and transfer"
"""Exposed communication where it is unknown when the peers of some rank arrived, as of one rank alone."""
ROUNDING = 1e-9
"""Milliseconds and calls below this are none."""
UNKNOWN: Any = (None, None)
"""Device times of which one step's are not recorded: without both there is no change."""
Pair = tuple[float, float]
"""Before and after; predicted and measured."""


@dataclass(slots=True)
class TimeChange:
    """Time of an op, family, phase or module in two steps."""

    name: str
    device_ms: Pair
    """Both None where one of the steps has launches and no kernels."""
    host_ms: Pair
    count: tuple[int, int]
    change_ms: float
    """Device and host time added up, after less before; of host time alone where device time is unknown."""


@dataclass(slots=True)
class MatchedChange(TimeChange):
    """Time of an op in two steps, or of ops and what takes their place in the other step."""

    before: list[str]
    after: list[str]
    """The ops; empty where only the other step has some."""
    phase: str = ""
    where: str = ""
    """Of a replacement, its module, with * for what differs between places; empty where unknown."""
    how: str = "name"
    """What it is matched by: ``name``, ``module`` or ``position``."""
    places: int = 0
    """Of a replacement, at how many places it was found."""


@dataclass(slots=True)
class PathChange:
    """Time of a step in one kind of work, in two steps: of its critical path, communication or idle time."""

    what: str
    """As in `foretrace.analysis.report.PathRow`; the kind of communication; the cause of idle time."""
    ms: Pair
    change_ms: float


@dataclass(slots=True)
class CollectiveChange:
    """All collectives of one kind in two steps."""

    kind: str
    count: tuple[int, int]
    nbytes: tuple[int, int]
    """Of all of them."""
    transfer_ms: Pair
    """From the last rank's arrival on."""
    wait_ms: Pair
    """Before that, the mean over ranks."""
    change_ms: float


@dataclass
class StepDifference:
    """Two steps compared: in each list the largest slow-down comes first."""

    before: str
    after: str
    step_ms: Pair
    """Of the slowest rank."""
    device_active_ms: tuple[float | None, float | None]
    """Of the busiest rank; 0 where nothing is recorded of a device, None where it was launched and is not recorded."""
    critical_path: list[PathChange] = field(default_factory=list)
    """By kind of work; the changes add up to that of the critical path, and of a predicted step."""
    communication: list[PathChange] = field(default_factory=list)
    """Exposed wait, exposed transfer and what is hidden behind other work, the mean over ranks; wait and transfer are
    one where waits are unknown, as of a rank alone."""
    collectives: list[CollectiveChange] = field(default_factory=list)
    idle: list[PathChange] = field(default_factory=list)
    """What devices idle for, by cause, the mean over ranks."""
    matched: list[MatchedChange] = field(default_factory=list)
    """`by_op`, with ops that take the place of others beside these."""
    by_op: list[TimeChange] = field(default_factory=list)
    by_family: list[TimeChange] = field(default_factory=list)
    by_phase: list[TimeChange] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    """Ops that only the second step has."""
    gone: list[str] = field(default_factory=list)
    """Ops that only the first step has."""
    cautions: list[str] = field(default_factory=list)
    """Notes that make figures of one of the steps unreliable, with its source."""

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``foretrace diff --json``."""
        return {f.name: exact(getattr(self, f.name)) for f in fields(self)}


def exact(value: Any) -> Any:
    """The value in JSON's types, numbers as they are."""
    if isinstance(value, (list, tuple)):
        return [exact(item) for item in value]
    return {f.name: exact(getattr(value, f.name)) for f in fields(value)} if is_dataclass(value) else value


def compare_steps(before: StepReport, after: StepReport) -> StepDifference:
    """What got slower from one step to another, op by op.

    >>> def step(ms: float) -> StepReport:
    ...     return StepReport(step_ms=ms + 1, by_op=[TimeRow("aten::mm", ms, 0.1, 1, 1.0)])
    >>> slower = compare_steps(step(2.0), step(5.0))
    >>> slower.step_ms, slower.by_op[0].name, slower.by_op[0].change_ms
    ((3.0, 6.0), 'aten::mm', 3.0)
    """
    for report in (before, after):
        if report.ranks and not report.timed:
            raise ForetraceError(
                f"{report.source} has no times: what of it is slower or faster is unknown",
                "Give the profiler trace of the same step.",
            )
    known = not (before.unrecorded_launches or after.unrecorded_launches)
    rows = compare_rows(before.by_op, after.by_op, known)
    had, has = ({row.name for row in report.by_op} for report in (before, after))
    difference = StepDifference(
        before=before.source,
        after=after.source,
        step_ms=(before.step_ms, after.step_ms),
        device_active_ms=(_busiest(before), _busiest(after)),
        by_op=rows,
        by_family=compare_rows(before.by_family, after.by_family, known),
        by_phase=compare_rows(before.by_phase, after.by_phase, known),
        new=sorted(has - had),
        gone=sorted(had - has),
        cautions=[f"{report.source}: {text}" for report in (before, after) for text in _cautions(report)],
    )
    if known:
        difference.critical_path = _changes(_path_by_kind(before), _path_by_kind(after))
        difference.communication = _changes(_communication(before), _communication(after))
        difference.collectives = _compare_collectives(before, after)
        difference.idle = _changes(before.idle_causes, after.idle_causes)
        difference.matched = _match(before, after, rows)
    return difference


def _cautions(report: StepReport) -> list[str]:
    """Notes that make the figures of a step unreliable; that its device was not recorded comes first."""
    unseen = 0 if report.predicted else report.unrecorded_launches  # a prediction has a note of it
    return [f"its {unseen:,} launches have no kernels in the trace"] * bool(unseen) + report.cautions


def _busiest(report: StepReport) -> float | None:
    if report.unrecorded_launches:
        return None
    return max((rank.device_active_ms for rank in report.ranks), default=report.device_active_ms)


def _changes(old: Mapping[str, float], new: Mapping[str, float]) -> list[PathChange]:
    """Times by kind of work, the largest slow-down first."""
    changes = [
        PathChange(what, (old.get(what, 0.0), new.get(what, 0.0)), new.get(what, 0.0) - old.get(what, 0.0))
        for what in {**old, **new}
    ]
    return sorted(changes, key=lambda row: -row.change_ms)


def _path_by_kind(report: StepReport) -> defaultdict[str, float]:
    ms: defaultdict[str, float] = defaultdict(float)
    for row in report.critical_path:
        ms[row.what] += row.ms
    return ms


def _communication(report: StepReport) -> dict[str, float]:
    """Communication of a step by whether other work hides it, and what of the exposed part is waiting."""
    each = [rank.communication for rank in report.ranks]
    if not any(one.communication_ms for one in each):
        return {}
    wait, exposed, hidden = (
        sum(getattr(one, name) or 0.0 for one in each) / len(each)
        for name in ("exposed_wait_ms", "exposed_ms", "hidden_ms")
    )
    if not report.predicted and any(one.communication_ms and one.exposed_wait_ms is None for one in each):
        return {WAIT_AND_TRANSFER: exposed, "hidden": hidden}
    return {"exposed wait": wait, "exposed transfer": exposed - wait, "hidden": hidden}


def _compare_collectives(before: StepReport, after: StepReport) -> list[CollectiveChange]:
    old, new = (_by_kind(report) for report in (before, after))
    changes = []
    for kind in {**old, **new}:
        a, b = old.get(kind, (0, 0, 0.0, 0.0)), new.get(kind, (0, 0, 0.0, 0.0))
        both = (a[0], b[0]), (a[1], b[1]), (a[2], b[2]), (a[3], b[3])
        changes.append(CollectiveChange(kind, *both, b[2] + b[3] - a[2] - a[3]))
    return sorted(changes, key=lambda row: -row.change_ms)


def _by_kind(report: StepReport) -> dict[str, tuple[int, int, float, float]]:
    """Number, bytes, transfer and wait of the collectives of each kind."""
    found: dict[str, tuple[int, int, float, float]] = {}
    for row in report.collectives:
        count, nbytes, transfer, wait = found.get(row.kind, (0, 0, 0.0, 0.0))
        found[row.kind] = (
            count + row.count,
            nbytes + row.count * row.nbytes,
            transfer + (row.total_transfer_ms or 0.0),
            wait + (row.wait_ms or 0.0) / max(len(report.ranks), 1),
        )
    return found


def _match(before: StepReport, after: StepReport, rows: Sequence[TimeChange]) -> list[MatchedChange]:
    """The rows by op, less what takes the place of something else, and a row for each such replacement."""
    found: list[Replacement] = []
    parts: list[dict[str, Sequence[float]]] = [{}, {}]
    if before.workings and after.workings:
        from foretrace.analysis.op_matching import compared_ranks, find_replacements

        both = before.workings, after.workings
        found = find_replacements(*(one.graphs for one in both))
        ranks = compared_ranks(*(one.graphs for one in both)) if found else []
        if found:
            parts = [_parts(rows, side, both[side], {id(pair[side]) for pair in ranks}) for side in (0, 1)]
    left = {row.name: [[*pair] for pair in (row.device_ms, row.host_ms, row.count)] for row in rows}
    matched = []
    for one in found:
        taken = [[0.0, 0.0] for _ in range(3)]
        for side in (0, 1):
            for name, share in one.taken[side].items():
                for column, (value, part) in enumerate(zip(share, parts[side].get(name, (1.0, 1.0, 1.0)))):
                    value *= part
                    taken[column][side] += value
                    if name in left:
                        left[name][column][side] = max(left[name][column][side] - value, 0.0)
        ours, theirs = list(one.before), list(one.after)
        name = f"{', '.join(ours)} → {', '.join(theirs)}"
        matched.append(_matched(name, taken, ours, theirs, one.phase, one.where, one.how, one.places))
    for name, columns in left.items():
        if any(value > ROUNDING for column in columns for value in column):
            there = ([name] if any(column[side] > ROUNDING for column in columns) else [] for side in (0, 1))
            matched.append(_matched(name, columns, *there))
    return sorted(matched, key=lambda row: -row.change_ms)


def _parts(rows: Sequence[TimeChange], side: int, workings: Workings, ids: set[int]) -> dict[str, Sequence[float]]:
    """For each op, its time and calls on all ranks over those on the ranks that were compared, both means."""
    places = [place for place, graph in enumerate(workings.graphs) if id(graph) in ids]
    if len(places) == len(workings.graphs):
        return {}
    some_ranks = by_op([workings.graphs[at] for at in places], [workings.segments[at] for at in places])
    compared, found = {row.name: row for row in some_ranks}, dict[str, Sequence[float]]()
    for row in rows:
        if other := compared.get(row.name):
            here, there = (row.device_ms, row.host_ms, row.count), (other.device_ms, other.host_ms, other.count)
            found[row.name] = [all_[side] / some if some else 1.0 for all_, some in zip(here, there)]
    return found


def _matched(name: str, columns: list[list[float]], *more: Any) -> MatchedChange:
    (device, device_after), (host, host_after), count = columns
    change = device_after - device + host_after - host
    counts = round(count[0]), round(count[1])
    return MatchedChange(name, (device, device_after), (host, host_after), counts, change, *more)


def compare_rows(before: Sequence[TimeRow], after: Sequence[TimeRow], device_known: bool = True) -> list[TimeChange]:
    """Rows of two tables matched by name, the largest slow-down first; of host time alone where a device is unknown.

    >>> compare_rows([], [TimeRow("aten::mm", 2.0, 1.0, 1, 1.0)])[0].change_ms
    3.0
    """
    old, new = ({row.name: row for row in rows} for rows in (before, after))
    changes = []
    for name in dict.fromkeys([*old, *new]):
        a, b = (rows.get(name, TimeRow(name, 0.0, 0.0, 0, 0.0)) for rows in (old, new))
        change = b.host_ms - a.host_ms + (b.device_ms - a.device_ms if device_known else 0.0)
        device = (a.device_ms, b.device_ms) if device_known else UNKNOWN
        changes.append(TimeChange(name, device, (a.host_ms, b.host_ms), (a.count, b.count), change))
    return sorted(changes, key=lambda row: -row.change_ms)


@dataclass(slots=True)
class OpMiss:
    """How far a prediction is off in an op: predicted first, then measured."""

    name: str
    device_ms: Pair
    host_ms: Pair
    count: tuple[int, int]
    miss_ms: float
    """Of device and host time together."""


@dataclass
class Check:
    """Prediction and measurement of one recording, in milliseconds: predicted first, then measured."""

    source: str = ""
    platform: str | None = ""
    step_ms: Pair = (0.0, 0.0)
    """Measured: median of the unprofiled steps with a sync after each."""
    step_ms_back_to_back: Pair | None = None
    range_ms: Pair = (0.0, 0.0)
    """10th and 90th percentile of the prediction."""
    inside: bool = False
    """Whether the measured median lies in that range."""
    device_active_ms: Pair | None = None
    peak_memory_bytes: tuple[int, int] | None = None
    kernels: tuple[int, int] | None = None
    """How many there are."""
    coverage: dict[str, float] = field(default_factory=dict)
    by_op: list[OpMiss] = field(default_factory=list)
    """The largest miss first."""
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``foretrace check --json``."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self)}


def check_prediction(predicted: StepReport, recording: Graph | Job) -> Check:
    """Where a prediction is off from the unprofiled steps of a recording, and in which ops.

    Parameters
    ----------
    predicted
        What was predicted for the recording.
    recording
        What was measured: its unprofiled steps for the step time, its profiled one for what ops and kernels took. The
        profiled host times are divided by the factor by which profiling slowed the step.
    """
    graph = recording if isinstance(recording, Graph) else recording.graphs[0]
    if not graph.unprofiled.synced_ms:
        raise ForetraceError(
            f"{graph.source or 'the graph'} holds no unprofiled steps to check against",
            "Record the job with `foretrace record`, which times unprofiled steps first.",
        )
    measured = float(np.median(graph.unprofiled.synced_ms))
    check = Check(
        source=predicted.source,
        platform=predicted.platform,
        step_ms=(predicted.step_ms, measured),
        range_ms=(predicted.low_ms, predicted.high_ms),
        inside=predicted.low_ms <= measured <= predicted.high_ms,
        coverage=predicted.coverage,
        notes=list(predicted.notes),
    )
    if graph.unprofiled.back_to_back_ms and predicted.step_ms_back_to_back is not None:
        check.step_ms_back_to_back = (
            predicted.step_ms_back_to_back,
            float(np.median(graph.unprofiled.back_to_back_ms)),
        )
    if graph.unprofiled.peak_memory_bytes and predicted.peak_memory_bytes:
        check.peak_memory_bytes = (predicted.peak_memory_bytes, graph.unprofiled.peak_memory_bytes)
    if len(graph.kernels):
        check.device_active_ms = (predicted.device_active_ms, active_and_idle(graph)[0] / 1e3)
        check.kernels = (predicted.kernels, len(graph.kernels))
    check.by_op = _misses(predicted, graph)
    return check


def _misses(predicted: StepReport, graph: Graph) -> list[OpMiss]:
    """Ops by how far their device and host time together are off."""
    calls = dispatched_calls(graph).calls
    measured_rows = {row.name: row for row in by_op([calls], [host_segments(calls)])}
    predicted_rows = {row.name: row for row in predicted.by_op}
    misses = []
    for name in {*predicted_rows, *measured_rows}:
        ours, theirs = (rows.get(name, TimeRow(name, 0.0, 0.0, 0, 0.0)) for rows in (predicted_rows, measured_rows))
        # Of a step without kernels, what the CPU computes is host time.
        device = (ours.device_ms, theirs.device_ms) if len(graph.kernels) else (0.0, 0.0)
        host = (ours.host_ms, theirs.host_ms / graph.profiling_overhead)
        miss = device[0] - device[1] + host[0] - host[1]
        misses.append(OpMiss(name, device, host, (ours.count, theirs.count), miss))
    return sorted(misses, key=lambda row: (-abs(row.miss_ms), row.name))
