"""Edges within a rank."""

from foretrace.forecast.dependencies import Streams, event_waits, launches, sync_waits
from foretrace.forecast.host import host_segments
from foretrace.graph import Graph
from tests.forecast.builders import Call, Orphan, launch, rank, sync, wait_event


def waits(graph: Graph) -> list[list[int]]:
    return event_waits(graph, Streams(graph)).tolist()


def test_every_kernel_of_a_captured_graph_is_held_by_the_one_launch() -> None:
    graph = rank(launch(0, 4, (6, 9)), Orphan(10, 12))
    graph.kernels.call[:] = 0
    assert launches(graph, host_segments(graph)).tolist() == [[0, 0], [0, 1]]


def test_a_kernel_of_a_launch_inside_another_is_held_by_the_outer_one() -> None:
    graph = rank(Call("aten::mm", 0, 10), launch(2, 6, (7, 8)), launch(3, 5, (8, 9)))
    segments = host_segments(graph)
    held_by = {int(after): segments.start[before] for before, after in launches(graph, segments)}
    assert held_by == {0: 2.0, 1: 2.0}


def test_a_kernel_launched_before_the_trace_is_held_by_no_call() -> None:
    graph = rank(Orphan(0, 2), launch(3, 4, (5, 6)))
    assert launches(graph, host_segments(graph)).tolist() == [[0, 1]]


def test_a_wait_is_for_the_last_kernel_launched_before_it_not_for_earlier_ones() -> None:
    graph = rank(launch(0, 1, (2, 5)), launch(2, 3, (6, 9)), wait_event(4), launch(5, 6, (12, 15), stream=9))
    assert waits(graph) == [[1, 2]]


def test_a_wait_holds_only_the_next_kernel_of_a_stream() -> None:
    graph = rank(launch(0, 1, (2, 5)), wait_event(3), *(launch(t, t + 1, (t + 5, t + 6), stream=9) for t in (4, 8)))
    assert waits(graph) == [[0, 1]]


def test_a_sync_waits_for_the_last_kernel_of_each_stream() -> None:
    graph = rank(launch(0, 1, (2, 50)), launch(2, 3, (4, 70), stream=9), sync(5, 75))
    segments = host_segments(graph)
    assert [kernel for kernel, _ in sync_waits(segments, Streams(graph)).tolist()] == [0, 1]


def test_clocks_that_differ_by_microseconds_do_not_hide_what_a_sync_waited_for() -> None:
    graph = rank(launch(0, 1, (2, 79)), sync(5, 75))
    assert len(sync_waits(host_segments(graph), Streams(graph))) == 1
