"""The weight of the profiler, and a step without it."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.graph import CallTable, Graph, KernelTable, Op, OpTable, Span, Timings
from foretrace.graph.tables import LAUNCH, SYNC, Names
from foretrace.replay.unwatched import Profiled, unwatched

STEP = Span("ProfilerStep#1", 0.0, 100.0)
MARKS = np.arange(0.0, 100.0, 2.0)
"""Fifty things that the profiler notes, unless the host waits."""


def graph_of(launches: list[float], kernel_us: float, waits: list[tuple[float, float]], plain_ms: float) -> Graph:
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
    return Graph(ops, calls=calls, kernels=kernels, steps=[STEP], plain=Timings((plain_ms,)), marks=marks)


def test_without_weight_a_step_is_as_long_as_it_was() -> None:
    profiled = Profiled(graph_of([10.0, 50.0, 90.0], 5.0, [], 0.05), STEP)
    assert profiled.step_us(0.0) == pytest.approx(100.0)


def test_a_step_that_waits_for_its_host_gets_shorter_by_the_whole_weight() -> None:
    profiled = Profiled(graph_of([10.0, 50.0, 90.0], 5.0, [], 0.05), STEP)
    assert profiled.step_us(1.0) == pytest.approx(50.0)
    assert profiled.weight(50.0) == pytest.approx(1.0)


def test_no_call_is_left_without_time() -> None:
    # One long interval among short ones: a weight that the short ones do not have is not taken off them.
    marks = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    graph = Graph(OpTable.of([]), steps=[STEP], plain=Timings((0.090,)), marks=marks)
    plain = unwatched(graph, np.append(0.0, marks))
    assert (np.diff(plain) > 0.2).all()


def test_a_device_falls_behind_a_host_that_is_no_longer_slowed() -> None:
    # Kernels of 30 us, launched every 30 us: the device just keeps up with the profiled host.
    graph = graph_of([0.0, 30.0, 60.0], 30.0, [(92.0, 100.0)], 0.094)
    profiled = Profiled(graph, STEP)
    assert profiled.step_us(0.2) == pytest.approx(90.2, abs=0.5)
    # All of it on the host would be 0.12 us a mark, and the replay would then wait for the device on top of that.
    assert profiled.step_us(1.0) == pytest.approx(90.0, abs=1.0)


def test_a_wait_in_the_middle_ends_when_the_device_is_done() -> None:
    graph = graph_of([0.0, 10.0], 30.0, [(20.0, 60.0)], 0.1)
    profiled = Profiled(graph, STEP)
    assert profiled.step_us(0.0) == pytest.approx(100.0)
    # Half the host's time: 10 us of launching, the device until 60, then 20 of the 40 that followed.
    assert profiled.step_us(1.0) == pytest.approx(60.0 + 20.0, abs=2.0)


def test_a_step_that_waits_for_its_device_keeps_the_hosts_times() -> None:
    graph = graph_of([0.0, 10.0], 60.0, [(30.0, 120.0)], 0.125)
    assert Profiled(graph, STEP).weight(125.0) == 0.0
    assert unwatched(graph, np.array([0.0, 30.0])).tolist() == [0.0, 30.0]
