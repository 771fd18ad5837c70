"""Edges within a rank."""

from foretrace.analysis.dependencies import LAUNCHES_AHEAD, Streams, event_waits, launches, queue_waits, sync_waits
from foretrace.analysis.host_time import host_segments
from foretrace.graph import Graph
from tests.analysis.builders import Call, Orphan, all_reduce, launch, rank, sync, wait_event


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
    assert [kernel for kernel, _ in sync_waits(graph, segments, Streams(graph)).tolist()] == [0, 1]


def test_clocks_that_differ_by_microseconds_do_not_hide_what_a_sync_waited_for() -> None:
    graph = rank(launch(0, 1, (2, 79)), sync(5, 75))
    assert len(sync_waits(graph, host_segments(graph), Streams(graph))) == 1
    graph = rank(launch(0, 1, (2, 75)), launch(2, 3, (77, 79)), sync(5, 76))
    assert [kernel for kernel, _ in sync_waits(graph, host_segments(graph), Streams(graph)).tolist()] == [0]


def test_a_launch_waits_for_the_kernel_that_makes_room_for_it() -> None:
    first = [launch(t, t + 0.5, (2000 + 10 * t, 2010 + 10 * t)) for t in range(LAUNCHES_AHEAD)]
    full = launch(1500, 2011, (50_000, 50_010))
    graph = rank(*first, full)
    segments = host_segments(graph)
    (pair,) = queue_waits(graph, segments).tolist()
    assert pair[0] == 0 and segments.start[pair[1]] == 1500.0


def test_a_collectives_call_holds_its_own_stream_and_a_later_wait_the_computing_one() -> None:
    graph = rank(
        launch(0, 1, (2, 50)),
        Call("c10d::allreduce_", 5, 12),
        wait_event(6),
        all_reduce(8, 10, (51, 90)),
        Call("aten::mul", 13, 20),
        launch(14, 15, (52, 60)),
        wait_event(22),
        launch(24, 25, (91, 95)),
    )
    named = {(int(a), int(b)) for a, b in waits(graph)}
    compute, reduce, beside, after = 0, 1, 2, 3
    assert named == {(compute, reduce), (reduce, after)}, "what is launched beside the collective does not wait for it"
    assert beside not in {b for _, b in named}


def test_a_sync_of_one_stream_is_for_the_one_that_its_thread_works_on() -> None:
    graph = rank(launch(0, 1, (2, 4), stream=9), launch(2, 3, (4, 70)), sync(5, 75))
    graph.calls.names.items[0] = "cudaStreamSynchronize"
    assert [kernel for kernel, _ in sync_waits(graph, host_segments(graph), Streams(graph)).tolist()] == [1]
