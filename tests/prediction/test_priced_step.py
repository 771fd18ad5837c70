"""Priced steps."""

from typing import Any

import numpy as np

from foretrace.analysis.dispatched import dispatched_calls
from foretrace.cost_models.host.pricing import HostCosts
from foretrace.graph import Graph, Op, OpTable
from foretrace.prediction.priced_step import _durations, price_step
from foretrace.simulation.task_graph import T1, T4
from tests.analysis import builders
from tests.prediction.by_hand import Call, step


def test_a_step_has_a_price_for_each_call(platform: Any) -> None:
    graph = Graph(OpTable.of([Op("aten::view"), Op("aten::mm")]))
    made, notes = price_step(graph, dispatched_calls(graph), platform, None)
    assert len(made) == 2 and not notes
    assert made.work.call.tolist() == [1]
    assert made.durations[T4].tolist() == [3.0, 3.0]


def test_threads_take_turns_unless_their_times_overlap(platform: Any) -> None:
    graph = builders.rank(
        builders.Call("aten::mm", 0, 10, thread=1),
        builders.Call("aten::mm", 5, 20, thread=2),
        builders.Call("aten::mm", 30, 40, thread=1),
    )
    made, _ = price_step(graph, dispatched_calls(graph), platform, "model")
    assert made.concurrent.tolist() == [False, True, False]


def test_the_last_and_the_first_kernel_are_found_by_stream() -> None:
    made = step(Call([1.0]), Call([1.0], stream=8), Call(), Call([1.0, 1.0]))
    calls = np.array([0, 1, 2, 3])
    assert made.last_kernel(calls).tolist() == [0, 1, 0, 3]
    assert made.first_kernel(calls).tolist() == [0, 1, 2, 2]
    assert made.last_kernel(calls, stream=8).tolist() == [-1, 1, 1, 1]


def test_repeating_a_step_repeats_all_of_it() -> None:
    made = step(Call([1.0, 2.0]), Call([3.0]), streams=[(0, 1)]).repeated(2)
    assert made.work.call.tolist() == [0, 0, 1, 2, 2, 3]
    assert made.work.launch.tolist() == [0, 1, 2, 3, 4, 5]
    assert made.waits.streams.tolist() == [[0, 1], [2, 3]]
    assert len(made) == 4 and len(made.work.name) == 6


def test_what_was_timed_up_to_the_next_call_has_no_gap_of_its_own() -> None:
    once, gap = np.array([5.0, 0.0]), np.array([2.0, 2.0])
    nothing = np.zeros(2)
    host = HostCosts(once + gap, gap, nothing, nothing, nothing, nothing, nothing, nothing, common=0.1)
    assert _durations(host, np.array([0], np.int32))[T1].tolist() == [5.0, 2.0]
