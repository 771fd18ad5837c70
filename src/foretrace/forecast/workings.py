"""What a forecast or an observation was made of: kept for who draws it, and part of no JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.forecast.collectives import Meetings
from foretrace.forecast.host import Segments
from foretrace.forecast.measured import HOST, Measured
from foretrace.forecast.memory import held_bytes
from foretrace.forecast.steps import chosen_step, cut_to_step
from foretrace.graph import Graph, Job
from foretrace.graph.calls import dispatched
from foretrace.graph.tables import Floats, Ints, Longs, Small
from foretrace.platform.device import Device
from foretrace.simulation.path import critical_path


class Memory(NamedTuple):
    """Bytes that a rank's device holds over the step: ``nbytes[i]`` from ``us[i]`` on."""

    us: Floats
    nbytes: Longs


class Legs(NamedTuple):
    """The critical path in time order: on which rank, on a thread or on a stream, from when to when."""

    graph: Ints
    """Position among the graphs."""
    on_device: NDArray[np.bool_]
    lane: Ints
    """The thread; on the device, the stream."""
    start: Floats
    end: Floats


@dataclass(frozen=True)
class Workings:
    """The tasks and the graphs, in rank order, at the times that are told of."""

    tasks: Measured
    graphs: list[Graph]
    segments: list[Segments]
    device: Device | None = None
    """What the step runs on, where it is known."""
    sources: list[Small] = field(default_factory=list)
    """Of a forecast, for each rank, how the time of each kernel is known: the codes of `foretrace.forecast.work`."""
    draws_ms: Floats = field(default_factory=lambda: np.zeros(0))
    """Steps of a forecast whose durations were drawn anew."""
    met: list[Meetings] = field(default_factory=list)
    """Of a simulated job, how its ranks meet in collectives, sends and receives among them."""
    job: Job | None = None
    """What was looked at or predicted, as it was read."""
    step: str | None = None
    """Which of its steps, where one was named."""

    def legs(self) -> Legs:
        """Where the critical path runs."""
        path = critical_path(self.tasks.program, self.tasks.timeline)
        graph, row = self.tasks.graph[path.task], self.tasks.row[path.task]
        on_device = self.tasks.kind[path.task] != HOST
        lane = np.zeros(len(row), np.int32)
        for position, (one, segments) in enumerate(zip(self.graphs, self.segments)):
            here = graph == position
            lane[here & on_device] = one.kernels.stream[row[here & on_device]]
            lane[here & ~on_device] = segments.thread[row[here & ~on_device]]
        return Legs(graph, on_device, lane, path.start, path.end)

    def memory(self) -> list[tuple[int, Memory]]:
        """What each rank's device holds over the step, where its source says."""
        if self.job is None:
            return []
        step = chosen_step(self.job, self.step)
        curves = ((g.rank, memory_over(whole, g, step)) for whole, g in zip(self.job.graphs, self.graphs))
        return [(rank, curve) for rank, curve in curves if curve is not None]


def memory_over(whole: Graph, shown: Graph, step: str | None = None) -> Memory | None:
    """Bytes held while each call of a rank's step runs; None where its source says nothing about memory.

    Parameters
    ----------
    whole
        The rank as it was read: storages live by the rows of its ops.
    shown
        Its step at the times that are told of: all ops of the step, or its dispatcher calls alone.
    step
        Which step that is.

    >>> from foretrace.graph import Op, OpTable, Storage
    >>> ops = OpTable.of([Op("aten::ones", start_us=0.0, end_us=5.0), Op("aten::zeros", start_us=5.0, end_us=9.0)])
    >>> graph = Graph(ops, storages={0: Storage(0, 2048, "cuda:0", birth=0, death=1)})
    >>> memory_over(graph, graph).nbytes.tolist()
    [2048, 0]
    """
    if shown.allocated:
        us, nbytes = zip(*shown.allocated)
        return Memory(np.array(us), np.array(nbytes))
    held, cut = held_bytes(whole), cut_to_step(whole, step)[0]
    rows = np.arange(len(cut.ops)) if len(cut.ops) == len(shown.ops) else dispatched(cut)
    if held is None or not len(rows) or len(rows) != len(shown.ops):
        return None
    # Rows between two calls are annotations, modules and autograd nodes: what they hold, the call before them holds.
    most = np.maximum.reduceat(held[1 : len(whole.ops) + 1], _rows_in(whole, cut, rows))
    known = np.isfinite(shown.ops.start)
    return Memory(shown.ops.start[known], most[known]) if known.any() else None


def _rows_in(whole: Graph, cut: Graph, rows: Ints | Longs) -> Longs:
    """Where rows of a graph that was cut out of another one lie in that.

    >>> from foretrace.graph import Op, OpTable
    >>> whole = Graph(OpTable.of([Op("aten::mm", start_us=float(i), end_us=i + 0.5) for i in range(4)]))
    >>> _rows_in(whole, whole.between(2.0, 4.0), np.array([0, 1]))
    array([2, 3])
    """
    order = np.argsort(whole.ops.source, kind="stable")
    return np.asarray(order[np.searchsorted(whole.ops.source, cut.ops.source[rows], sorter=order)])
