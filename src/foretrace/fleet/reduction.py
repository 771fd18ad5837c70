"""Reducing a step's report, measured or predicted, to the record that a fleet's store holds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from foretrace.analysis.breakdown import NO_OP, kernel_family
from foretrace.analysis.report import StepReport, Workings, bound_by
from foretrace.cost_models.kernels.roofline import Work
from foretrace.errors import ForetraceError
from foretrace.fleet.parts import parts_of
from foretrace.fleet.record import CollectiveGroup, KernelGroup, NamedMs, StepRecord, packed_call
from foretrace.fleet.response import COMPONENTS, StepResponse, balanced_ms, kernel_families, step_response
from foretrace.graph import PHASES, Graph, Job, Op
from foretrace.graph.calls import dispatched, enclosing_calls
from foretrace.graph.op import GENERATED_KERNELS
from foretrace.graph.tables import Ints
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
"""Ops with most host time: by them the hosts of recordings are compared."""
REST = "(others)"
COMPILED = ("triton_", *GENERATED_KERNELS)
FIRST_CLOCK_NS = 1_400_000_000_000_000_000
"""Wall clocks of traces are after 2014; smaller numbers count from a machine's start."""


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
    kernels, group = _groups(graphs, weights, device)
    kernel_ms = sum(group.ms for group in kernels)
    active_ms = report.device_active_ms
    idle_ms, idle = _idle(report, step_ms)
    fused_ms, fused_launches = _fusible(graphs[0])
    memory_bytes = (report.unprofiled.peak_memory_bytes if report.unprofiled else None) or report.peak_memory_bytes or 0
    busy = min(active_ms / kernel_ms, 1.0) if kernel_ms else 1.0
    return StepRecord(
        made=_made(job),
        measured=not report.predicted,
        clean=report.predicted or timed is not None,
        device=graphs[0].device or (device.matches if device else ""),
        world=report.world,
        dtype=_largest((group.dtype, group.ms) for group in kernels if group.dtype),
        step_ms=step_ms,
        active_ms=active_ms,
        idle_ms=idle_ms,
        kernel_ms=kernel_ms,
        bound=(bound_by(step_ms, idle_ms, idle) or "") if active_ms else "",
        exposed_ms=report.exposed_communication_ms,
        hidden_ms=report.hidden_communication_ms,
        wait_ms=float(np.mean([rank.wait_ms or 0.0 for rank in report.ranks])) if report.ranks else 0.0,
        balanced_ms=_balanced_ms(report, workings, step_ms),
        memory_bytes=memory_bytes,
        tflop=sum(group.gflop for group in kernels) / 1e3,
        mfu=sum(group.least_ms for group in kernels if group.gflop) / step_ms if step_ms else 0.0,
        gbps=sum(group.mbytes for group in kernels) / active_ms if active_ms else 0.0,
        compiled=sum(group.ms for group in kernels if _is_compiled(group)) / kernel_ms if kernel_ms else 0.0,
        launches=sum(group.count for group in kernels),
        fused_ms=fused_ms,
        fused_launches=fused_launches,
        kernels=kernels,
        collectives=_collective_groups(report),
        idle=_named(idle),
        overheads=[NamedMs(name, row.ms * host, row.count) for name, row in report.overheads.items()],
        host_ops=_host_ops(report, host),
        path=_named(_by_kind(report)),
        response=[list(map(float, row)) for row in response.paths],
        parts=parts_of(workings, group, host, busy, memory_bytes) if report.world == 1 else [],
        notes=[note[:200] for note in report.notes[:8]],
    )


def _idle(report: StepReport, step_ms: float) -> tuple[float, dict[str, float]]:
    """What the device idles in a step of this length, and by cause: each as much shorter as all of it."""
    if not report.device_active_ms:
        return 0.0, {}
    idle_ms = max(step_ms - report.device_active_ms, 0.0)
    shrunk = idle_ms / report.device_idle_ms if report.device_idle_ms else 0.0
    return idle_ms, {cause: ms * shrunk for cause, ms in report.idle_causes.items() if ms > 0}


def _balanced_ms(report: StepReport, workings: Workings, step_ms: float) -> float:
    """The step if all ranks were equally fast; 0 for one rank."""
    balanced = balanced_ms(workings)
    if balanced is None or not report.step_ms:
        return 0.0
    return step_ms * min(balanced / (workings.timeline.span / 1e3 or 1.0), 1.0)


def _is_compiled(group: KernelGroup) -> bool:
    return group.family == "compiled" or group.op.startswith(COMPILED)


def _host_ops(report: StepReport, host: float) -> list[NamedMs]:
    """The ops with most host time, as they take on a host that is not profiled."""
    largest = sorted(report.by_op, key=lambda row: -row.host_ms)[:MAX_HOST_OPS]
    return [NamedMs(row.name, row.host_ms * host, row.count) for row in largest if row.host_ms]


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
        into[1] += row.total_transfer_ms or 0.0
        into[2] += (row.wait_ms or 0.0) / ranks
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


def _groups(graphs: list[Graph], weights: list[int], device: Device | None) -> tuple[list[KernelGroup], Ints]:
    """Device time by phase, family, op, dtype and size, the largest first: the mean over ranks.

    Also the group of each kernel of the last rank.
    """
    sums: dict[Key, _Sum] = defaultdict(_Sum)
    keys: list[Key] = []
    for graph, weight in zip(graphs, weights):
        keys = _add_rank(sums, graph, weight / sum(weights), device)
    ordered = sorted(sums.items(), key=lambda item: (-item[1].ms, item[0]))
    groups = [_group(key, one) for key, one in ordered[:MAX_GROUPS]]
    rest: dict[Key, _Sum] = defaultdict(_Sum)
    for (phase, family, *_), one in ordered[MAX_GROUPS:]:
        into = rest[phase, family, REST, "", -1, -1]
        into.ms, into.count, into.flops = into.ms + one.ms, into.count + one.count, into.flops + one.flops
        into.nbytes, into.least_us = into.nbytes + one.nbytes, into.least_us + one.least_us
    groups = _with_calls(groups, [one.op for _, one in ordered]) + [_group(key, one) for key, one in rest.items()]
    place = {key: at for at, (key, _) in enumerate(ordered[:MAX_GROUPS])}
    others = {key[:2]: MAX_GROUPS + at for at, key in enumerate(rest)}
    return groups, np.array([place[key] if key in place else others[key[:2]] for key in keys], np.int32)


def _add_rank(sums: dict[Key, _Sum], graph: Graph, weight: float, device: Device | None) -> list[Key]:
    """Add the kernels of one rank, those of a call together; answers with the key of each kernel."""
    kernels, rows = graph.kernels, dispatched(graph)
    if not len(kernels):
        return []
    call = enclosing_calls(graph, rows)[kernels.op]
    families = kernel_families(graph)
    places, which = np.unique(call.astype(np.int64) * len(COMPONENTS) + families, return_inverse=True)
    us = np.bincount(which, kernels.end - kernels.start)
    counts = np.bincount(which)
    ops = {row: graph.ops[row] for row in rows[np.unique(call[call >= 0])].tolist()}
    done = _works(graph, ops, device)
    whole = np.bincount(call[call >= 0], (kernels.end - kernels.start)[call >= 0], len(rows))
    keys: list[Key] = []
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
        keys.append(key)
        into = sums[key]
        share = spent / float(whole[position]) if op and whole[position] else 0.0
        into.add(spent / 1e3 * weight, count * weight, share * weight, work, device)
        if op and spent > into.longest:
            into.longest, into.op = spent, op
    return [keys[place] for place in which.tolist()]


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
