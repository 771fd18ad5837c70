"""Priced steps made by hand, and platforms whose prices are plain numbers. Times are microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.cost_models.kernels.roofline import MODEL
from foretrace.graph.tables import COMPUTE
from foretrace.platform.device import Device, Measured
from foretrace.prediction.device_work import DeviceWork
from foretrace.prediction.priced_step import NO_SYNC, PricedStep, Waits
from foretrace.prediction.priced_tasks import priced_tasks
from foretrace.simulation.engine import simulate
from foretrace.simulation.task_graph import KERNEL, T1, T2, T3, T4, T5, TaskGraph, Timeline

STREAM = 7


@dataclass
class Call:
    """One dispatcher call: what it costs the host, and the kernels it launches."""

    kernels: Sequence[float] = ()
    before: float = 1.0
    to_launch: float = 2.0
    launch: float = 3.0
    between: float = 0.5
    after: float = 1.0
    thread: int = 0
    stream: int = STREAM
    waits: int = NO_SYNC
    concurrent: bool = False
    one_launch: bool = False
    """Whether all kernels come with one launch, as those of a CUDA graph do."""
    cold: float = 0.0
    spread: float = 0.0
    captured: bool = False


def step(*calls: Call, streams: Sequence[tuple[int, int]] = (), common: float = 0.0, error: float = 0.0) -> PricedStep:
    """A step of these calls; ``streams`` are pairs of calls whose device work waits, ``error`` that of the models."""
    kernels = [(place, us) for place, call in enumerate(calls) for us in call.kernels]
    launch, number = [], -1
    for call in calls:
        for place in range(len(call.kernels)):
            number += place == 0 or not call.one_launch
            launch.append(number)
    time = np.array([us for _, us in kernels], np.float64)
    factor = np.exp(1.2816 * error)
    work = DeviceWork(
        call=np.array([place for place, _ in kernels], np.int32),
        launch=np.array(launch, np.int32),
        stream=np.array([calls[place].stream for place, _ in kernels], np.int32),
        kind=np.full(len(kernels), COMPUTE, np.int8),
        name=[f"kernel {row}" for row in range(len(kernels))],
        low=time / factor,
        typical=time,
        high=time * factor,
        source=np.full(len(kernels), MODEL, np.int8),
        collective=np.full(len(kernels), -1, np.int32),
    )

    def column(name: str) -> np.ndarray:
        return np.array([getattr(call, name) for call in calls], np.float64)

    return PricedStep(
        thread=np.array([call.thread for call in calls], np.int32),
        concurrent=np.array([call.concurrent for call in calls], bool),
        durations={
            T1: column("before"), T2: column("to_launch"), T3: column("after"), T4: column("launch"),
            T5: column("between"),
        },
        cold=column("cold"),
        spread=column("spread"),
        common=common,
        work=work,
        waits=Waits(np.array([call.waits for call in calls], np.int8), np.array(streams, np.int32).reshape(-1, 2)),
        stream=np.array([call.stream for call in calls], np.int32),
        captured=np.array([call.captured for call in calls], bool),
    )  # fmt: skip


def device(gap: float = 0.0, latency: float = 0.0, queue: int | None = None, kind: str = "cuda") -> Device:
    """A device that starts kernels so soon after each other and after their launch."""
    return Device(
        "by hand", "by hand", 1, 1.0, 1.0, 1.0, 1.0, 1.0, {"float32": 1.0}, "made up", kind,
        Measured(gap, latency, queue),
    )  # fmt: skip


def run(made: PricedStep, on: Device) -> tuple[TaskGraph, Timeline]:
    """The step's tasks, and when they run."""
    tasks = priced_tasks(made, on)
    return tasks, simulate(tasks)


def kernel_times(tasks: TaskGraph, timeline: Timeline) -> list[tuple[float, float]]:
    """Start and end of each kernel."""
    kernels = np.flatnonzero(tasks.kind == KERNEL)
    return list(zip(timeline.start[kernels].tolist(), timeline.end[kernels].tolist()))


def host_end(tasks: TaskGraph, timeline: Timeline) -> float:
    """When the host has done its last task."""
    return float(timeline.end[tasks.on_host].max())
