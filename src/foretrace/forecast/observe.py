"""Look at a measured step: the way from a job to an observation."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from foretrace.forecast.collectives import Meetings, meetings
from foretrace.forecast.critical import describe
from foretrace.forecast.device import active_and_idle, overlap, queue_depth
from foretrace.forecast.host import OVERHEADS, Segments, host_segments
from foretrace.forecast.measured import measured
from foretrace.forecast.memory import peak_memory
from foretrace.forecast.observation import Observation
from foretrace.forecast.ranks import device_span, wait_ms
from foretrace.forecast.steps import chosen_step, cut_to_step
from foretrace.forecast.stragglers import stragglers
from foretrace.forecast.totals import by_family, by_module, by_op, by_phase
from foretrace.forecast.workings import Workings
from foretrace.graph import Graph, Job
from foretrace.platform.device import Device


def observe(job: Job | Graph, step: str | None = None) -> Observation:
    """What a measured step took and why; without ``step``, the one of median length. A graph is a job of one rank.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=800.0), Op("aten::relu", start_us=900.0, end_us=1500.0)])
    >>> seen = observe(Job([Graph(ops)]))
    >>> seen.step_ms[0], seen.overheads["T1"]["ms"], seen.critical_path_ms
    (1.5, 0.1, 1.5)
    """
    job = Job([job]) if isinstance(job, Graph) else job
    name = chosen_step(job, step)
    cuts = [cut_to_step(graph, name) for graph in job.graphs]
    graphs, with_earlier = [cut for cut, _ in cuts], [whole for _, whole in cuts]
    segments = [host_segments(graph) for graph in graphs]
    met, doubts = meetings(graphs)
    tasks = measured(with_earlier, segments, met)
    path = describe(tasks, with_earlier, segments)
    seen = Observation(
        source=job.source,
        world=job.world,
        missing=job.missing,
        step=name,
        steps=len(job.graphs[0].steps) if job.graphs else 0,
        step_ms={graph.rank: _step_ms(graph, name) for graph in graphs},
        critical_path_ms=path.ms,
        critical_path=path.parts,
        critical_path_ranks=path.by_rank,
        by_op=by_op(graphs, segments),
        by_family=by_family(graphs, segments),
        by_phase=by_phase(graphs, segments),
        by_module=by_module(graphs, segments),
        attributed=_attributed(job.graphs),
        launched_before_ms={graph.rank: graph.launched_before_us / 1e3 for graph in job.graphs},
        notes=list(dict.fromkeys([*job.notes, *(note for graph in job.graphs for note in graph.notes), *doubts])),
        slowdown=max((graph.slowdown for graph in graphs), default=1.0),
        plain=_plain(job.graphs),
        workings=Workings(tasks, with_earlier, segments, _device(graphs), job=job, step=name),
    )
    _add_host(seen, graphs, segments)
    _add_device(seen, graphs, job.graphs)
    _add_communication(seen, graphs, met)
    return seen


def _device(graphs: list[Graph]) -> Device | None:
    """What all ranks ran on, where its maker's description is at hand."""
    names = {graph.device for graph in graphs}
    return Device.matching(names.pop()) if len(names) == 1 else None


def _step_ms(graph: Graph, step: str | None) -> float:
    """Length of the step; where none is marked, from the first event to the last."""
    marked = [span.ms for span in graph.steps if span.name == step]
    if marked:
        return marked[0]
    tables = [table for table in (graph.ops, graph.calls, graph.kernels) if np.isfinite(table.start).any()]
    if not tables:
        return 0.0
    return float(max(np.nanmax(t.end) for t in tables) - min(np.nanmin(t.start) for t in tables)) / 1e3


def _attributed(graphs: list[Graph]) -> float:
    launched = owned = 0.0
    for graph in graphs:
        time, known = graph.kernels.end - graph.kernels.start, graph.kernels.call >= 0
        launched += float(time[known].sum())
        owned += float(time[known & (graph.kernels.op >= 0)].sum())
    return owned / launched if launched else 1.0


def _plain(graphs: list[Graph]) -> dict[str, float | None]:
    """Medians over the steps of the slowest rank, and the most memory that a rank took."""
    synced = [float(np.median(graph.plain.synced_ms)) for graph in graphs if graph.plain.synced_ms]
    back_to_back = [float(np.median(graph.plain.back_to_back_ms)) for graph in graphs if graph.plain.back_to_back_ms]
    if not synced and not back_to_back:
        return {}
    return {
        "synced_ms": max(synced, default=None),
        "back_to_back_ms": max(back_to_back, default=None),
        "peak_memory_bytes": max((g.plain.peak_memory_bytes or 0 for g in graphs), default=0) or None,
    }


def _add_host(seen: Observation, graphs: list[Graph], segments: list[Segments]) -> None:
    each = []
    for graph, cut in zip(graphs, segments):
        each.append(_sums(cut))
        seen.ranks[graph.rank] = {"overheads": _overheads(*each[-1])}
    if each:
        seen.overheads = _overheads(*(np.mean(column, axis=0) for column in zip(*each)))


def overheads(segments: Segments) -> dict[str, dict[str, float]]:
    """T1 to T5 of a rank's host time: ms, count, mean_us and share.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=800.0)])
    >>> overheads(host_segments(Graph(ops)))["T2"]["ms"]
    0.8
    """
    return _overheads(*_sums(segments))


def _sums(segments: Segments) -> tuple[Any, Any]:
    kinds = len(OVERHEADS)
    us = np.bincount(segments.kind, segments.duration, kinds + 1)
    return us[:kinds], np.bincount(segments.kind, minlength=kinds + 1)[:kinds]


def _overheads(us: Any, count: Any) -> dict[str, dict[str, float]]:
    host = float(us.sum())
    return {
        name: {
            "ms": float(time) / 1e3,
            "count": float(n),
            "mean_us": float(time / n) if n else 0.0,
            "share": float(time) / host if host else 0.0,
        }
        for name, time, n in zip(OVERHEADS, us, count)
    }


def _add_device(seen: Observation, graphs: list[Graph], uncut: list[Graph]) -> None:
    depths = []
    for graph, whole in zip(graphs, uncut):
        kernels = graph.kernels
        active, idle = active_and_idle(graph)
        seen.device_active_ms[graph.rank], seen.device_idle_ms[graph.rank] = active / 1e3, idle / 1e3
        seen.kernel_ms[graph.rank] = float((kernels.end - kernels.start).sum()) / 1e3
        depths.append(queue_depth(graph))
        seen.ranks[graph.rank]["queue_depth"] = dict(zip(("mean", "max"), depths[-1]))
        # Storages live by the numbers of the uncut graph's ops.
        seen.peak_memory_bytes[graph.rank] = peak_memory(graph if graph.allocated else whole)
    seen.device_span_ms = device_span(graphs)
    if depths:
        seen.queue_depth = {"mean": sum(d for d, _ in depths) / len(depths), "max": max(m for _, m in depths)}


def _add_communication(seen: Observation, graphs: list[Graph], met: list[Meetings]) -> None:
    seen.wait_ms = wait_ms(graphs, met)
    alike: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for group in met:
        columns = (group.kinds, group.nbytes.tolist(), group.transfer.tolist(), group.wait.sum(axis=1).tolist())
        for kind, nbytes, transfer, wait in zip(*columns):
            alike[kind, nbytes].append((transfer / 1e3, wait / 1e3))
    for (kind, nbytes), times in alike.items():
        transfers, waits = zip(*times)
        seen.transfer_ms[kind] = seen.transfer_ms.get(kind, 0.0) + sum(transfers)
        seen.collectives.append({
            "kind": kind, "nbytes": nbytes, "count": len(times), "transfer_ms": float(np.median(transfers)),
            "total_transfer_ms": sum(transfers), "wait_ms": sum(waits),
        })  # fmt: skip
    seen.collectives.sort(key=lambda row: -row["total_transfer_ms"])
    seen.overlap = {graph.rank: overlap(graph, position, met) for position, graph in enumerate(graphs)}
    seen.stragglers = stragglers(graphs, met, max(seen.step_ms.values(), default=0.0))
    seen.notes += _lonely(graphs, met)


def _lonely(graphs: list[Graph], met: list[Meetings]) -> list[str]:
    alone = sorted({graphs[group.members[0]].rank for group in met if len(group) and len(group.members) == 1})
    if not alone or max(graph.world for graph in graphs) == 1:
        return []
    ranks = ", ".join(map(str, alone))
    return [f"rank {ranks}: no other member of its group has a trace: its transfer is wait and transfer together"]
