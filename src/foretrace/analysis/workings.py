"""The tasks, graphs and samples behind a step report, for timelines and charts; not part of its JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.collectives import CollectiveTimes
from foretrace.analysis.host_time import Segments
from foretrace.analysis.memory import MemoryCurve, memory_over
from foretrace.analysis.steps import chosen_step
from foretrace.graph import Graph, Job
from foretrace.graph.tables import Floats, Ints, Small
from foretrace.simulation.critical_path import CriticalPath
from foretrace.simulation.task_graph import TaskGraph, Timeline

if TYPE_CHECKING:
    from foretrace.platform.device import Device


class Legs(NamedTuple):
    """The critical path in time order: on which rank, on a thread or on a stream, from when to when."""

    rank: Ints
    """Position among the graphs."""
    on_device: NDArray[np.bool_]
    lane: Ints
    """The thread; on the device, the stream."""
    start: Floats
    end: Floats


@dataclass(frozen=True)
class Workings:
    """The tasks and the graphs, in rank order, at the reported times."""

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
        curves = ((g.rank, memory_over(whole, g, step)) for whole, g in zip(self.job.graphs, self.graphs))
        return [(rank, curve) for rank, curve in curves if curve is not None]
