"""A step priced on a platform: host time of each call, device work that it launches, and waits between both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.dependencies import WORK_WAIT, Streams, event_waits, sync_waits
from foretrace.analysis.dispatched import DispatchedCalls
from foretrace.analysis.host_time import host_segments
from foretrace.cost_models.host.pricing import HostCosts, of_large_step, price_host
from foretrace.cost_models.kernels.roofline import MEASURED
from foretrace.graph import PHASES, Constant, Graph, Op, Value
from foretrace.graph.op import COMPILED_REGION, GRAPH_LAUNCH
from foretrace.graph.operators import MAY_SYNCHRONIZE, SYNCHRONIZE, launches_nothing, waits_for_device
from foretrace.graph.tables import SYNC, Floats, Ints, Longs, Small, distinct
from foretrace.platform.device import CudaGraphCosts
from foretrace.platform.platform import Platform, read_host
from foretrace.platform.registry import folder_of_device
from foretrace.prediction.device_work import DeviceWork, device_work
from foretrace.simulation.task_graph import T1, T2, T3, T4, T5

if TYPE_CHECKING:
    from foretrace.prediction.gaps import Gaps, Unexplained

CARRIED, CARRIED_NOTE = "carried over", "of measured host time that no model covers are carried over"
"""The cause of such time in a prediction, and what notes say of it."""
NO_SYNC, OWN_STREAM, ALL_STREAMS = range(3)
"""Which streams a call waits for before it returns."""

NO_STREAM = -2
"""In place of the number of a stream."""


@dataclass(frozen=True, eq=False)
class Waits:
    """Waits of a step beyond the order of lanes."""

    host: Small
    """For each call, which streams the host waits for before the call returns."""
    streams: Ints
    """Pairs of calls: device work of the second starts after that of the first is done."""
    works: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    """Pairs of calls: before the second one, something waits for the collective that the first one issued."""


@dataclass(frozen=True, eq=False)
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
    gaps: Gaps | None = None
    """Measured host time that was carried over; it is in the durations."""
    unexplained: Unexplained | None = None
    """Measured host time that was not carried over though no model explains it, where it is much."""
    speeds: tuple[float, float] = (0.0, 0.0)
    """As ``common``, towards shorter and towards longer times, where the host was seen to vary by more; else 0."""

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
            there = (at >= 0) & (at < len(rows))
            if stream is None:
                there &= self.stream[call] == one
            found[there] = rows[at[there]]
        return found

    def repeated(self, times: int) -> PricedStep:
        """The step unrolled ``times`` times."""

        def tiled(column: Any) -> Any:
            return column * times if isinstance(column, list) else np.tile(column, times)

        shift = np.repeat(np.arange(times, dtype=np.int32), len(self.work))
        columns = {f.name: tiled(getattr(self.work, f.name)) for f in fields(DeviceWork)}
        columns["call"] += shift * np.int32(len(self))
        columns["launch"] += shift * np.int32(self.work.launch.max(initial=-1) + 1)
        columns["collective"] += np.where(
            columns["collective"] >= 0, shift * (self.work.collective.max(initial=-1) + 1), 0
        )
        later = np.arange(times, dtype=np.int32)[:, None, None] * np.int32(len(self))
        pairs = ((some + later).reshape(-1, 2) for some in (self.waits.streams, self.waits.works))
        kept = ("thread", "concurrent", "cold", "spread", "stream", "captured")
        return replace(
            self,
            **{name: tiled(getattr(self, name)) for name in kept},
            durations={kind: tiled(us) for kind, us in self.durations.items()},
            work=DeviceWork(**columns),
            waits=Waits(tiled(self.waits.host), *pairs),
            gaps=self.gaps and self.gaps.repeated(times),
        )


def price_step(
    graph: Graph, step: DispatchedCalls, platform: Platform, kernels: str | None, drop_gaps: bool = False
) -> tuple[PricedStep, list[str]]:
    """A step's calls with their costs on a platform, and notes on these.

    The graph is the step as it was read; the others are as in `device_work`.
    """
    calls, count = step.calls, len(step.rows)
    work, notes = device_work(step, platform, kernels)
    host = price_host(calls, np.arange(count, dtype=np.int32), work.launches(count), platform.host)
    inside, eager = np.zeros(count, bool), np.ones(count, bool)
    if graph.ops.names.matching((COMPILED_REGION, GRAPH_LAUNCH).__contains__).any():
        host, eager, inside, more = _with_programs(graph, step, host, work, platform)
        notes = [*notes, *more]
    if not platform.device.runs_on_host:
        host = of_large_step(host, eager & (calls.ops.phase != PHASES.index("optimizer")), platform.step_share)
    durations = _durations(host, _timed_whole(work, platform))
    gaps, unexplained = None, None
    measured = len(graph.kernels) > 0 or graph.measured_us > 0
    if measured and not drop_gaps and not platform.device.runs_on_host:
        gaps, unexplained, more = _carried_over(graph, step, platform, durations, work.launches(count), inside)
        notes = [*notes, *more]
    return PricedStep(
        thread=calls.ops.thread,
        concurrent=_concurrent(calls),
        durations=durations,
        gaps=gaps,
        unexplained=unexplained,
        cold=host.cold_penalty,
        spread=host.spread,
        common=host.common,
        speeds=host.speeds,
        work=work,
        waits=step_waits(graph, step, platform.stack is not None and platform.stack.blocking_stages),
        stream=_streams(work, count),
        captured=inside,
    ), notes


def _with_programs(
    graph: Graph, step: DispatchedCalls, host: HostCosts, work: DeviceWork, platform: Platform
) -> tuple[HostCosts, NDArray[np.bool_], NDArray[np.bool_], list[str]]:
    """Host costs where compiled programs and CUDA graphs make calls, which calls neither does and which are in graphs,
    and notes."""
    from foretrace.prediction.compiled_regions import members, spans, with_compiled_regions, with_graph_launches

    notes = []
    regions, graphs = (spans(graph, step, mark) for mark in (COMPILED_REGION, GRAPH_LAUNCH))
    if regions:
        host = with_compiled_regions(host, regions, step.calls, platform.host.compiled)
        if not platform.host.compiled.measured:
            programs = "1 compiled program" if len(regions) == 1 else f"{len(regions):,} compiled programs"
            notes.append(f"the host time of {programs} is estimated from constants that no machine was measured for")
    if graphs:
        host, launched = with_graph_launches(host, graphs, work.call, platform.host.before.forward_call)
        one = "one CUDA graph; its cost" if len(graphs) == 1 else f"{len(graphs)} CUDA graphs; their cost"
        notes.append(f"{launched:,} kernels are {one}: {CudaGraphCosts.shipped().provenance}")
    compiled, captured = (members(some, len(step.rows)) for some in (regions, graphs))
    return host, ~(compiled | captured), captured, notes


def _carried_over(
    graph: Graph,
    step: DispatchedCalls,
    platform: Platform,
    durations: dict[int, Floats],
    launches: Ints,
    captured: NDArray[np.bool_],
) -> tuple[Gaps, Unexplained | None, list[str]]:
    """Measured host time that no model covers, as it will be on the platform's host, which is added to the durations;
    how much there is that no model explains but is not carried over; and notes."""
    from foretrace.prediction.gaps import carried_rows, measured_gaps, unexplained_time  # a sketch has none

    inside = durations[T2] + durations[T3] + durations[T4] * launches + durations[T5] * np.maximum(launches - 1, 0)
    measured_on = folder_of_device(graph.device)
    meant_only = measured_on is not None or bool(captured.any())
    gaps = measured_gaps(graph, step, durations[T1], inside, meant_only).outside(captured)
    ratio = platform.host.before.forward_call / read_host(measured_on).before.forward_call if measured_on else 1.0
    unexplained = None
    if not captured.any():
        modelled = durations[T1] + durations[T2] + durations[T3]
        unexplained = unexplained_time(graph, step, modelled, gaps, ratio)
    if not gaps.total_ms:
        return gaps, unexplained, []
    gaps = gaps.scaled(ratio)
    durations[T1] = durations[T1] + gaps.before
    durations[T3] = durations[T3].copy()
    durations[T3][-1] += gaps.after
    known = f"{ratio:.2f} times as long as measured, as the hosts"
    how = known if measured_on else "as measured: its host is unknown"
    largest = carried_rows([gaps])[0]
    note = (
        f"{gaps.total_ms:.1f} ms {CARRIED_NOTE}, {how} "
        f"(mostly {largest.cause}, {largest.name[:60]}); --drop-gaps leaves them out"
    )
    return gaps, unexplained, [note]


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
    """Whether calls run at the same time as those of another thread.

    Threads take turns, as autograd's does with the main one, unless their times show that both ran at once.
    """
    concurrent = np.zeros(len(calls.ops), bool)
    concurrent[1:] = calls.ops.end[:-1] > calls.ops.start[1:]
    return concurrent


def _streams(work: DeviceWork, calls: int) -> Ints:
    """The stream of each call's kernels; a call without any is on the one that most kernels are on."""
    most_used = np.bincount(work.stream).argmax() if len(work) else 0
    streams = np.full(calls, most_used, np.int32)
    streams[work.call] = work.stream
    return streams


def step_waits(graph: Graph, step: DispatchedCalls, blocking_stages: bool = False) -> Waits:
    """The syncs and stream waits of a step.

    The graph is the step as it was read: it may hold calls that steer streams. With ``blocking_stages`` the host waits
    for what a pipeline stage receives.
    """
    calls = step.calls
    host = np.full(len(calls.ops), NO_SYNC, np.int8)
    if blocking_stages:
        host[[one.op for one in calls.collectives if one.kind == "recv"]] = ALL_STREAMS
    may_wait = calls.ops.names.matching(MAY_SYNCHRONIZE.__contains__)
    for row in np.flatnonzero(may_wait[calls.ops.name]).tolist():
        if waits_for_device(calls.ops[row]):
            host[row] = OWN_STREAM
    host[calls.calls.op[(calls.calls.kind == SYNC) & (calls.calls.op >= 0)]] = OWN_STREAM
    if len(calls.kernels) and graph.has_times:
        between = _waits_between_calls(graph, calls)
        host[between] = np.where(host[between] == NO_SYNC, ALL_STREAMS, host[between])
    side = [(int(np.searchsorted(step.rows, row)), graph.ops[row]) for row in _side_rows(graph)]
    for place, op in side:
        # A sync between two calls holds the host at the end of the first of them.
        if op.name in SYNCHRONIZE and 0 < place < len(host):
            host[place - 1] = ALL_STREAMS
    works = list(_waits_for_collectives(side, calls))
    stream = _working_streams(step) if side else step.stream
    held = _held_streams(works, stream, calls)
    sends = np.array([c.op for c in calls.collectives if c.kind == "send"], int)
    pairs = {*_waits_for_events(side, stream, sends), *_waits_in_profile(calls), *_collectives(calls), *held}
    awaited = {(issued, place) for issued, place, _ in works}
    return Waits(host, *(np.array(sorted(some), np.int32).reshape(-1, 2) for some in (pairs, awaited)))


def _waits_between_calls(graph: Graph, calls: Graph) -> Longs:
    """The calls after which a profile shows the host to wait, in no call, for what a call of the step launched."""
    cut = host_segments(graph)
    kernel, segment = sync_waits(graph, cut, Streams(graph)).T
    launcher = calls.kernels.op[kernel]
    between = np.where(cut.call[segment] >= 0, calls.calls.op[cut.call[segment]], -1) < 0
    segment, launcher = segment[between & (launcher >= 0)], launcher[between & (launcher >= 0)]
    last = np.full(len(segment), -1)
    for thread in distinct(cut.thread[segment]):
        segments, on_thread = np.flatnonzero(cut.thread[segment] == thread), np.flatnonzero(calls.ops.thread == thread)
        at = np.searchsorted(calls.ops.start[on_thread], cut.start[segment[segments]], "right") - 1
        last[segments] = np.where(at >= 0, np.append(on_thread, -1)[at], -1)
    return np.asarray(last[last >= launcher])


def _side_rows(graph: Graph) -> list[int]:
    steers = graph.ops.names.matching(lambda name: name.startswith("cuda::") or name == WORK_WAIT)
    return np.flatnonzero(steers[graph.ops.name]).tolist() if len(graph.ops) else []


def _working_streams(step: DispatchedCalls) -> Ints:
    """The stream of each call that launches work there; `NO_STREAM` for the others, which wait for no stream."""
    members = {c.op for c in step.calls.collectives}
    silent = [row not in members and launches_nothing(op, "cpu") for row, op in enumerate(step.calls.ops)]
    return np.where(silent, NO_STREAM, step.stream).astype(np.int32)


def _waits_for_events(side: list[tuple[int, Op]], stream: Ints, sends: Longs) -> Iterator[tuple[int, int]]:
    """Waits for events between streams: the last call before the event, and the first one of the stream that waits.

    An event is not behind what its stream sends to another rank: nothing on the stream waits for that.
    """
    recorded_on = stream.copy()
    recorded_on[sends] = NO_STREAM
    recorded: dict[str, tuple[int, int]] = {}
    for place, op in side:
        named = {value.kind: value.value for value in op.args if isinstance(value, Constant)}
        if op.name == "cuda::event_record":
            recorded[named["event"]] = (place, int(named["stream"]))
        elif op.name == "cuda::stream_wait_event" and named["event"] in recorded:
            at, its_stream = recorded[named["event"]]
            before = np.flatnonzero(recorded_on[:at] == its_stream)
            after = np.flatnonzero(stream[place:] == int(named["stream"]))
            if len(before) and len(after):
                yield int(before[-1]), int(after[0]) + place


def _waits_for_collectives(side: list[tuple[int, Op]], calls: Graph) -> Iterator[tuple[int, int, int]]:
    """Waits for collectives: the call that issued one, the call after the wait, and the stream that waits."""
    waits = [(place, op) for place, op in side if op.name == WORK_WAIT and place < len(calls.ops)]
    if not waits:
        return
    issued: dict[str, int] = {}
    for call in sorted({c.op for c in calls.collectives if c.op >= 0}):
        issued |= dict.fromkeys(_named_works(calls.ops[call].outputs), call)
    for place, op in waits:
        for work in _named_works(op.args):
            if issued.get(work, place) < place:
                yield issued[work], place, op.stream


def _held_streams(works: list[tuple[int, int, int]], stream: Ints, calls: Graph) -> Iterator[tuple[int, int]]:
    """The collective and the next compute call on the stream that waits for it; the next collective need not wait."""
    members = {c.op for c in calls.collectives}
    for issued, place, held in works:
        later = (np.flatnonzero(stream[place:] == held) + place).tolist()
        computes = next((call for call in later if call not in members), None)
        if computes is not None:
            yield issued, computes


def _named_works(values: Iterable[Value]) -> list[str]:
    return [value.value for value in values if isinstance(value, Constant) and value.kind == "work"]


def _waits_in_profile(calls: Graph) -> Iterator[tuple[int, int]]:
    """Waits between streams that a profile shows by its times."""
    if len(distinct(calls.kernels.stream)) < 2:
        return
    op = calls.kernels.op
    for before, after in op[event_waits(calls, Streams(calls))].tolist():
        if 0 <= before < after:
            yield before, after


def _collectives(calls: Graph) -> Iterator[tuple[int, int]]:
    """A collective starts after the work before it, and what touches its data next starts after it."""
    members = {c.op for c in calls.collectives if c.op >= 0}
    if not members:
        return
    pending: dict[int, int] = {}
    before = -1
    for place, op in enumerate(calls.ops):
        if place not in members and launches_nothing(op, "cpu"):  # on whatever device
            continue  # a look at what is on its way need not wait for it
        touched = {t.storage for t in (*op.tensors, *op.produced) if t.storage >= 0}
        yield from {(pending.pop(storage), place) for storage in touched & pending.keys()}
        if place in members:
            if before >= 0:
                yield before, place
            pending |= dict.fromkeys(touched, place)
        else:
            before = place
