"""Measured times of the recording: host schedule without profiling overhead, device times, figures of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Graph, Op, Span, Storage
from foretrace.graph.calls import enclosing_calls
from foretrace.graph.tables import SYNC, Floats, Ints
from foretrace.replay.generate.literals import printable
from foretrace.replay.generate.plan import Plan, main_kind
from foretrace.replay.harness.report import MAX_NAME_CHARS, kernels_by_name, obfuscated

MIN_STEPS, MAX_SPREAD = 4, 0.15
"""Fewest unprofiled steps to judge by, and the widest interquartile range, relative to the median, of a quiet host."""
MAX_STEP_US = 600e6
"""A longer step is taken for damaged, and not paced."""


@dataclass(frozen=True)
class Schedule:
    """Host time in microseconds before and in each call and after the last; and which calls wait for the device.

    A replay has no modules, no autograd and no optimizer code, so its host would run ahead of the original's: this
    schedule paces it. Waits for the device are left out, since a replay waits by itself.
    """

    gap_us: Floats
    call_us: Floats
    waits: NDArray[np.bool_]
    tail_us: float


def unsteady_pace_note(unprofiled_ms: Sequence[float]) -> str | None:
    """A note that the pace is uncertain, where unprofiled steps vary; None otherwise.

    >>> unsteady_pace_note([10.0, 10.1, 9.9, 10.0, 30.0])
    >>> unsteady_pace_note([10.0, 14.0, 19.0, 11.0, 16.0])
    'unprofiled steps took from 11.0 to 16.0 ms: the host was busy with something else, and the pace is uncertain'
    """
    low, typical, high = np.quantile(unprofiled_ms or [0.0], (0.25, 0.5, 0.75)).tolist()
    if len(unprofiled_ms) < MIN_STEPS or high - low <= MAX_SPREAD * typical:
        return None
    busy = "the host was busy with something else, and the pace is uncertain"
    return f"unprofiled steps took from {low:.1f} to {high:.1f} ms: {busy}"


def schedule_of(graph: Graph, rows: Sequence[int]) -> Schedule:
    """Host schedule of the calls in these rows, without profiling overhead.

    >>> from foretrace.graph import Op, OpTable, Span
    >>> ops = [Op("aten::mm", start_us=2.0, end_us=6.0), Op("aten::relu", start_us=8.0, end_us=9.0)]
    >>> schedule = schedule_of(Graph(OpTable.of(ops), steps=[Span("ProfilerStep#1", 0.0, 10.0)]), [0, 1])
    >>> schedule.gap_us.tolist(), schedule.call_us.tolist(), schedule.tail_us
    ([2.0, 2.0], [4.0, 1.0], 1.0)
    """
    start, end = graph.ops.start[rows], graph.ops.end[rows]
    count = len(rows)
    if not count or not np.isfinite(start).all() or np.ptp(start) > MAX_STEP_US:
        return Schedule(np.zeros(count), np.zeros(count), np.zeros(count, bool), 0.0)
    step = next((s for s in graph.steps if s.start <= start[0] < s.end), None)
    # Every other interval is a call; a call that began while another ran (on another thread) takes what is left of it.
    bounds = np.column_stack([start, end]).reshape(-1)
    bounds = np.concatenate([[step.start if step else start[0]], bounds, [step.end if step else end[-1]]])
    bounds = np.maximum.accumulate(bounds)
    waited, last = _waits(graph, bounds)
    spent = np.diff(without_profiling_overhead(graph, bounds)) - waited
    if last is not None:  # what follows the wait at the end of the step is not paced
        spent[-1] = min(spent[-1], max(last - bounds[-2], 0.0))
    spent = np.maximum(spent, 0.0)
    return Schedule(spent[0:-1:2], spent[1::2], waited[1::2] + waited[0:-1:2] > 0, float(spent[-1]))


def _waits(graph: Graph, bounds: Floats) -> tuple[Floats, float | None]:
    """Time waiting for the device in each interval; and the start of the first wait after the last call."""
    waited = np.zeros(len(bounds) - 1)
    last: float | None = None
    for row in np.flatnonzero(graph.calls.kind == SYNC).tolist():
        first, until = float(graph.calls.start[row]), float(graph.calls.end[row])
        place = int(np.searchsorted(bounds, first, side="right")) - 1
        if place == len(waited) - 1:
            last = first if last is None else min(last, first)
        elif 0 <= place < len(waited):
            waited[place] += min(until, bounds[place + 1]) - first
    on_threads = np.zeros(len(bounds) - 1)  # between calls, for a collective on the host's other threads (gloo)
    for row in [c.op for c in graph.collectives if c.kernel < 0 <= c.op]:
        began, ended = float(graph.ops.start[row]), float(graph.ops.end[row])
        place = int(np.searchsorted(bounds, ended, side="right")) - 1
        if graph.ops[row].name.startswith("gloo:") and 0 <= place < len(waited) and place % 2 == 0:
            on_threads[place] = max(on_threads[place], ended - max(began, bounds[place]))
    return waited + on_threads, last


HALVINGS = 40
MIN_HOST_SHARE = 0.3
"""Least share of the time between two profiler events that is the host's own. Were it 0, no replay could keep to the
schedule, and one that is late before a long call would end late."""


class ProfiledStep:
    """A profiled step, simulated with less profiling overhead.

    The profiler is taken to need the same time for each event it records, but no more than a share of the time between
    two events. That overhead follows from the unprofiled steps: with it taken off the host and with kernels as long as
    measured, the simulated step takes as long as they did. The device may then turn out to be the slower of the two.
    """

    def __init__(self, graph: Graph, step: Span) -> None:
        self._start, self._end = step.start, step.end
        noted = graph.profiler_events[(graph.profiler_events > step.start) & (graph.profiler_events < step.end)]
        self._marks: Floats = np.concatenate([[step.start], noted, [step.end]])
        kernels = graph.kernels
        launched = kernels.start.copy()
        known = kernels.call >= 0
        launched[known] = graph.calls.start[kernels.call[known]]
        inside = (launched >= step.start) & (launched < step.end)
        order = np.argsort(launched[inside], kind="stable")
        self._launched: Floats = launched[inside][order]
        self._spent: Floats = (kernels.end - kernels.start)[inside][order]
        self._stream: Ints = kernels.stream[inside][order]
        syncs = graph.calls.kind == SYNC
        waits = zip(graph.calls.start[syncs].tolist(), graph.calls.end[syncs].tolist())
        self._waits = sorted((first, last) for first, last in waits if step.start <= first < step.end)

    def host(self, times: Floats, overhead_us: float) -> Floats:
        """Host times without that overhead per event; waits for the device are included."""
        between = np.diff(self._marks)
        left = np.maximum(between - overhead_us, MIN_HOST_SHARE * between)
        return np.asarray(np.interp(times, self._marks, np.concatenate([[0.0], np.cumsum(left)])))

    def step_us(self, overhead_us: float) -> float:
        """Step time without that overhead per event; the step ends when the device is done."""
        waited = np.cumsum([0.0, *(last - first for first, last in self._waits)])
        ends = np.array([last for _, last in self._waits])
        launched = self.host(self._launched, overhead_us) - waited[np.searchsorted(ends, self._launched)]
        busy: dict[int, float] = {}
        shift, begin = 0.0, 0
        for number, (first, _) in enumerate(self._waits):
            end = int(np.searchsorted(self._launched, first))
            self._run(launched[begin:end] + shift, slice(begin, end), busy)
            here = float(self.host(np.array([first]), overhead_us)[0] - waited[number]) + shift
            shift += max(max(busy.values(), default=0.0) - here, 0.0)
            begin = end
        self._run(launched[begin:] + shift, slice(begin, None), busy)
        host = float(self.host(np.array([self._end]), overhead_us)[0] - waited[-1]) + shift
        return max([host, *busy.values()])

    def _run(self, launched: Floats, which: slice, busy: dict[int, float]) -> None:
        """Run kernels, each after its launch and after the one before it on its stream."""
        spent, stream = self._spent[which], self._stream[which]
        for lane in np.unique(stream).tolist():
            mine = stream == lane
            before = np.cumsum(spent[mine]) - spent[mine]
            start = np.maximum.accumulate(np.maximum(launched[mine] - before, busy.get(lane, 0.0)))
            busy[lane] = float(start[-1] + before[-1] + spent[mine][-1])

    def overhead_us(self, unprofiled_us: float) -> float:
        """Overhead per event with which the simulated step takes as long as an unprofiled one."""
        low, high = 0.0, float(np.diff(self._marks).max())
        if self.step_us(low) <= unprofiled_us:
            return low
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.step_us(middle) > unprofiled_us else (low, middle)
        return high


def without_profiling_overhead(graph: Graph, times: Floats) -> Floats:
    """Host times of a profiled step as they would be unprofiled, from the start of the step.

    >>> from foretrace.graph import OpTable, Timings
    >>> step, unprofiled = Span("ProfilerStep#1", 0.0, 12.0), Timings((0.010,))
    >>> graph = Graph(OpTable.of([]), steps=[step], unprofiled=unprofiled, profiler_events=np.array([4.0]))
    >>> without_profiling_overhead(graph, np.array([0.0, 4.0, 12.0])).round(3).tolist()
    [0.0, 3.0, 10.0]
    """
    step = next((s for s in graph.steps if s.start <= times.min(initial=np.inf) < s.end), None)
    if step is None:
        return times
    profiled = ProfiledStep(graph, step)
    unprofiled = graph.unprofiled.synced_ms
    return profiled.host(times, profiled.overhead_us(float(np.median(unprofiled)) * 1e3) if unprofiled else 0.0)


def device_us(graph: Graph, rows: Sequence[int]) -> Floats:
    """Device time that each call launched, in microseconds."""
    call_of = enclosing_calls(graph, np.array(rows, np.int32))[graph.kernels.op]
    known = call_of >= 0
    spent = (graph.kernels.end - graph.kernels.start)[known]
    return np.bincount(call_of[known], spent, minlength=len(rows)).astype(np.float64)


COLLECTIVES = ("c10d::", "_c10d_functional::")
WAITS = ("c10d::wait", "_c10d_functional::wait_tensor")


def collective_us(graph: Graph, rows: Sequence[int], ops: Sequence[Op]) -> dict[int, float]:
    """Duration of each collective in microseconds, by the position of its call among these rows."""
    place = enclosing_calls(graph, np.array(rows, np.int32))
    called = [number for number, op in enumerate(ops) if op.name.startswith(COLLECTIVES) and op.name not in WAITS]
    in_order = len(called) == len(graph.collectives)  # work of gloo's threads is in no call, but in the same order
    took: dict[int, float] = {}
    for turn, collective in enumerate(graph.collectives):
        table, row = (graph.kernels, collective.kernel) if collective.kernel >= 0 else (graph.ops, collective.op)
        number = called[turn] if in_order else int(place[collective.op]) if collective.op >= 0 else -1
        if number >= 0 and row >= 0 and (spent := float(table.end[row] - table.start[row])) > 0:
            took[number] = spent
    return took


def original_of(graph: Graph, plan: Plan, obfuscate: bool = False) -> dict[str, Any]:
    """Figures of the original, with the field names of a replay's result.

    Of a part of a step, time and memory are unknown, and only kernels that its calls launched count.
    """
    table, rows = graph.kernels, {row for call in plan.recorded for row in call.rows}
    named = zip(table.name.tolist(), table.op.tolist(), (table.end - table.start).tolist())
    taken = [(table.names[code], us) for code, op, us in named if plan.whole or op in rows]
    kernels = kernels_by_name([(_shown(name, obfuscate), us) for name, us in taken])
    synced, rate = graph.unprofiled.synced_ms, graph.unprofiled.back_to_back_ms
    unknown = "the recording timed no unprofiled steps"
    if not plan.whole:
        unknown = "its figures are of the whole step, in the recorded batch"
    storages = list(graph.storages.values())
    peak = graph.unprofiled.peak_memory_bytes or _peak(storages, len(graph.ops))
    return {
        "step_ms": median(synced) if synced and plan.whole else None,
        "step_ms_back_to_back": median(rate) if rate and plan.whole else None,
        "kernel_ms": sum(ms for _, ms in kernels.values()) if kernels else None,
        "launches": int(sum(count for count, _ in kernels.values())) if kernels else None,
        "peak_memory_bytes": peak if plan.whole else None,
        "device": printable(main_kind(storage.device for storage in storages) if obfuscate else graph.device or "cpu"),
        "kernels": kernels,
        "why": None if synced and plan.whole else unknown,
    }


@cache
def _shown(kernel: str, obfuscate: bool) -> str:
    return obfuscated(kernel) if obfuscate else printable(kernel)[:MAX_NAME_CHARS]


def _peak(storages: list[Storage], calls: int) -> int | None:
    """Peak bytes on the main device, from allocations and frees of storages."""
    main = main_kind(storage.device for storage in storages)
    held = [storage for storage in storages if storage.device.partition(":")[0] == main]
    if not held:
        return None
    change = np.zeros(calls + 3, np.int64)
    for storage in held:
        change[storage.birth + 1] += storage.nbytes
        if storage.death >= 0:
            change[storage.death + 1] -= storage.nbytes
    return int(np.cumsum(change).max())
