"""A step priced on a platform: host time of each call, device work that it launches, and waits between both."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.dispatched import DispatchedCalls
from foretrace.cost_models.host.pricing import HostCosts, price_host
from foretrace.cost_models.kernels.pricing import MEASURED
from foretrace.graph import Graph
from foretrace.graph.op import GRAPH_LAUNCH
from foretrace.graph.tables import Floats, Ints, Longs, distinct
from foretrace.platform.device import CudaGraphCosts
from foretrace.platform.platform import Platform
from foretrace.prediction.device_work import DeviceWork, device_work
from foretrace.prediction.waits import Waits, step_waits
from foretrace.simulation.task_graph import T1, T2, T3, T4, T5


@dataclass(frozen=True)
class PricedStep:
    """The calls of a step with their costs, in order."""

    thread: Ints
    concurrent: NDArray[np.bool_]
    """Whether each call ran at the same time as the one before it, on another thread."""
    durations: dict[int, Floats]
    """T1 to T5 of each call; T4 is that of one launch, T5 that of one pause between two."""
    cold: Floats
    """What T1 of each call is longer by for each doubling of a millisecond that the host waited before the step."""
    spread: Floats
    """Standard deviation of the logarithm of what each call costs the host."""
    common: float
    """The same of a factor that all calls of a step share."""
    work: DeviceWork
    waits: Waits
    stream: Ints
    """The stream that each call works on."""
    captured: NDArray[np.bool_]
    """Whether each call is in a CUDA graph, with those around it."""

    def __len__(self) -> int:
        return len(self.thread)

    def last_kernel(self, call: NDArray[Any], stream: int | None = None) -> Longs:
        """The last kernel that was launched up to the end of each call, on its stream or the one given; -1 for none."""
        return self._kernel(call, stream, "right", -1)

    def first_kernel(self, call: NDArray[Any]) -> Longs:
        """The first kernel launched from the start of each call on, on its stream; -1 for none."""
        return self._kernel(call, None, "left", 0)

    def _kernel(self, call: NDArray[Any], stream: int | None, side: Any, offset: int) -> Longs:
        found = np.full(len(call), -1)
        for one in distinct(self.work.stream) if stream is None else [stream]:
            rows = np.flatnonzero(self.work.stream == one)
            at = np.searchsorted(self.work.call[rows], call, side) + offset
            ours = (at >= 0) & (at < len(rows))
            if stream is None:
                ours &= self.stream[call] == one
            found[ours] = rows[at[ours]]
        return found

    def repeated(self, times: int) -> PricedStep:
        """The step so many times, one after the other."""
        shift = np.repeat(np.arange(times, dtype=np.int32), len(self.work))
        columns = {f.name: _tiled(getattr(self.work, f.name), times) for f in fields(DeviceWork)}
        columns["call"] += shift * np.int32(len(self))
        columns["launch"] += shift * np.int32(self.work.launch.max(initial=-1) + 1)
        columns["collective"] += np.where(
            columns["collective"] >= 0, shift * (self.work.collective.max(initial=-1) + 1), 0
        )
        later = np.arange(times, dtype=np.int32)[:, None, None] * np.int32(len(self))
        pairs = ((some + later).reshape(-1, 2) for some in (self.waits.streams, self.waits.works))
        return PricedStep(
            thread=np.tile(self.thread, times),
            concurrent=np.tile(self.concurrent, times),
            durations={kind: np.tile(us, times) for kind, us in self.durations.items()},
            cold=np.tile(self.cold, times),
            spread=np.tile(self.spread, times),
            common=self.common,
            work=DeviceWork(**columns),
            waits=Waits(np.tile(self.waits.host, times), *pairs),
            stream=np.tile(self.stream, times),
            captured=np.tile(self.captured, times),
        )


def _tiled(column: Any, times: int) -> Any:
    return column * times if isinstance(column, list) else np.tile(column, times)


def price_step(
    graph: Graph, step: DispatchedCalls, platform: Platform, kernels: str | None
) -> tuple[PricedStep, list[str]]:
    """A step's calls with their costs on a platform, and notes on these.

    The graph is the step as it was read; the others are as in `device_work`.
    """
    calls, count = step.calls, len(step.rows)
    work, notes = device_work(step, platform, kernels)
    host = price_host(calls, np.arange(count, dtype=np.int32), work.launches(count), platform.host)
    inside = captured_calls(graph, step)
    if inside.any():
        launched = int(inside[work.call].sum())
        host = with_graph_launch(host, inside, launched, platform.host.before.forward_call)
        notes = [*notes, f"{launched:,} kernels are one CUDA graph; its cost: {CudaGraphCosts.shipped().provenance}"]
    return PricedStep(
        thread=calls.ops.thread,
        concurrent=_concurrent(calls),
        durations=_durations(host, _timed_whole(work, platform)),
        cold=host.cold_penalty,
        spread=host.spread,
        common=host.common,
        work=work,
        waits=step_waits(graph, step),
        stream=_streams(work, count),
        captured=inside,
    ), notes


def _durations(host: HostCosts, whole: Ints) -> dict[int, Floats]:
    """T1 to T5 of each call; nothing inside those that were timed as a whole, up to the next one."""
    inside = {T2: host.to_launch.copy(), T3: host.after.copy(), T4: host.launch.copy(), T5: host.between.copy()}
    for us in inside.values():
        us[whole] = 0.0
    before = host.before.copy()
    before[whole] -= host.gap[whole]
    return {T1: before, **inside}


def _timed_whole(work: DeviceWork, platform: Platform) -> Ints:
    """Calls on a CPU whose measured time holds both the work and its host overheads: the two can't be told apart."""
    if not platform.device.runs_on_host:
        return np.zeros(0, np.int32)
    return np.asarray(work.call[work.source == MEASURED], np.int32)


def _concurrent(calls: Graph) -> NDArray[np.bool_]:
    """Threads take turns, as autograd's does with the main one, unless their times show that both ran at once."""
    concurrent = np.zeros(len(calls.ops), bool)
    concurrent[1:] = calls.ops.end[:-1] > calls.ops.start[1:]
    return concurrent


def _streams(work: DeviceWork, calls: int) -> Ints:
    """The stream of each call's kernels; a call without any is on the one that most kernels are on."""
    most_used = np.bincount(work.stream).argmax() if len(work) else 0
    streams = np.full(calls, most_used, np.int32)
    streams[work.call] = work.stream
    return streams


def captured_calls(graph: Graph, step: DispatchedCalls) -> NDArray[np.bool_]:
    """Which dispatcher calls of a step are in a CUDA graph: those after its launch."""
    is_launch = graph.ops.names.matching(GRAPH_LAUNCH.__eq__)
    if not is_launch.any():
        return np.zeros(len(step.rows), bool)
    return np.asarray(step.rows > int(is_launch[graph.ops.name].argmax()))


def with_graph_launch(host: HostCosts, inside: NDArray[np.bool_], kernels: int, python_us: float) -> HostCosts:
    """Host costs of calls if some are one CUDA graph of so many kernels.

    The first call inside pays for the launch, and the others nothing. From one call outside to the next it takes
    ``python_us``: no gradients are cleared, and no module is entered.
    """
    to_launch, nothing = np.where(inside, 0.0, host.to_launch), np.zeros(len(inside))
    to_launch[int(inside.argmax())] = CudaGraphCosts.shipped().launch(kernels)
    return replace(
        host,
        before=np.where(inside, 0.0, python_us),
        to_launch=to_launch,
        launch=np.where(inside, 0.0, host.launch),
        between=np.where(inside, 0.0, host.between),
        after=np.where(inside, 0.0, host.after),
        cold_penalty=nothing,
    )
