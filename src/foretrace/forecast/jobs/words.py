"""What a simulated job says, in the words of a forecast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from foretrace.forecast.collectives import Meetings
from foretrace.forecast.critical import LATENCY, describe
from foretrace.forecast.device import active_and_idle, overlap
from foretrace.forecast.forecast import Forecast
from foretrace.forecast.host import KINDS, Segments
from foretrace.forecast.host_exchange import without_lanes
from foretrace.forecast.jobs.look_at import job_look_at
from foretrace.forecast.jobs.meeting_times import meeting_times
from foretrace.forecast.jobs.rank import TRANSFERS_ARE, PricedRank
from foretrace.forecast.jobs.simulated import Simulated
from foretrace.forecast.measured import HOST
from foretrace.forecast.memory import peak_memory, workspaces
from foretrace.forecast.observe import overheads
from foretrace.forecast.predicted import idle_causes
from foretrace.forecast.ranks import device_span, rank_rows, wait_ms, who_waits
from foretrace.forecast.stragglers import stragglers
from foretrace.forecast.totals import by_family, by_module, by_op, by_phase
from foretrace.forecast.work import SOURCES
from foretrace.forecast.workings import Workings
from foretrace.graph import Graph, Job
from foretrace.platform.device import Device


def told(job: Job, done: Simulated, device: Device | None) -> Forecast:
    """What a simulated job says."""
    tasks = done.program.measured(done.timeline)
    path = describe(tasks, done.graphs, done.segments)
    forecast = Forecast(source=job.source, world=job.world, step_ms=done.timeline.span / 1e3)
    forecast.coverage = _coverage(done)
    forecast.critical_path, forecast.critical_path_ranks = path.parts, path.by_rank
    forecast.look_at = job_look_at(tasks, done.graphs, done.segments)
    shown = [without_lanes(graph) for graph in done.graphs]
    _add_time(forecast, shown, done.segments)
    met = meeting_times(shown, done.met, done.program, done.timeline)
    host_us = [part.program.duration[part.kind == HOST].sum() for part in done.program.parts]
    _add_communication(forecast, shown, host_us, met, job.alike)
    _add_memory(forecast, job, done, device)
    sources = [rank.sources for rank in done.ranks]
    forecast.workings = Workings(tasks, done.graphs, done.segments, device, sources, met=met)
    return forecast


def _coverage(done: Simulated) -> dict[str, float]:
    """Share of the device time by how it is known; that of waiting is not among it."""
    us: dict[str, float] = defaultdict(float)
    for rank in done.ranks:
        for word, time in rank.device_us().items():
            us[word] += time
    taken = np.array([len(meeting.calls) for meeting in done.met])
    if not sum(us.values()):
        return dict.fromkeys(SOURCES.values(), 0.0)  # all of it on the host
    us[TRANSFERS_ARE] += float(done.transfers.typical @ taken) if len(taken) else 0.0
    total = sum(us.values())
    return {word: us[word] / total for word in SOURCES.values()}


def _add_memory(forecast: Forecast, job: Job, done: Simulated, device: Device | None) -> None:
    """What the fullest rank holds."""
    peaks = []
    for graph, rank in zip(job.graphs, done.ranks):
        held = peak_memory(graph)
        if held is not None and device and isinstance(rank, PricedRank) and not graph.allocated:
            held += workspaces(rank.flat, device)
        peaks += [] if held is None else [held]
    forecast.peak_memory_bytes = max(peaks, default=None)
    if device:
        forecast.memory_bytes = round(device.memory_gb * 1e9)
        if forecast.peak_memory_bytes is not None:
            forecast.fits = forecast.peak_memory_bytes <= forecast.memory_bytes


def _add_time(forecast: Forecast, graphs: list[Graph], segments: list[Segments]) -> None:
    """What host and device do: means over the ranks."""
    kernels = [graph.kernels for graph in graphs]
    forecast.kernels = round(float(np.mean([len(table) for table in kernels])))
    forecast.kernel_ms = float(np.mean([(table.end - table.start).sum() for table in kernels])) / 1e3
    forecast.device_active_ms = float(np.mean([active_and_idle(graph)[0] for graph in graphs])) / 1e3
    forecast.device_idle_ms = max(forecast.step_ms - forecast.device_active_ms, 0.0)
    end = forecast.step_ms * 1e3
    still = np.mean([idle_causes(graph, cut, end) for graph, cut in zip(graphs, segments)], axis=0) / 1e3
    forecast.idle_causes = dict(zip(KINDS, still.tolist()))
    forecast.idle_causes[LATENCY] = max(forecast.device_idle_ms - float(still.sum()), 0.0)
    forecast.overheads = overheads(Segments.joined(segments))
    for words in forecast.overheads.values():
        words["ms"], words["count"] = words["ms"] / len(graphs), words["count"] / len(graphs)
    forecast.by_op, forecast.by_family = by_op(graphs, segments), by_family(graphs, segments)
    forecast.by_phase, forecast.by_module = by_phase(graphs, segments), by_module(graphs, segments)


def _add_communication(
    forecast: Forecast, graphs: list[Graph], host_us: Sequence[float], met: list[Meetings], alike: dict[int, int]
) -> None:
    """Who waits for whom, and what of the exchange nothing hides."""
    forecast.device_span_ms = device_span(graphs)
    forecast.ranks = rank_rows(graphs, host_us, met, alike)
    forecast.wait_ms = wait_ms(graphs, met)
    forecast.waits_for = who_waits(graphs, met)
    forecast.stragglers = stragglers(graphs, met, forecast.step_ms) if len(graphs) > 1 else []
    talk = [overlap(graph, position, met) for position, graph in enumerate(graphs)]
    forecast.exposed_communication_ms = float(np.mean([one["exposed_ms"] for one in talk]))
    forecast.hidden_communication_ms = float(np.mean([one["hidden_ms"] for one in talk]))
