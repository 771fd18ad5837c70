"""One rank of a job that is about to be simulated: on its own machine as measured, or on a platform as priced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from foretrace.cost_models.collectives.contention import Contention
from foretrace.cost_models.kernels.pricing import MEASURED, MODEL
from foretrace.forecast.contention import contends
from foretrace.forecast.critical import LATENCY_US
from foretrace.forecast.doubt import doubts
from foretrace.forecast.flat import Flat, flat
from foretrace.forecast.host import Segments, host_segments
from foretrace.forecast.host_exchange import with_lanes
from foretrace.forecast.jobs.kept import at_new_times, kept
from foretrace.forecast.jobs.together import Part
from foretrace.forecast.jobs.variation import host_spread, kernel_spreads
from foretrace.forecast.measured import HOST
from foretrace.forecast.measured import KERNEL as KERNEL_TASK
from foretrace.forecast.predicted import predicted
from foretrace.forecast.rest import after_a_wait
from foretrace.forecast.step import Step, priced
from foretrace.forecast.steps import cut_to_step
from foretrace.forecast.timetable import KERNEL, Timetable, timetable
from foretrace.forecast.work import SOURCES
from foretrace.graph import ForetraceError, Graph
from foretrace.graph.tables import COLLECTIVE, Floats, Small
from foretrace.platform.platform import Platform
from foretrace.simulation.forward import Doubt
from foretrace.simulation.program import Timeline

ALONE = np.zeros(1)
"""The share of kernels that models price: nothing runs beside them."""
TRANSFERS_ARE = SOURCES[MODEL]
"""How the time of a transfer is known."""


class Rank(Protocol):
    """What the simulation asks of a rank."""

    @property
    def graph(self) -> Graph:
        """The rank's step; its collectives are those that others meet it in."""

    @property
    def part(self) -> Part:
        """Its tasks."""

    @property
    def beside(self) -> Floats | None:
        """The share of each of its kernels that has a collective beside it as it is; None where they shall stay so."""

    @property
    def slowing(self) -> Contention | None:
        """How its work and its collectives slow each other; None for the law of GPUs."""

    @property
    def uneven(self) -> float:
        """How far ranks that do the same lie apart: standard deviation of the logarithm; 0 where a device leads."""

    def at(self, times: Timeline) -> tuple[Graph, Segments]:
        """Its graph and its host time at simulated times."""

    def doubt(self) -> Doubt:
        """How far its tasks' times may be off."""

    @property
    def sources(self) -> Small:
        """How the time of each kernel is known."""

    def device_us(self) -> dict[str, float]:
        """Microseconds of its kernels, collectives apart, by how they are known."""


@dataclass(frozen=True)
class KeptRank:
    """A rank whose host and kernels stay as they were measured."""

    graph: Graph
    segments: Segments
    part: Part
    stall: Floats
    """How much longer than usual each task waited, with nothing seen to hold it up: the lags of its part hold that."""
    beside: Floats | None
    slowdown: float
    """How many times as long the step took as it does with nothing attached: host times are taken down by that."""
    on_host: bool
    """Whether processors do the work of its calls themselves."""
    apart: float | None = None
    """How far ranks on such processors were seen to lie apart."""
    slowing: Contention | None = None
    """How work and exchanges were seen to slow each other on them."""

    @classmethod
    def of(cls, whole: Graph, step: str | None) -> KeptRank:
        """A rank's step, with what ran on its device before."""
        _, cut = cut_to_step(whole, step)
        graph = with_lanes(cut)
        segments = host_segments(graph)
        if not len(segments):
            raise ForetraceError(
                f"{whole.source or f'rank {whole.rank}'} has no times of host calls to keep",
                "Say --on PLATFORM to predict it on one, or give profiler traces of all ranks.",
            )
        part, stall, beside = kept(graph, segments)
        slowdown = _slowdown(whole, step)
        part = part.with_slower_host(1 / slowdown)  # what profiling added is on the host
        on_host = not len(cut.kernels)
        return cls(graph, segments, part, stall, None if on_host else beside, slowdown, on_host)

    @property
    def exchanging(self) -> Floats:
        """The share of each of its tasks on the host that had a collective beside it, where the host does its work."""
        return kept(self.graph, self.segments).beside

    @property
    def host_us(self) -> float:
        """How long its host works."""
        return float(self.part.program.duration[self.part.kind == HOST].sum())

    @property
    def stalled_us(self) -> float:
        """How long it stood still with nothing seen to hold it up, what may be latency apart."""
        return float(self.stall[self.stall > LATENCY_US].sum())

    @property
    def uneven(self) -> float:
        """On processors alone: as such ranks were seen to be; or else as its steps lie apart."""
        if self.apart is not None:
            return self.apart
        return host_spread(self.graph) if self.on_host else 0.0

    def at(self, times: Timeline) -> tuple[Graph, Segments]:
        """Its graph and its host time at simulated times."""
        return at_new_times(self.graph, self.segments, self.part, times)

    def doubt(self) -> Doubt:
        """What it may take when it runs once more: its host all in all, kernels of a kind alike."""
        kind, spreads = kernel_spreads(self.graph.kernels)
        on_device = np.flatnonzero(self.part.kind == KERNEL_TASK)
        group = np.zeros(len(self.part.program), np.int32)
        group[on_device] = kind[self.part.row[on_device]] + 1
        spread = np.append(host_spread(self.graph), spreads)
        shared = np.append(1.0, np.zeros(len(spreads)))
        return Doubt(group, spread, spread, np.zeros(len(spread), np.int32), shared)

    @property
    def sources(self) -> Small:
        """Measured, but for what the fabric says."""
        return np.where(self.graph.kernels.kind == COLLECTIVE, MODEL, MEASURED).astype(np.int8)

    def device_us(self) -> dict[str, float]:
        """All measured."""
        kernels = self.graph.kernels
        return {SOURCES[MEASURED]: float((kernels.end - kernels.start)[kernels.kind != COLLECTIVE].sum())}


def _slowdown(graph: Graph, step: str | None) -> float:
    """That of the very step, where plain ones were timed as well; else that of all of them."""
    ours = [span for span in graph.steps if span.name == step or len(graph.steps) == 1]
    if not ours or not graph.plain.synced_ms:
        return graph.slowdown
    return ours[0].ms / float(np.median(graph.plain.synced_ms))


@dataclass(frozen=True)
class PricedRank:
    """A rank on a platform."""

    graph: Graph
    """Its dispatcher calls; a collective's kernel is its row in the work."""
    uncut: Graph
    flat: Flat
    step: Step
    table: Timetable
    part: Part
    notes: tuple[str, ...]
    beside: Floats | None
    on_host: bool
    """Whether processors do the work of its calls themselves."""
    apart: float | None = None
    """How far ranks on such processors were seen to lie apart."""
    slowing: Contention | None = None
    """How work and exchanges were seen to slow each other on them."""

    @classmethod
    def of(cls, whole: Graph, step: str | None, platform: Platform, kernels: str | None) -> PricedRank:
        """A rank's step with its costs on a platform."""
        cut, _ = cut_to_step(whole, step)
        alone = flat(cut)
        if not len(alone.calls.ops):
            raise ForetraceError(f"rank {whole.rank} holds no calls", "Record or sketch a training step.")
        costs, notes = priced(cut, alone, platform, kernels)
        table = after_a_wait(costs, timetable(costs, platform.device))
        work = costs.work
        row = np.full(len(alone.calls.collectives), -1)
        row[work.collective[work.collective >= 0]] = np.flatnonzero(work.collective >= 0)
        collectives = [replace(c, kernel=int(kernel)) for c, kernel in zip(alone.calls.collectives, row)]
        graph = replace(alone.calls, collectives=collectives)
        shares = ALONE if contends(alone.calls, platform, kernels) else None
        on_host = platform.device.kind == "cpu"
        return cls(graph, whole, alone, costs, table, part_of(table, row), tuple(notes), shares, on_host)

    @property
    def uneven(self) -> float:
        """On processors alone: as such ranks were seen to be; or else as whole steps lie apart on this host."""
        if self.apart is not None:
            return self.apart
        return self.step.common if self.on_host else 0.0

    def at(self, times: Timeline) -> tuple[Graph, Segments]:
        """Its graph and its host time at simulated times."""
        graph, segments = predicted(self.flat.calls, self.step, self.table, times)
        return replace(graph, collectives=self.graph.collectives), segments

    def doubt(self) -> Doubt:
        """That of its host and of the kernel models."""
        return doubts(self.flat.calls, self.step, self.table)

    @property
    def sources(self) -> Small:
        """Those of its work."""
        return self.step.work.source

    def device_us(self) -> dict[str, float]:
        """By the models that know them."""
        work = self.step.work
        ours = work.kind != COLLECTIVE
        return {word: float(work.typical[ours & (work.source == code)].sum()) for code, word in SOURCES.items()}


def part_of(table: Timetable, collective: np.ndarray) -> Part:
    """The tasks of a timetable.

    Parameters
    ----------
    table
        A rank's.
    collective
        For each of its collectives, the row in its work; -1 for none.
    """
    device = table.kind == KERNEL
    task = np.append(np.flatnonzero(device), -1)
    kind = np.where(device, KERNEL_TASK, HOST).astype(np.int8)
    row = np.where(device, table.kernel, np.cumsum(~device) - 1).astype(np.int32)
    return Part(table.program, kind, row, task[collective])
