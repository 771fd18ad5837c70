"""The record of one step, measured or predicted, its typed rows, and the tasks behind it. Times are milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.graph.graph import cautions, chosen_step
from foretrace.graph.tables import Floats, Ints, Small

if TYPE_CHECKING:
    from foretrace.analysis.collectives import CollectiveTimes
    from foretrace.analysis.host_time import Segments
    from foretrace.analysis.memory import MemoryCurve
    from foretrace.graph import Graph, Job
    from foretrace.platform.device import Device
    from foretrace.simulation.critical_path import CriticalPath
    from foretrace.simulation.task_graph import TaskGraph, Timeline


OWN_MACHINE = "its own machine"
"""The platform of a profiled job that is predicted where it ran."""
LATENCY, QUEUED, NO_EVENT = "latency", "queued", "no event"
"""Causes of idle time: from a launch to its start; work that was launched and does not start; a host of
which nothing is recorded."""
UNRECORDED = "before the first recorded device event"
"""The name of queued time in which the device may idle, or do work that is not recorded."""
HOST_BOUND, BARELY_IDLE = 0.3, 0.1
"""Where the device idles for more than the first share of the step, it does not limit it; nor does it from the second
on, where the host is busy for longer than the device."""


class NotebookDocument:
    """An answer with documented JSON fields, which a notebook shows where a cell ends with it: a dataclass."""

    def to_dict(self) -> dict[str, Any]:
        """The fields of its JSON."""
        return dict(plain(self))

    def _repr_html_(self) -> str:
        import foretrace as ft  # the public function: this package does not know the one that shows things

        return ft.as_html(self)


@dataclass(slots=True)
class TimeRow:
    """Device and host time of an op, kernel family, phase or module: the mean over the ranks, of device time over those
    that have any."""

    name: str
    device_ms: float
    host_ms: float
    count: int
    share: float
    """Of the device time; of the host time where no device worked."""


@dataclass(slots=True)
class PathRow:
    """Time on the critical path of one kind of task, under one name, on one rank."""

    what: str
    """T1 to T5, sync, kernel, copy, memset, collective, transfer, latency, late start, unexplained, launched before."""
    name: str
    rank: int | None
    """None for a transfer, which is of all ranks."""
    ms: float
    share: float


@dataclass(slots=True)
class HostOverhead:
    """One of the five host overheads, T1 to T5."""

    ms: float = 0.0
    count: float = 0.0
    mean_us: float = 0.0
    share: float = 0.0
    """Of the host time of all five."""


@dataclass(slots=True)
class IdleRow:
    """Idle time of a device by its cause, and the op or call that was responsible."""

    cause: str
    """T1 to T5, sync, latency, queued, no event, or what fills the host's time: data loading, garbage collection,
    checkpoint, logging, lock, sleep, busy wait, allocation, annotation, python, carried over."""
    name: str
    """Of the op, the annotation or the function."""
    ms: float
    share: float
    """Of the idle time."""


@dataclass(slots=True)
class HotOp:
    """An op that holds the critical path up: all calls of one name in one phase."""

    name: str
    phase: str
    ms: float
    """On the critical path."""
    share: float
    calls: int
    launches: int
    host_ms: float
    device_ms: float
    mostly: str
    """host, device, sync or exchange"""


@dataclass(slots=True)
class PairWait:
    """How long one rank waits for another."""

    rank: int
    waits_for: int
    ms: float
    count: int


@dataclass(slots=True)
class Straggler:
    """A rank that holds others back."""

    rank: int
    held_ms: float
    """How long each of the others waits for it."""
    why: str


@dataclass(slots=True)
class CollectiveRow:
    """The collectives of one kind and size."""

    kind: str
    nbytes: int
    count: int
    transfer_ms: float | None
    """Median; None where the source has no times."""
    total_transfer_ms: float | None
    wait_ms: float | None
    """Sum over the ranks; None where no two of them have a trace, so that transfers include it."""


@dataclass(slots=True)
class QueueDepth:
    """Kernels launched and not yet done."""

    mean: float = 0.0
    max: int = 0


@dataclass(slots=True)
class Communication:
    """Communication of one rank, behind other work or exposed."""

    communication_ms: float = 0.0
    hidden_ms: float = 0.0
    exposed_ms: float = 0.0
    exposed_wait_ms: float | None = 0.0
    """The part of the exposed time in which it waits for other ranks; None where these have no trace."""
    wait_ms: float | None = None
    """Time in which its device waits for them, also after the step's mark; None where these or it have no trace."""


@dataclass(slots=True)
class RankReport:
    """The part of a step report that is about one rank."""

    rank: int
    step_ms: float = 0.0
    mark_ms: float | None = None
    """How long the mark of its step is, where the step is from one end of the device's work to the next."""
    start_ms: float = 0.0
    """After the first rank's start."""
    stands_for: int = 1
    """How many ranks do the same, this one included."""
    device_span_ms: float = 0.0
    device_active_ms: float = 0.0
    device_idle_ms: float = 0.0
    """The rest of its step."""
    idle: list[IdleRow] = field(default_factory=list)
    """What its device idles for, the longest first."""
    bound: str | None = None
    """What limits it: host, device, or queue: launched work that does not start. None where no device worked."""
    kernel_ms: float = 0.0
    """Sum of kernel times."""
    host_ms: float = 0.0
    """In which its threads work: they neither wait for the device nor for each other."""
    wait_ms: float | None = 0.0
    """Time in collectives before the last of their ranks has arrived; None where these have no trace."""
    communication: Communication = field(default_factory=Communication)
    bubble_ms: float = 0.0
    """What of the job's device span its device neither computes nor transfers."""
    overheads: dict[str, HostOverhead] = field(default_factory=dict)
    queue_depth: QueueDepth = field(default_factory=QueueDepth)
    peak_memory_bytes: int | None = None
    launched_before_ms: float = 0.0
    """Device time whose launch came before the trace began; of a predicted rank, before its step."""
    unrecorded_launches: int = 0
    """Its launches where the source has no kernel at all of it."""

    @property
    def on_device(self) -> bool:
        """Whether anything is recorded or predicted of a device."""
        return self.device_active_ms > 0 or self.device_idle_ms > 0


@dataclass(frozen=True, slots=True)
class LimitingRank:
    """The rank that waits least for others: what limits it limits them, for to wait in a kernel is no device work."""

    rank: int
    idle_share: float
    """Of its step, in which its device idles."""


def waits_least(ranks: list[RankReport]) -> int | None:
    """The place of the rank that waits least for others; None for one alone, and where not all waits are known.

    >>> waits_least([RankReport(0, wait_ms=5.0), RankReport(1, wait_ms=0.5)]), waits_least([RankReport(0)])
    (1, None)
    """
    waits = [rank.wait_ms for rank in ranks if rank.wait_ms is not None]
    return waits.index(min(waits)) if len(ranks) == len(waits) > 1 and max(waits) > 0 else None


@dataclass(frozen=True, slots=True)
class IterationRow:
    """What comes again and again in a trace that marks no steps."""

    name: str
    """Of the annotations or functions; empty for launches that no annotation is around."""
    count: int
    ms: float
    """From one to the next, the median."""


@dataclass(slots=True)
class Unprofiled:
    """Medians over the steps that a recording timed with nothing attached."""

    synced_ms: float | None = None
    back_to_back_ms: float | None = None
    peak_memory_bytes: int | None = None


@dataclass
class StepReport(NotebookDocument):
    """Where the time of a step goes. What only measured or only predicted steps know is None or empty in the others.

    >>> StepReport(source="train.py", platform="h200", step_ms=5.61234).to_dict()["step_ms"]
    5.6123
    """

    source: str = ""
    world: int = 1
    platform: str | None = None
    """Where the step was predicted; None for a measured one."""
    fabric: str | None = None
    """What joins the ranks of a predicted job."""
    stack: str | None = None
    """The software stack that a forecast is for, where it is not the platform's own."""
    missing: list[int] = field(default_factory=list)
    """Ranks of the job without a trace."""
    step: str | None = None
    """Name of the measured step; None where the source marks no steps, and all of it is shown."""
    steps: int = 0
    """How many steps the source holds."""
    iterations: IterationRow | None = None
    """What comes again in a source that marks no steps, all of which is taken as one."""
    step_ms: float = 0.0
    """Measured: of the slowest rank. Predicted: with a device sync at its end, from the first rank's start to the
    last rank's end."""
    mark_ms: float | None = None
    """How long the step's mark on the host is, where the host runs ahead: the step is then from the end of the device's
    work of the step before to the end of its own. None where it is as long as its mark."""
    step_ms_back_to_back: float | None = None
    """From the end of one step to the end of the next, where the host may run ahead."""
    span_ms: float | None = None
    """Of a job predicted on its own machine, from the first rank's start to the last one's end."""
    profiling_ms: float | None = None
    """How much of a step predicted on its own machine may be what the profiler adds to the host's time, where no
    unprofiled step was timed: all in which no device works, but for what has another cause by name, as data loading."""
    samples: int | None = None
    """Training samples in a step of all ranks, where known."""
    low_ms: float = 0.0
    """10th percentile of the synced step, from the spread of the host and the errors of the kernel models."""
    high_ms: float = 0.0
    """90th percentile."""
    device_active_ms: float = 0.0
    """Time in which at least one kernel, copy or collective runs; the mean over the ranks, as all below."""
    device_idle_ms: float = 0.0
    """The rest of the step."""
    device_span_ms: float = 0.0
    """From the first kernel's start to the last one's end, over all ranks."""
    idle_causes: dict[str, float] = field(default_factory=dict)
    """What the device idles for, in milliseconds: the causes of `IdleRow`."""
    idle: list[IdleRow] = field(default_factory=list)
    """The same by cause and name, the longest first."""
    carried: list[IdleRow] = field(default_factory=list)
    """Of a prediction, measured host time that no model covers and that was carried over; shares are of all of it."""
    bound: str | None = None
    """What limits the step: host, device, or queue: launched work that does not start. None where no device worked."""
    limiting: LimitingRank | None = None
    """Of several ranks, the one whose limit that is; None for one, and where it is unknown who waits."""
    kernel_ms: float = 0.0
    """Sum of kernel times."""
    kernels: int = 0
    """How many a predicted step launches."""
    unrecorded_launches: int = 0
    """Launches of a step of which the source has no kernel at all, on any rank."""
    exposed_communication_ms: float = 0.0
    """Collectives that no other device work overlaps."""
    hidden_communication_ms: float = 0.0
    peak_memory_bytes: int | None = None
    """Allocated, of the fullest rank."""
    reserved_memory_bytes: int | None = None
    """What PyTorch's allocator reserves there from the first step on: ``torch.cuda.max_memory_reserved``."""
    memory_by_kind: dict[str, int] = field(default_factory=dict)
    """Bytes that its process takes at the most, by what they are for: weights, gradients, …, CUDA context."""
    memory_bytes: int = 0
    """What the device has."""
    memory_verdict: str | None = None
    """``fits``, ``tight`` (within the error of the prediction) or ``does not fit``."""
    memory_margin_bytes: int | None = None
    """What is left of the device's memory; negative: what is missing."""
    to_fit: list[str] = field(default_factory=list)
    """Where it does not fit: the smallest changes with which it would, each alone."""
    fits: bool | None = None
    tflops: float | None = None
    """Arithmetic of the step's GEMMs, convolutions and attention, in 10^12 operations."""
    tflops_per_second: float | None = None
    """The same per second of the step."""
    mfu: float | None = None
    """Model FLOP utilisation: what the arithmetic would take at the device's peak rates, as a share of the step."""
    gigabytes: float | None = None
    """The fewest bytes that the step's kernels must move."""
    gbps: float | None = None
    """The same per second of the device's active time."""
    power_w: float | None = None
    """What a GPU draws while steps are repeated."""
    sustained_ms: float | None = None
    """From step to step while they are repeated: longer than `period_ms` where they would draw more than the limit."""
    energy_j: float | None = None
    """Of a step, all GPUs together; then its 10th and 90th percentile."""
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    price_of_1000: float | None = None
    """Of 1,000 steps, all GPUs together, where the price of an hour is given."""
    coverage: dict[str, float] = field(default_factory=dict)
    """Share of the device time that is measured, modelled (model), modelled beyond what the model knows (extrapolated),
    a roofline (fallback), or of a size that a sketch assumed (assumed)."""
    attributed: float = 1.0
    """Share of the measured device time that is attributed to an op."""
    critical_path_ms: float = 0.0
    critical_path: list[PathRow] = field(default_factory=list)
    """Largest first."""
    critical_path_ranks: dict[int, float] = field(default_factory=dict)
    """Milliseconds of it on each rank that it touches."""
    ranks: list[RankReport] = field(default_factory=list)
    waits_for: list[PairWait] = field(default_factory=list)
    """Which rank waits for which, the longest first."""
    stragglers: list[Straggler] = field(default_factory=list)
    straggler_gain_ms: float | None = None
    """How much sooner the other ranks would be done if they waited for none of them; None where unknown."""
    collectives: list[CollectiveRow] = field(default_factory=list)
    transfer_ms: dict[str, float] = field(default_factory=dict)
    """For each kind of collective, total time from last start to last end."""
    look_at: list[HotOp] = field(default_factory=list)
    """The ten ops that hold the step up most."""
    overheads: dict[str, HostOverhead] = field(default_factory=dict)
    """T1 to T5, the mean over the ranks."""
    queue_depth: QueueDepth = field(default_factory=QueueDepth)
    """Mean over time and ranks, and the most."""
    by_op: list[TimeRow] = field(default_factory=list)
    by_family: list[TimeRow] = field(default_factory=list)
    by_phase: list[TimeRow] = field(default_factory=list)
    by_module: list[TimeRow] = field(default_factory=list)
    unprofiled: Unprofiled | None = None
    """What a recording timed with nothing attached."""
    profiling_overhead: float = 1.0
    """How many times as long the profiled step took as an unprofiled one."""
    notes: list[str] = field(default_factory=list)
    workings: Workings | None = field(default=None, repr=False)
    """The tasks and graphs it was read off, for drawing; not part of the JSON."""

    @property
    def predicted(self) -> bool:
        """Whether the step was predicted, not measured."""
        return self.platform is not None

    @property
    def timed(self) -> bool:
        """Whether anything says when it ran: an execution trace alone does not."""
        return self.predicted or any(rank.step_ms for rank in self.ranks)

    @property
    def cautions(self) -> list[str]:
        """The notes that say that the step may be another one than would run: part of every headline.

        >>> StepReport(notes=["the step has no backward: train.py:3", "ranks are alike"]).cautions
        ['the step has no backward: train.py:3']
        """
        return cautions(self.notes)

    @property
    def sample_us(self) -> float | None:
        """Microseconds for each training sample, from step to step.

        >>> StepReport(step_ms=8.0, step_ms_back_to_back=6.0, samples=4).sample_us
        1500.0
        """
        return (self.step_ms_back_to_back or self.step_ms) * 1e3 / self.samples if self.samples else None

    @property
    def device_ranks(self) -> list[RankReport]:
        """The ranks of whose devices something is known; all where nothing is.

        >>> report = StepReport(ranks=[RankReport(0, device_active_ms=1.0), RankReport(1)])
        >>> [rank.rank for rank in report.device_ranks]
        [0]
        """
        return [rank for rank in self.ranks if rank.on_device] or self.ranks

    def rank(self, number: int) -> RankReport:
        """The report of a rank."""
        return next(rank for rank in self.ranks if rank.rank == number)

    def by_rank(self, name: str) -> dict[int, Any]:
        """A field of each rank's report.

        >>> StepReport(ranks=[RankReport(0, wait_ms=1.5), RankReport(3, wait_ms=0.5)]).by_rank("wait_ms")
        {0: 1.5, 3: 0.5}
        """
        return {rank.rank: getattr(rank, name) for rank in self.ranks}

    @property
    def period_ms(self) -> float:
        """From the end of a step to that of the next; as long as a step where that is not known.

        >>> StepReport(step_ms=5.4, step_ms_back_to_back=4.7).period_ms
        4.7
        """
        return self.step_ms if self.step_ms_back_to_back is None else self.step_ms_back_to_back

    def keep_draw_of(self, burst: StepReport) -> None:
        """Take over the draw of the same step, which this one does at the clock that keeps it within the limit."""
        self.power_w, self.sustained_ms = burst.power_w, self.period_ms
        if burst.energy_j and burst.sustained_ms and burst.energy_low_j and burst.energy_high_j:
            longer = self.period_ms / burst.sustained_ms
            self.energy_j, self.energy_low_j, self.energy_high_j = (
                joules * longer for joules in (burst.energy_j, burst.energy_low_j, burst.energy_high_j)
            )
        if burst.mfu and burst.tflops_per_second and self.tflops_per_second:
            self.mfu = burst.mfu * self.tflops_per_second / burst.tflops_per_second

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``foretrace predict --json`` and ``foretrace show --json``."""
        from foretrace.analysis.report_fields import measured_fields, predicted_fields  # tables do without

        document: dict[str, Any] = plain(predicted_fields(self) if self.predicted else measured_fields(self))
        return document


def idle_by_cause(rows: list[IdleRow]) -> dict[str, float]:
    """Idle milliseconds by cause, the longest first.

    >>> idle_by_cause([IdleRow("T2", "aten::mm", 2.0, 0.5), IdleRow("T1", "", 1.0, 0.25), IdleRow("T2", "", 1.0, 0.25)])
    {'T2': 3.0, 'T1': 1.0}
    """
    causes: dict[str, float] = {}
    for row in rows:
        causes[row.cause] = causes.get(row.cause, 0.0) + row.ms
    return dict(sorted(causes.items(), key=lambda item: -item[1]))


def bound_by(step_ms: float, idle_ms: float, causes: dict[str, float], host_ms: float = 0.0) -> str | None:
    """What limits a step: the device; else the host; or a queue, where most of what the device idles for was launched.
    None where nothing is recorded of the host during most of it, and the device idles for more than a little.

    A host that works longer than the device does, and keeps it waiting, limits the step however little that is.

    >>> bound_by(10.0, 1.0, {}), bound_by(10.0, 6.0, {"T1": 6.0}), bound_by(10.0, 6.0, {"queued": 6.0})
    ('device', 'host', 'queue')
    >>> bound_by(10.0, 1.7, {"T2": 1.7}, host_ms=9.9), bound_by(10.0, 1.7, {"T2": 1.7}, host_ms=7.0)
    ('host', 'device')
    >>> bound_by(10.0, 2.0, {"no event": 2.0}), bound_by(10.0, 0.5, {"no event": 0.5})
    (None, 'device')
    """
    if idle_ms > BARELY_IDLE * step_ms and causes.get(NO_EVENT, 0.0) > idle_ms / 2:
        return None
    launched = causes.get(QUEUED, 0.0) + causes.get(LATENCY, 0.0) > idle_ms / 2
    keeps_waiting = not launched and idle_ms > BARELY_IDLE * step_ms and host_ms > step_ms - idle_ms
    if idle_ms <= HOST_BOUND * step_ms and not keeps_waiting:
        return "device"
    return "queue" if launched else "host"


def unrecorded_ms(rows: list[IdleRow], idle_ms: float) -> float:
    """Idle time before the first recorded device event, when the device may have done earlier work, where that is most
    of it; else 0.

    >>> rows = [IdleRow("queued", UNRECORDED, 6.0, 0.75), IdleRow("T1", "aten::mm", 2.0, 0.25)]
    >>> unrecorded_ms(rows, 8.0), unrecorded_ms(rows, 20.0)
    (6.0, 0.0)
    """
    spent = sum(row.ms for row in rows if row.name == UNRECORDED)
    return spent if spent > idle_ms / 2 else 0.0


def plain(value: Any) -> Any:
    """The value in JSON's types: records as dicts, keys as text, numbers rounded to four places.

    >>> plain({0: (12.34567, None)}), plain(QueueDepth(0.51234, 3))
    ({'0': [12.3457, None]}, {'mean': 0.5123, 'max': 3})
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    return round(value, 4) if isinstance(value, float) else value


class Legs(NamedTuple):
    """The critical path in time order: on which rank, on a thread or on a stream, from when to when."""

    rank: Ints
    """Position among the graphs."""
    on_device: NDArray[np.bool_]
    lane: Ints
    """The thread; on the device, the stream."""
    start: Floats
    end: Floats


@dataclass(frozen=True, eq=False)
class Workings:
    """The tasks, graphs and samples behind a report, in rank order, for timelines and charts; not part of its JSON."""

    tasks: TaskGraph
    timeline: Timeline
    path: CriticalPath
    graphs: list[Graph]
    segments: list[Segments]
    device: Device | None = None
    """What the step runs on, where its description is known."""
    sources: list[Small] = field(default_factory=list)
    """Of a prediction, for each rank, how the time of each kernel is known: the codes of
    `foretrace.prediction.device_work`."""
    kernel_ranges: list[tuple[Floats, Floats]] = field(default_factory=list)
    """Of a prediction, for each rank, the 10th and the 90th percentile of each kernel's microseconds; none where
    kernels were measured."""
    samples_ms: Floats = field(default_factory=lambda: np.zeros(0))
    """Step times of a prediction with durations drawn anew for each sample."""
    collectives: list[CollectiveTimes] = field(default_factory=list)
    """Of a simulated job, when its ranks arrive at collectives, sends and receives among them."""
    job: Job | None = None
    """The job as it was read."""
    step: str | None = None
    """Which of its steps, where one was named."""

    def legs(self) -> Legs:
        """Where the critical path runs."""
        rank, row = self.tasks.rank[self.path.task], self.tasks.row[self.path.task]
        on_device = ~self.tasks.on_host[self.path.task]
        lane = np.zeros(len(row), np.int32)
        for position, (graph, segments) in enumerate(zip(self.graphs, self.segments)):
            here = rank == position
            lane[here & on_device] = graph.kernels.stream[row[here & on_device]]
            lane[here & ~on_device] = segments.thread[row[here & ~on_device]]
        return Legs(rank, on_device, lane, self.path.start, self.path.end)

    def memory(self) -> list[tuple[int, MemoryCurve]]:
        """What each rank's device holds over the step, where its source says."""
        if self.job is None:
            return []
        step = chosen_step(self.job, self.step)
        from foretrace.analysis.memory import memory_over

        curves = ((g.rank, memory_over(whole, g, step)) for whole, g in zip(self.job.graphs, self.graphs))
        return [(rank, curve) for rank, curve in curves if curve is not None]

    def memory_by_kind(self, rank: int) -> dict[str, MemoryCurve]:
        """What the device of one rank holds over the step, by what for; empty where its source does not say."""
        if self.job is None:
            return {}
        from foretrace.analysis.memory import memory_by_kind

        pairs = zip(self.job.graphs, self.graphs)
        whole, shown = next(pair for pair in pairs if pair[1].rank == rank)
        return memory_by_kind(whole, shown, chosen_step(self.job, self.step))
