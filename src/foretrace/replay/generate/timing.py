"""What the recording measured: host schedule without profiling overhead, device times, figures of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Graph, Op, Span, Storage
from foretrace.graph.calls import enclosing_calls
from foretrace.graph.tables import SYNC, Floats, Ints
from foretrace.replay.generate.literals import printable
from foretrace.replay.generate.plan import Plan, main_kind
from foretrace.replay.harness.report import MAX_NAME_CHARS, obfuscated

MIN_STEPS, MAX_SPREAD = 4, 0.15
"""Where the middle half of at least so many plain steps spreads over this share, their host was busy."""
MAX_STEP_US = 600e6
"""A step that claims to be longer is not waited for."""


@dataclass(frozen=True)
class Schedule:
    """Host time in microseconds: before each call, in it, after the last; and which calls wait for the device."""

    gap_us: Floats
    call_us: Floats
    waits: NDArray[np.bool_]
    tail_us: float


def unsteady_pace_note(unprofiled_ms: Sequence[float]) -> str | None:
    """Why the pace of a recording is unsure; None where its plain steps agree.

    >>> unsteady_pace_note([10.0, 10.1, 9.9, 10.0, 30.0])
    >>> unsteady_pace_note([10.0, 14.0, 19.0, 11.0, 16.0])
    'plain steps took from 11.0 to 16.0 ms: something else kept the host busy, and the pace is unsure'
    """
    if len(unprofiled_ms) < MIN_STEPS:
        return None
    low, typical, high = np.quantile(unprofiled_ms, (0.25, 0.5, 0.75)).tolist()
    if high - low <= MAX_SPREAD * typical:
        return None
    return (
        f"plain steps took from {low:.1f} to {high:.1f} ms: something else kept the host busy, and the pace is unsure"
    )


def schedule_of(graph: Graph, rows: Sequence[int]) -> Schedule:
    """The host's schedule of the calls in these rows, as a plain step has it.

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
    if last is not None:  # the wait at the end of the step takes all that follows it with it
        spent[-1] = min(spent[-1], max(last - bounds[-2], 0.0))
    spent = np.maximum(spent, 0.0)
    return Schedule(spent[0:-1:2], spent[1::2], waited[1::2] + waited[0:-1:2] > 0, float(spent[-1]))


def _waits(graph: Graph, bounds: Floats) -> tuple[Floats, float | None]:
    """Time spent in waits for the device in each interval; and the start of the first one after the last call."""
    waited = np.zeros(len(bounds) - 1)
    last: float | None = None
    for row in np.flatnonzero(graph.calls.kind == SYNC).tolist():
        first, until = float(graph.calls.start[row]), float(graph.calls.end[row])
        place = int(np.searchsorted(bounds, first, side="right")) - 1
        if place == len(waited) - 1:
            last = first if last is None else min(last, first)
        elif 0 <= place < len(waited):
            waited[place] += min(until, bounds[place + 1]) - first
    return waited + _waits_for_threads(graph, bounds), last


def _waits_for_threads(graph: Graph, bounds: Floats) -> Floats:
    """Time between calls that passed until a collective ended that other threads of the host did: it was waited for."""
    waited = np.zeros(len(bounds) - 1)
    for row in [c.op for c in graph.collectives if c.kernel < 0 <= c.op]:
        began, ended = float(graph.ops.start[row]), float(graph.ops.end[row])
        place = int(np.searchsorted(bounds, ended, side="right")) - 1
        if graph.ops[row].name.startswith("gloo:") and 0 <= place < len(waited) and place % 2 == 0:
            waited[place] = max(waited[place], ended - max(began, bounds[place]))
    return waited


HALVINGS = 40
MIN_HOST_SHARE = 0.3
"""The least share of the time between two notes that is the host's own. Were it none, no replay could keep to the
schedule, and whoever is late before a long call ends late."""


class ProfiledStep:
    """A profiled step: what its host did when, and what its device had to do."""

    def __init__(self, graph: Graph, step: Span) -> None:
        self._start, self._end = step.start, step.end
        noted = graph.marks[(graph.marks > step.start) & (graph.marks < step.end)]
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
        """When the host comes to these places, with the profiler's weight taken off; waits for the device stay in."""
        between = np.diff(self._marks)
        left = np.maximum(between - overhead_us, MIN_HOST_SHARE * between)
        return np.asarray(np.interp(times, self._marks, np.concatenate([[0.0], np.cumsum(left)])))

    def step_us(self, overhead_us: float) -> float:
        """How long a step takes whose host has that much less to do; it ends once the device is done."""
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
        """Let kernels run, each after its launch and after the one before it on its stream."""
        spent, stream = self._spent[which], self._stream[which]
        for lane in np.unique(stream).tolist():
            mine = stream == lane
            before = np.cumsum(spent[mine]) - spent[mine]
            start = np.maximum.accumulate(np.maximum(launched[mine] - before, busy.get(lane, 0.0)))
            busy[lane] = float(start[-1] + before[-1] + spent[mine][-1])

    def overhead_us(self, unprofiled_us: float) -> float:
        """The weight of each thing noted, with which the step is as long as a plain one."""
        low, high = 0.0, float(np.diff(self._marks).max())
        if self.step_us(low) <= unprofiled_us:
            return low
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.step_us(middle) > unprofiled_us else (low, middle)
        return high


def without_profiling_overhead(graph: Graph, times: Floats) -> Floats:
    """Times of a profiled step as they would be in a plain one, from the step's start on.

    >>> from foretrace.graph import OpTable, Timings
    >>> marks, plain = np.array([4.0]), Timings((0.010,))
    >>> graph = Graph(OpTable.of([]), steps=[Span("ProfilerStep#1", 0.0, 12.0)], plain=plain, marks=marks)
    >>> without_profiling_overhead(graph, np.array([0.0, 4.0, 12.0])).round(3).tolist()
    [0.0, 3.0, 10.0]
    """
    step = next((s for s in graph.steps if s.start <= times.min(initial=np.inf) < s.end), None)
    if step is None:
        return times
    profiled = ProfiledStep(graph, step)
    plain = graph.plain.synced_ms
    return profiled.host(times, profiled.overhead_us(float(np.median(plain)) * 1e3) if plain else 0.0)


def device_us(graph: Graph, rows: Sequence[int]) -> Floats:
    """Device time that each call launched."""
    whose = enclosing_calls(graph, np.array(rows, np.int32))[graph.kernels.op]
    known = whose >= 0
    spent = (graph.kernels.end - graph.kernels.start)[known]
    return np.bincount(whose[known], spent, minlength=len(rows)).astype(np.float64)


COLLECTIVES = ("c10d::", "_c10d_functional::")
WAITS = ("c10d::wait", "_c10d_functional::wait_tensor")


def collective_us(graph: Graph, rows: Sequence[int], ops: Sequence[Op]) -> dict[int, float]:
    """Microseconds that each collective was under way, by the place of its call among these rows."""
    place = enclosing_calls(graph, np.array(rows, np.int32))
    called = [number for number, op in enumerate(ops) if op.name.startswith(COLLECTIVES) and op.name not in WAITS]
    in_order = len(called) == len(graph.collectives)  # what gloo's threads did is in no call, but in the same order
    took: dict[int, float] = {}
    for turn, collective in enumerate(graph.collectives):
        table, row = (graph.kernels, collective.kernel) if collective.kernel >= 0 else (graph.ops, collective.op)
        number = called[turn] if in_order else int(place[collective.op]) if collective.op >= 0 else -1
        if number >= 0 and row >= 0 and (spent := float(table.end[row] - table.start[row])) > 0:
            took[number] = spent
    return took


def original_of(graph: Graph, plan: Plan, obfuscate: bool = False) -> dict[str, Any]:
    """The original's figures, under the words that a replay uses for its own.

    Of a part of a step nobody knows the time and the memory; of kernels, those count that its calls launched.
    """
    kernels = _kernels(graph, None if plan.whole else {call.row for call in plan.recorded}, obfuscate)
    synced, rate = graph.plain.synced_ms, graph.plain.back_to_back_ms
    storages = list(graph.storages.values())
    peak = graph.plain.peak_memory_bytes or _peak(storages, len(graph.ops))
    return {
        "step_ms": median(synced) if synced and plan.whole else None,
        "step_ms_back_to_back": median(rate) if rate and plan.whole else None,
        "kernel_ms": sum(ms for _, ms in kernels.values()) if kernels else None,
        "launches": int(sum(count for count, _ in kernels.values())) if kernels else None,
        "peak_memory_bytes": peak if plan.whole else None,
        "device": printable(main_kind(storage.device for storage in storages) if obfuscate else graph.device or "cpu"),
        "kernels": kernels,
        "why": None if synced and plan.whole else _no_time_reason(plan),
    }


def _no_time_reason(plan: Plan) -> str:
    """Why nobody knows the time of the original."""
    return (
        "the recording timed no plain steps"
        if plan.whole
        else "its figures are of the whole step, in the recorded batch"
    )


def _kernels(graph: Graph, rows: set[int] | None, obfuscate: bool) -> dict[str, list[float]]:
    """Count and milliseconds of each name of a kernel."""
    table = graph.kernels
    found: dict[str, list[float]] = {}
    spent = (table.end - table.start) / 1e3
    for code, op, ms in zip(table.name.tolist(), table.op.tolist(), spent.tolist()):
        if rows is None or op in rows:
            entry = found.setdefault(table.names[code], [0, 0.0])
            entry[0] += 1
            entry[1] += ms
    return {obfuscated(name) if obfuscate else printable(name)[:MAX_NAME_CHARS]: entry for name, entry in found.items()}


def _peak(storages: list[Storage], calls: int) -> int | None:
    """Most bytes alive at once on the step's own kind of device, by births and deaths of storages."""
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
