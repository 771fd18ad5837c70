"""Host schedule, profiling overhead, and figures of the original."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.graph import CallTable, Graph, KernelTable, Op, OpTable, Span, Storage, Tensor, Timings
from foretrace.graph.tables import LAUNCH, SYNC, Names
from foretrace.replay.generate.choices import Selection
from foretrace.replay.generate.planning import plan_of
from foretrace.replay.generate.timing import (
    ProfiledStep,
    original_of,
    schedule_of,
    unsteady_pace_note,
    without_profiling_overhead,
)

STEP = [Span("ProfilerStep#1", 0.0, 100.0)]


def graph_of(*times: tuple[float, float], **facts: object) -> Graph:
    ops = [Op("aten::mm", start_us=start, end_us=end) for start, end in times]
    return Graph(OpTable.of(ops), steps=STEP, **facts)  # type: ignore[arg-type]


def total(graph: Graph) -> float:
    made = schedule_of(graph, range(len(graph.ops)))
    return float(made.gap_us.sum() + made.call_us.sum() + made.tail_us)


def test_gaps_and_calls_add_up_to_the_step() -> None:
    graph = graph_of((10.0, 30.0), (50.0, 90.0))
    made = schedule_of(graph, [0, 1])
    assert made.gap_us.tolist() == [10.0, 20.0] and made.call_us.tolist() == [20.0, 40.0] and made.tail_us == 10.0


def test_the_weight_of_the_profiler_is_taken_off() -> None:
    marks = np.array([10.0, 30.0, 50.0, 90.0])
    graph = graph_of((10.0, 30.0), (50.0, 90.0), profiler_events=marks, unprofiled=Timings((0.060,)))
    assert total(graph) == pytest.approx(60.0)


def test_a_call_on_another_thread_takes_what_the_first_leaves() -> None:
    made = schedule_of(graph_of((10.0, 40.0), (20.0, 60.0)), [0, 1])
    assert made.call_us.tolist() == [30.0, 20.0] and made.gap_us.tolist() == [10.0, 0.0]


def test_steps_that_agree_leave_no_doubt() -> None:
    assert unsteady_pace_note([10.0, 10.5, 9.8, 10.2]) is None
    assert unsteady_pace_note([10.0, 20.0]) is None  # too few to tell


def test_a_busy_host_is_said() -> None:
    said = unsteady_pace_note([10.0, 13.0, 18.0, 22.0, 11.0])
    assert said is not None and "busy" in said


SPAN = Span("ProfilerStep#1", 0.0, 100.0)
MARKS = np.arange(0.0, 100.0, 2.0)
"""Fifty things that the profiler notes, unless the host waits."""


def profiled_graph(launches: list[float], kernel_us: float, waits: list[tuple[float, float]], plain_ms: float) -> Graph:
    """A step of 100 us whose host launches kernels on one stream, each as early as it can be."""
    starts: list[float] = []
    for launched in launches:
        starts.append(max(launched, starts[-1] + kernel_us if starts else 0.0))
    begin, end = [*launches, *(w[0] for w in waits)], [*(t + 1 for t in launches), *(w[1] for w in waits)]
    kinds = [LAUNCH] * len(launches) + [SYNC] * len(waits)
    count, some = len(launches), len(begin)
    calls = CallTable(
        name=np.zeros(some, np.int32), start=np.array(begin), end=np.array(end), thread=np.zeros(some, np.int32),
        kind=np.array(kinds, np.int8), op=np.full(some, -1, np.int32), correlation=np.arange(some), names=Names(["x"]),
    )  # fmt: skip
    whole = {name: np.zeros(count, np.int64) for name in ("nbytes", "grid", "block")}
    kernels = KernelTable(
        name=np.zeros(count, np.int32), start=np.array(starts), end=np.array(starts) + kernel_us,
        stream=np.zeros(count, np.int32), kind=np.zeros(count, np.int8), call=np.arange(count, dtype=np.int32),
        op=np.zeros(count, np.int32), names=Names(["k"]), **whole,
    )  # fmt: skip
    ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=99.0)])
    marks = np.array([mark for mark in MARKS if not any(first < mark < last for first, last in waits)])
    return Graph(
        ops, calls=calls, kernels=kernels, steps=[SPAN], unprofiled=Timings((plain_ms,)), profiler_events=marks
    )


def test_without_weight_a_step_is_as_long_as_it_was() -> None:
    profiled = ProfiledStep(profiled_graph([10.0, 50.0, 90.0], 5.0, [], 0.05), SPAN)
    assert profiled.step_us(0.0) == pytest.approx(100.0)


def test_a_step_that_waits_for_its_host_gets_shorter_by_the_whole_weight() -> None:
    profiled = ProfiledStep(profiled_graph([10.0, 50.0, 90.0], 5.0, [], 0.05), SPAN)
    assert profiled.step_us(1.0) == pytest.approx(50.0)
    assert profiled.overhead_us(50.0) == pytest.approx(1.0)


def test_no_call_is_left_without_time() -> None:
    # One long interval among short ones: a weight that the short ones do not have is not taken off them.
    marks = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    graph = Graph(OpTable.of([]), steps=[SPAN], unprofiled=Timings((0.090,)), profiler_events=marks)
    plain = without_profiling_overhead(graph, np.append(0.0, marks))
    assert (np.diff(plain) > 0.2).all()


def test_a_device_falls_behind_a_host_that_is_no_longer_slowed() -> None:
    # Kernels of 30 us, launched every 30 us: the device just keeps up with the profiled host.
    graph = profiled_graph([0.0, 30.0, 60.0], 30.0, [(92.0, 100.0)], 0.094)
    profiled = ProfiledStep(graph, SPAN)
    assert profiled.step_us(0.2) == pytest.approx(90.2, abs=0.5)
    # All of it on the host would be 0.12 us a mark, and the replay would then wait for the device on top of that.
    assert profiled.step_us(1.0) == pytest.approx(90.0, abs=1.0)


def test_a_wait_in_the_middle_ends_when_the_device_is_done() -> None:
    graph = profiled_graph([0.0, 10.0], 30.0, [(20.0, 60.0)], 0.1)
    profiled = ProfiledStep(graph, SPAN)
    assert profiled.step_us(0.0) == pytest.approx(100.0)
    # Half the host's time: 10 us of launching, the device until 60, then 20 of the 40 that followed.
    assert profiled.step_us(1.0) == pytest.approx(60.0 + 20.0, abs=2.0)


def test_a_step_that_waits_for_its_device_keeps_the_hosts_times() -> None:
    graph = profiled_graph([0.0, 10.0], 60.0, [(30.0, 120.0)], 0.125)
    assert ProfiledStep(graph, SPAN).overhead_us(125.0) == 0.0
    assert without_profiling_overhead(graph, np.array([0.0, 30.0])).tolist() == [0.0, 30.0]


def graph() -> Graph:
    given, made = (Tensor((4,), "float32", "cpu", (1,), id=number, storage=number) for number in (0, 1))
    ops = [
        Op("aten::relu", (given,), outputs=(made,), overload="default", phase="forward"),
        Op("aten::neg", (made,), outputs=(made,), overload="default", phase="backward"),
    ]
    storages = {0: Storage(0, 16, "cpu", -1, -1), 1: Storage(1, 16, "cpu", 0, 1)}
    return Graph(OpTable.of(ops), storages=storages, unprofiled=Timings((3.0, 1.0, 2.0), (1.5,)), device="Some CPU")


def test_times_are_medians_of_plain_steps_and_memory_is_what_lived_at_once() -> None:
    found = original_of(graph(), plan_of(graph()))
    assert (found["step_ms"], found["step_ms_back_to_back"]) == (2.0, 1.5)
    assert found["peak_memory_bytes"] == 32 and found["device"] == "Some CPU" and found["kernel_ms"] is None


def test_of_a_part_nobody_knows_time_and_memory() -> None:
    found = original_of(graph(), plan_of(graph(), Selection(phase="forward")))
    assert found["step_ms"] is None and found["peak_memory_bytes"] is None


def test_obfuscated_the_machine_has_no_name() -> None:
    assert original_of(graph(), plan_of(graph()), obfuscate=True)["device"] == "cpu"
