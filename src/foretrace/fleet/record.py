"""What a fleet's store holds of a recording: a few kilobytes, enough to answer every question about the fleet.

Device time by kernel family and op with shape buckets, host overheads, idle causes, communication by kind and size,
memory, utilisation, and the step's response to faster or slower parts.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from foretrace.analysis.breakdown import NO_OP, kernel_family
from foretrace.analysis.report import StepReport, TimeRow, bound_by
from foretrace.cost_models.kernels.roofline import Work
from foretrace.errors import ForetraceError
from foretrace.fleet.response import COMPONENTS, StepResponse, balanced_ms, kernel_families, step_response
from foretrace.graph import PHASES, Graph, Job, Op
from foretrace.graph.calls import dispatched, enclosing_calls
from foretrace.graph.codec import op_of, to_lines
from foretrace.graph.op import GENERATED_KERNELS
from foretrace.platform.device import Device
from foretrace.prediction.rates import works
from foretrace.transforms.fusion.elementwise import ALSO_POINTWISE, elementwise_chains

MAX_GROUPS = 72
"""Rows of device time of a recording; what is left is one row for each phase and family."""
MAX_CALLS, CALL_CHARACTERS = 32, 400
"""Rows with a whole call, for pricing on other devices, and the length of its JSON."""
PRICED_SHARE = 0.98
"""Share of the device time that whole calls are kept for."""
MAX_HOST_OPS = 16
REST = "(others)"
COMPILED = ("triton_", *GENERATED_KERNELS)
FIRST_CLOCK_NS = 1_400_000_000_000_000_000
"""Wall clocks of traces are after 2014; smaller numbers count from a machine's start."""


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Device time of calls of one op in one phase whose sizes are alike: within a factor of two in bytes and FLOPs."""

    phase: str
    family: str
    op: str
    dtype: str
    shapes: str
    """Of the call among them that takes longest; empty where unknown."""
    ms: float
    count: int
    """Kernels."""
    gflop: float
    mbytes: float
    """The fewest that must be moved."""
    least_ms: float
    """At the device's peak rates; 0 where device or sizes are unknown."""
    call: str = ""
    """One of the calls, as a line of a recording; empty for most of the small ones."""


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """Collectives of one kind whose sizes are within a factor of two of each other."""

    kind: str
    log2_bytes: int
    count: int
    transfer_ms: float
    wait_ms: float


@dataclass(frozen=True, slots=True)
class NamedMs:
    """Milliseconds by name, and how often."""

    name: str
    ms: float
    count: float = 0.0


@dataclass
class StepRecord:
    """A recording, reduced. Times are milliseconds of one step, the mean over its ranks."""

    id: str = ""
    """Hash of the contents."""
    name: str = ""
    source: str = ""
    stamp: str = ""
    """Sizes and times of the files, so that what is there already is not read again."""
    made: str = ""
    """When the step ran, as ISO date; empty where unknown."""
    measured: bool = True
    """Whether its times were measured; else they were predicted."""
    clean: bool = True
    """Whether host times are those of unprofiled steps."""
    device: str = ""
    world: int = 1
    dtype: str = ""
    """That of most of the device time."""
    step_ms: float = 0.0
    active_ms: float = 0.0
    idle_ms: float = 0.0
    kernel_ms: float = 0.0
    bound: str = ""
    exposed_ms: float = 0.0
    hidden_ms: float = 0.0
    wait_ms: float = 0.0
    """In collectives, before the last rank has arrived."""
    balanced_ms: float = 0.0
    """The step if all ranks were equally fast; 0 for one rank."""
    memory_bytes: int = 0
    tflop: float = 0.0
    mfu: float = 0.0
    gbps: float = 0.0
    compiled: float = 0.0
    """Share of the device time in kernels that torch.compile generated."""
    launches: int = 0
    fused_ms: float = 0.0
    """Device time that goes away if chains of element-wise calls are one kernel each, as in a compiled step."""
    fused_launches: int = 0
    """Launches that go away with it."""
    kernels: list[KernelGroup] = field(default_factory=list)
    collectives: list[CollectiveGroup] = field(default_factory=list)
    idle: list[NamedMs] = field(default_factory=list)
    overheads: list[NamedMs] = field(default_factory=list)
    """T1 to T5."""
    host_ops: list[NamedMs] = field(default_factory=list)
    """The ops with most host time."""
    path: list[NamedMs] = field(default_factory=list)
    """The critical path by what it goes through."""
    response: list[list[float]] = field(default_factory=list)
    """Rows of `StepResponse`: milliseconds by `COMPONENTS`."""
    notes: list[str] = field(default_factory=list)
    job: str = ""
    team: str = ""
    model: str = ""
    cluster: str = ""
    gpu_hours: float | None = None
    labels: list[tuple[str, str]] = field(default_factory=list)
    """Others, by name."""
    revision: int = 0
    """How often its labels were changed."""

    @property
    def hours(self) -> float:
        """GPU hours that it stands for: one where no label says how many."""
        return 1.0 if self.gpu_hours is None else self.gpu_hours

    def to_report(self) -> StepReport:
        """What of a step's report is kept: enough to compare two steps."""
        whole = sum(group.ms for group in self.kernels) or 1.0
        rows: dict[str, dict[str, TimeRow]] = {"op": {}, "family": {}, "phase": {}}
        hosts = {row.name: row for row in self.host_ops}
        for group in self.kernels:
            for kind, name in (("op", group.op), ("family", group.family), ("phase", group.phase)):
                row = rows[kind].setdefault(name, TimeRow(name, 0.0, 0.0, 0, 0.0))
                row.device_ms, row.count, row.share = (
                    row.device_ms + group.ms, row.count + group.count, row.share + group.ms / whole,
                )  # fmt: skip
        for name, host in hosts.items():
            row = rows["op"].setdefault(name, TimeRow(name, 0.0, 0.0, round(host.count), 0.0))
            row.host_ms = host.ms
        return StepReport(
            source=self.name,
            world=self.world,
            step_ms=self.step_ms,
            device_active_ms=self.active_ms,
            device_idle_ms=self.idle_ms,
            idle_causes={row.name: row.ms for row in self.idle},
            by_op=list(rows["op"].values()),
            by_family=list(rows["family"].values()),
            by_phase=list(rows["phase"].values()),
        )


def reduce_step(report: StepReport, job: Job) -> StepRecord:
    """A step's report, measured or predicted, as a record.

    >>> from foretrace.analysis.measure import measure_step
    >>> from foretrace.graph import OpTable
    >>> ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=800.0), Op("aten::relu", start_us=900.0, end_us=1500.0)])
    >>> job = Job([Graph(ops)])
    >>> reduce_step(measure_step(job), job).step_ms
    1.5
    """
    workings = report.workings
    if workings is None or not workings.graphs:
        raise ForetraceError(f"{job.source} holds no step", "Record the job again.")
    graphs = workings.graphs
    device = workings.device or Device.closest(graphs[0].device)
    response = step_response(workings)
    timed = report.unprofiled.synced_ms if report.unprofiled else None
    host = response.host_factor(timed) if timed else 1.0
    step_ms = timed or report.step_ms
    response = _to_length(response.with_host(host), step_ms)
    weights = [rank.stands_for for rank in report.ranks] or [1] * len(graphs)
    kernels = _groups(graphs, weights, device)
    idle_ms = max(step_ms - report.device_active_ms, 0.0) if report.device_active_ms else 0.0
    shrunk = idle_ms / report.device_idle_ms if report.device_idle_ms else 0.0
    idle = {cause: ms * shrunk for cause, ms in report.idle_causes.items() if ms > 0}
    total = sum(group.ms for group in kernels)
    peak_ms = sum(group.least_ms for group in kernels if group.gflop)
    balanced = balanced_ms(workings)
    fused_ms, fused_launches = _fusible(graphs[0])
    return StepRecord(
        made=_made(job),
        measured=not report.predicted,
        clean=report.predicted or timed is not None,
        device=graphs[0].device or (device.matches if device else ""),
        world=report.world,
        dtype=_largest((group.dtype, group.ms) for group in kernels if group.dtype),
        step_ms=step_ms,
        active_ms=report.device_active_ms,
        idle_ms=idle_ms,
        kernel_ms=total,
        bound=(bound_by(step_ms, idle_ms, idle) or "") if report.device_active_ms else "",
        exposed_ms=report.exposed_communication_ms,
        hidden_ms=report.hidden_communication_ms,
        wait_ms=float(np.mean([rank.wait_ms for rank in report.ranks])) if report.ranks else 0.0,
        balanced_ms=0.0 if balanced is None or not report.step_ms else step_ms * min(balanced / _span(report), 1.0),
        memory_bytes=(report.unprofiled.peak_memory_bytes if report.unprofiled else None)
        or report.peak_memory_bytes
        or 0,
        tflop=sum(group.gflop for group in kernels) / 1e3,
        mfu=peak_ms / step_ms if step_ms else 0.0,
        gbps=sum(group.mbytes for group in kernels) / report.device_active_ms if report.device_active_ms else 0.0,
        compiled=sum(g.ms for g in kernels if g.family == "compiled" or g.op.startswith(COMPILED)) / total
        if total
        else 0.0,
        launches=sum(group.count for group in kernels),
        fused_ms=fused_ms,
        fused_launches=fused_launches,
        kernels=kernels,
        collectives=_collective_groups(report),
        idle=_named(idle),
        overheads=[NamedMs(name, row.ms * host, row.count) for name, row in report.overheads.items()],
        host_ops=[
            NamedMs(row.name, row.host_ms * host, row.count)
            for row in sorted(report.by_op, key=lambda row: -row.host_ms)[:MAX_HOST_OPS]
            if row.host_ms
        ],
        path=_named(_by_kind(report)),
        response=[list(map(float, row)) for row in response.paths],
        notes=[note[:200] for note in report.notes[:8]],
    )


def _span(report: StepReport) -> float:
    return report.workings.timeline.span / 1e3 if report.workings and report.workings.timeline.span else 1.0


def _to_length(response: StepResponse, step_ms: float) -> StepResponse:
    """The response of a step of this length: what its tasks do not explain is a gap, or left out of the gaps."""
    paths = response.paths.copy()
    if len(paths):
        paths[:, -1] += step_ms - response.ms()
    return StepResponse(np.round(paths, 4))


def _made(job: Job) -> str:
    """When the step ran, by the wall clock of its trace."""
    clock = max((graph.origin_ns for graph in job.graphs), default=0)
    if clock < FIRST_CLOCK_NS:
        return ""
    return datetime.fromtimestamp(clock / 1e9, UTC).strftime("%Y-%m-%d")


def _largest(pairs: Iterable[tuple[str, float]]) -> str:
    sums: dict[str, float] = defaultdict(float)
    for name, ms in pairs:
        sums[name] += ms
    return max(sums, key=lambda name: sums[name], default="")


def _named(ms: Mapping[str, float]) -> list[NamedMs]:
    return [NamedMs(name, spent) for name, spent in sorted(ms.items(), key=lambda item: (-item[1], item[0])) if spent]


def _by_kind(report: StepReport) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for row in report.critical_path:
        sums[row.what] += row.ms
    return sums


def _collective_groups(report: StepReport) -> list[CollectiveGroup]:
    sums: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    ranks = max(len(report.ranks), 1)
    for row in report.collectives:
        into = sums[row.kind, _log2(row.nbytes)]
        into[0] += row.count
        into[1] += row.total_transfer_ms
        into[2] += row.wait_ms / ranks
    return [CollectiveGroup(kind, size, int(n), ms, wait) for (kind, size), (n, ms, wait) in sorted(sums.items())]


def _log2(amount: float) -> int:
    """The power of two that an amount is nearest above; -1 for none."""
    return math.ceil(math.log2(amount)) if amount > 0 else -1


@dataclass(slots=True)
class _Sum:
    """Device time of a group as it is added up."""

    ms: float = 0.0
    count: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0
    least_us: float = 0.0
    longest: float = -1.0
    op: Op | None = None

    def add(self, ms: float, count: float, share: float, work: Work | None, device: Device | None) -> None:
        self.ms, self.count = self.ms + ms, self.count + count
        if work is not None:
            self.flops, self.nbytes = self.flops + work.flops * share, self.nbytes + work.bytes * share
            self.least_us += min(work.us(device) * share, ms * 1e3) if device else 0.0


Key = tuple[str, str, str, str, int, int]


def _groups(graphs: list[Graph], weights: list[int], device: Device | None) -> list[KernelGroup]:
    """Device time by phase, family, op, dtype and size, the largest first: the mean over ranks."""
    sums: dict[Key, _Sum] = defaultdict(_Sum)
    for graph, weight in zip(graphs, weights):
        _add_rank(sums, graph, weight / sum(weights), device)
    ordered = sorted(sums.items(), key=lambda item: (-item[1].ms, item[0]))
    groups = [_group(key, one) for key, one in ordered[:MAX_GROUPS]]
    rest: dict[Key, _Sum] = defaultdict(_Sum)
    for (phase, family, *_), one in ordered[MAX_GROUPS:]:
        into = rest[phase, family, REST, "", -1, -1]
        into.ms, into.count, into.flops = into.ms + one.ms, into.count + one.count, into.flops + one.flops
        into.nbytes, into.least_us = into.nbytes + one.nbytes, into.least_us + one.least_us
    return _with_calls(groups, [one.op for _, one in ordered]) + [_group(key, one) for key, one in rest.items()]


def _add_rank(sums: dict[Key, _Sum], graph: Graph, weight: float, device: Device | None) -> None:
    """Add the kernels of one rank, those of a call together."""
    kernels, rows = graph.kernels, dispatched(graph)
    if not len(kernels):
        return
    call = enclosing_calls(graph, rows)[kernels.op]
    families = kernel_families(graph)
    places, which = np.unique(call.astype(np.int64) * len(COMPONENTS) + families, return_inverse=True)
    us = np.bincount(which, kernels.end - kernels.start)
    counts = np.bincount(which)
    ops = {row: graph.ops[row] for row in rows[np.unique(call[call >= 0])].tolist()}
    done = _works(graph, ops, device)
    whole = np.bincount(call[call >= 0], (kernels.end - kernels.start)[call >= 0], len(rows))
    for place, spent, count in zip(places.tolist(), us.tolist(), counts.tolist()):
        position, family = divmod(place, len(COMPONENTS))
        row = int(rows[position]) if position >= 0 else -1
        op, work = ops.get(row), done.get(row)
        key = (
            PHASES[graph.ops.phase[row]] if op else "other",
            COMPONENTS[family],
            op.name if op else NO_OP,
            op.tensors[0].dtype if op and op.tensors else "",
            _log2(work.bytes) if work else -1,
            _log2(work.flops) if work else -1,
        )
        into = sums[key]
        share = spent / float(whole[position]) if op and whole[position] else 0.0
        into.add(spent / 1e3 * weight, count * weight, share * weight, work, device)
        if op and spent > into.longest:
            into.longest, into.op = spent, op


def _fusible(graph: Graph) -> tuple[float, int]:
    """Milliseconds and launches that fusing chains of element-wise calls would save, by the bytes that stay inside."""
    rows = dispatched(graph)
    call, kernels = enclosing_calls(graph, rows)[graph.kernels.op], graph.kernels
    owned = call >= 0
    us = np.bincount(call[owned], (kernels.end - kernels.start)[owned], len(rows))
    launching = np.flatnonzero(us > 0)
    ops = [graph.ops[int(rows[place])] for place in launching]
    if not ops or any(tensor.storage < 0 for op in ops for tensor in op.tensors):
        return 0.0, 0
    saved, gone = 0.0, 0
    for chain in elementwise_chains(ops, _is_elementwise):
        if len(chain.rows) < 2:
            continue
        inside = [ops[row] for row in chain.rows]
        sizes = {tensor.storage: tensor.nbytes for op in inside for tensor in (*op.tensors, *op.produced)}
        moved = sum(tensor.nbytes for op in inside for tensor in (*op.tensors, *op.produced))
        kept = sum(sizes[storage] for storage in chain.read) + inside[-1].produced[0].nbytes
        if moved > kept:
            saved += float(us[launching[chain.rows]].sum()) / 1e3 * (1 - kept / moved)
            gone += len(inside) - 1
    return saved, gone


def _is_elementwise(op: Op) -> bool:
    return op.name in ALSO_POINTWISE or kernel_family("", op.name) == "element-wise"


def _works(graph: Graph, ops: dict[int, Op], device: Device | None) -> dict[int, Work]:
    """What each call has to do, by its row, where its tensors are known."""
    if not any(op.tensors for op in ops.values()):
        return {}
    return {row: work for row, work, _ in works(graph, ops, device or Device.named("h200"), ops)}


def _group(key: Key, one: _Sum) -> KernelGroup:
    phase, family, name, dtype, *_ = key
    tensors = one.op.tensors[:4] if one.op else []
    return KernelGroup(
        phase=phase,
        family=family,
        op=name,
        dtype=dtype,
        shapes=", ".join("x".join(map(str, tensor.shape)) or "1" for tensor in tensors)[:60],
        ms=round(one.ms, 5),
        count=round(one.count),
        gflop=round(one.flops / 1e9, 4),
        mbytes=round(one.nbytes / 1e6, 4),
        least_ms=round(one.least_us / 1e3, 5),
    )


def _with_calls(groups: list[KernelGroup], ops: list[Op | None]) -> list[KernelGroup]:
    """The groups, the largest of them with one of their calls."""
    whole, covered = sum(group.ms for group in groups), 0.0
    for place, (group, op) in enumerate(zip(groups[:MAX_CALLS], ops)):
        if covered > PRICED_SHARE * whole:
            break
        covered += group.ms
        line = packed_call(op) if op and op.tensors else ""
        if len(line) <= CALL_CHARACTERS:
            groups[place] = replace(group, call=line)
    return groups


ON_DEVICE = "cuda:0"


def packed_call(op: Op) -> str:
    """A call as one short line, with nothing of its model but sizes: no ids, no module.

    >>> from foretrace.graph import Tensor
    >>> square = Tensor((64, 64), "float16", ON_DEVICE, (64, 1), id=7, storage=9)
    >>> packed_call(Op("aten::mm", (square, square), phase="forward"))
    '{"op":"aten::mm","args":[{"t":0},{"t":0}],"new":[["float16",[64,64],[64,1]]]}'
    >>> unpacked_call(packed_call(Op("aten::mm", (square, square)))).tensors[0].shape
    (64, 64)
    """
    bare = replace(op, module="", node="", frees=(), thread=0, stream=0, entered=0)
    line = json.loads(next(iter(to_lines([bare]))))
    del line["phase"]
    line["new"] = [
        [dtype, shape, stride, *([layout, device] if (layout, device) != ("strided", ON_DEVICE) else [])]
        for shape, dtype, device, stride, _, _, _, layout in line.get("new", ())
    ]
    return json.dumps(line, separators=(",", ":"))


def unpacked_call(text: str) -> Op:
    """The call that `packed_call` wrote; tensors have storages of their own."""
    line = json.loads(text)
    line["new"] = [
        [shape, dtype, more[1] if more else ON_DEVICE, stride, 0, number, number, more[0] if more else "strided"]
        for number, (dtype, shape, stride, *more) in enumerate(line["new"])
    ]
    return op_of({**line, "phase": "other"}, [])
