"""Host time cut into T1 to T5."""

import numpy as np

from foretrace.analysis.host_time import KINDS, Segments, host_segments
from foretrace.graph import Graph, Names, Op, OpTable
from foretrace.graph.tables import ANNOTATION, COPY, MODULE, NODE, ActivityTable
from tests.analysis.builders import AUTOGRAD, MAIN, Call, launch, rank, sync


def cut(segments: Segments, thread: int = MAIN) -> list[tuple[str, float, float]]:
    rows = [i for i in range(len(segments)) if segments.thread[i] == thread]
    return [(KINDS[segments.kind[i]], float(segments.start[i]), float(segments.end[i])) for i in rows]


def test_a_call_is_cut_at_its_launches() -> None:
    graph = rank(Call("aten::mm", 0, 20), launch(3, 5, (6, 9)), launch(11, 14, (15, 18)))
    assert cut(host_segments(graph)) == [
        ("T2", 0, 3), ("T4", 3, 5), ("T5", 5, 11), ("T4", 11, 14), ("T3", 14, 20),
    ]  # fmt: skip


def test_a_call_without_launches_is_all_t2() -> None:
    assert cut(host_segments(rank(Call("aten::view", 2, 7)))) == [("T2", 2, 7)]


def test_time_between_outermost_calls_is_t1_and_belongs_to_the_one_that_follows() -> None:
    segments = host_segments(rank(Call("aten::view", 0, 4), Call("aten::mm", 10, 12)))
    assert cut(segments) == [("T2", 0, 4), ("T1", 4, 10), ("T2", 10, 12)]
    assert segments.op.tolist() == [0, 1, 1]


def test_calls_inside_calls_are_part_of_the_outermost_one() -> None:
    inner = [Call("aten::matmul", 1, 9), Call("aten::mm", 2, 8)]
    segments = host_segments(rank(Call("aten::linear", 0, 10), *inner, launch(4, 6, (7, 9))))
    assert cut(segments) == [("T2", 0, 4), ("T4", 4, 6), ("T3", 6, 10)]
    assert set(segments.op.tolist()) == {0}


def test_activities_of_no_length_on_a_thread_without_calls_are_cut_too() -> None:
    one = np.array([5.0])
    names = Names(["a"])
    does = ActivityTable(np.zeros(1, np.int32), one, one, np.full(1, 3, np.int32), np.zeros(1, np.int8), names)
    assert len(host_segments(Graph(OpTable.of([]), activities=does))) <= 1


def test_nodes_annotations_and_modules_are_no_calls() -> None:
    around = [
        Call("step", 0, 30, kind=ANNOTATION),
        Call("MmBackward0", 1, 29, kind=NODE),
        Call("net", 2, 28, kind=MODULE),
    ]
    graph = rank(*around, Call("aten::mm", 5, 8), Call("aten::mm", 10, 12))
    assert cut(host_segments(graph)) == [("T2", 5, 8), ("T1", 8, 10), ("T2", 10, 12)]


def test_a_launch_outside_any_call_belongs_to_the_annotation_around_it() -> None:
    segments = host_segments(rank(Call("compiled region", 0, 9, kind=ANNOTATION), launch(3, 5, (6, 8))))
    assert cut(segments) == [("T4", 3, 5)]
    assert segments.op.tolist() == [0]


def test_a_launch_inside_a_launch_is_not_counted_twice() -> None:
    graph = rank(Call("aten::mm", 0, 10), launch(2, 6, (7, 8)), launch(3, 5, (8, 9)))
    assert cut(host_segments(graph)) == [("T2", 0, 2), ("T4", 2, 6), ("T3", 6, 10)]


def test_a_sync_is_no_overhead() -> None:
    graph = rank(Call("aten::item", 0, 50), launch(2, 4, (5, 40)), sync(5, 42))
    assert cut(host_segments(graph)) == [
        ("T2", 0, 2), ("T4", 2, 4), ("T5", 4, 5), ("sync", 5, 42), ("T3", 42, 50),
    ]  # fmt: skip


def test_a_copy_that_is_done_when_its_call_returns_was_waited_for_from_its_own_start() -> None:
    graph = rank(launch(0, 30, (4, 28), device_kind=COPY))
    assert cut(host_segments(graph)) == [("T4", 0, 4), ("sync", 4, 30)]


def test_a_blocking_copy_behind_other_kernels_waits_from_the_start_of_its_call() -> None:
    graph = rank(launch(0, 2, (3, 90)), launch(5, 100, (91, 95), device_kind=COPY))
    assert cut(host_segments(graph))[-2:] == [("T4", 5, 5), ("sync", 5, 100)]


def test_a_copy_that_outlives_its_call_is_a_launch_like_any_other() -> None:
    assert cut(host_segments(rank(launch(0, 3, (4, 28), device_kind=COPY)))) == [("T4", 0, 3)]


def test_the_main_thread_does_nothing_while_autograd_runs_the_backward() -> None:
    forward, optimizer = Call("aten::mm", 0, 10), Call("aten::add_", 60, 70)
    backward = [Call("aten::mm", 20, 30, AUTOGRAD), Call("aten::mm", 35, 50, AUTOGRAD)]
    segments = host_segments(rank(forward, *backward, optimizer))
    assert cut(segments) == [("T2", 0, 10), ("T1", 50, 60), ("T2", 60, 70)]
    assert cut(segments, AUTOGRAD) == [("T1", 10, 20), ("T2", 20, 30), ("T1", 30, 35), ("T2", 35, 50)]


def test_the_thread_that_ended_a_wait_is_known() -> None:
    segments = host_segments(rank(Call("a", 0, 10), Call("b", 20, 50, AUTOGRAD), Call("c", 60, 70)))
    waited = {(int(t), int(a)) for t, a in zip(segments.thread, segments.after_thread) if a >= 0}
    assert waited == {(AUTOGRAD, MAIN), (MAIN, AUTOGRAD)}


def test_threads_that_work_at_the_same_time_do_not_wait_for_each_other() -> None:
    busy = [Call("a", start, start + 8) for start in range(0, 100, 10)]
    also_busy = [Call("b", start, start + 8, AUTOGRAD) for start in range(5, 105, 10)]
    segments = host_segments(rank(*busy, *also_busy))
    assert (segments.after_thread == -1).all()


def test_ops_that_nobody_timed_give_no_segments() -> None:
    assert len(host_segments(Graph(OpTable.of([Op("aten::mm"), Op("aten::relu")])))) == 0


def test_activities_that_take_no_time_on_a_thread_of_a_higher_number_are_no_bug() -> None:
    graph = Graph(OpTable.of([]))
    row, none = np.zeros(1, np.int32), np.zeros(1)
    graph.activities = ActivityTable(
        name=row, start=none, end=none, thread=row + 3, kind=np.full(1, ANNOTATION, np.int8), names=Names(["step"])
    )
    assert set(host_segments(graph).thread.tolist()) <= {3}
