"""When the original's host came to each call."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.graph import Graph, Op, OpTable, Span, Timings
from foretrace.replay.schedule import doubt, schedule_of

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
    graph = graph_of((10.0, 30.0), (50.0, 90.0), marks=marks, plain=Timings((0.060,)))
    assert total(graph) == pytest.approx(60.0)


def test_a_call_on_another_thread_takes_what_the_first_leaves() -> None:
    made = schedule_of(graph_of((10.0, 40.0), (20.0, 60.0)), [0, 1])
    assert made.call_us.tolist() == [30.0, 20.0] and made.gap_us.tolist() == [10.0, 0.0]


def test_steps_that_agree_leave_no_doubt() -> None:
    assert doubt([10.0, 10.5, 9.8, 10.2]) is None
    assert doubt([10.0, 20.0]) is None  # too few to tell


def test_a_busy_host_is_said() -> None:
    said = doubt([10.0, 13.0, 18.0, 22.0, 11.0])
    assert said is not None and "busy" in said
