"""Rules of the simulation as edges, walked on measured times."""

from typing import Any

from foretrace.analysis.collectives import collective_times
from foretrace.analysis.critical_path import PathSummary, summarize_path
from foretrace.analysis.dependencies import measured_tasks
from foretrace.analysis.host_time import host_segments
from foretrace.graph import Graph
from foretrace.graph.tables import COPY
from foretrace.simulation.critical_path import critical_path
from foretrace.simulation.task_graph import TRANSFER, TaskGraph, Timeline
from tests.analysis.builders import AUTOGRAD, Call, Orphan, all_reduce, job, launch, rank, sync, wait_event


def tasks_of(*ranks: Graph) -> tuple[TaskGraph, Timeline]:
    graphs = job(*ranks).graphs
    return measured_tasks(graphs, [host_segments(graph) for graph in graphs], collective_times(graphs)[0])


def path(*ranks: Graph) -> PathSummary:
    tasks, timeline = tasks_of(*ranks)
    segments = [host_segments(graph) for graph in ranks]
    return summarize_path(critical_path(tasks, timeline), tasks, timeline, list(ranks), segments)


def ms(found: PathSummary, **fields: Any) -> float:
    parts = (row for row in found.rows if all(getattr(row, key) == value for key, value in fields.items()))
    return round(sum(part.ms for part in parts), 6)


def test_a_kernel_on_an_idle_stream_is_held_up_by_its_launch() -> None:
    found = path(rank(Call("aten::mm", 0, 100), launch(90, 98, (105, 200))))
    assert ms(found, what="kernel") == 0.095
    assert ms(found, what="latency") == 0.007
    assert ms(found, what="T2") == 0.09


def test_a_kernel_on_a_busy_stream_is_held_up_by_the_one_before() -> None:
    found = path(rank(launch(0, 5, (6, 100), name="long"), launch(7, 9, (101, 120), name="short")))
    assert ms(found, name="long") == 0.094
    assert ms(found, what="T4") == 0.005


def test_a_kernel_that_starts_while_its_launch_returns_is_still_held_up_by_it() -> None:
    found = path(rank(launch(0, 10, (8, 30))))
    assert ms(found, what="T4") == 0.008
    assert found.ms == 0.03


def test_a_stream_that_waits_for_an_event_goes_on_after_the_other_streams_kernel() -> None:
    events = (
        launch(0, 2, (3, 80), stream=7, name="first"),
        wait_event(5),
        launch(6, 8, (81, 90), stream=9, name="second"),
    )
    assert ms(path(rank(*events)), name="first") == 0.077


def test_a_kernel_that_starts_as_another_streams_ends_waited_for_it_where_the_trace_tells_no_event() -> None:
    long, beside = launch(0, 2, (3, 80), name="long"), launch(2, 4, (5, 8), stream=9)
    assert ms(path(rank(long, beside, launch(4, 6, (83, 90), stream=9))), name="long") == 0.077
    found = path(rank(beside, launch(4, 6, (83, 90), stream=9), launch(7, 9, (10, 80), name="long")))
    assert ms(found, what="unexplained") == 0.075, "what is launched later holds nothing up"


def test_a_stream_that_does_not_wait_runs_beside_the_other() -> None:
    found = path(rank(launch(0, 2, (3, 80), name="first"), launch(6, 8, (9, 90), stream=9, name="second")))
    assert ms(found, name="first") == 0.0


def test_a_kernel_that_started_before_the_other_ended_did_not_wait_for_it() -> None:
    found = path(
        rank(launch(0, 2, (3, 80), name="first"), wait_event(5), launch(6, 8, (9, 90), stream=9, name="second"))
    )
    assert ms(found, name="first") == 0.0


def test_a_sync_holds_its_thread_until_the_kernel_is_done() -> None:
    found = path(rank(launch(0, 2, (3, 80), name="long"), sync(5, 84), Call("aten::view", 84, 100)))
    assert ms(found, name="long") == 0.077
    assert ms(found, what="sync") == 0.004
    assert ms(found, what="T2") == 0.016


def test_a_sync_does_not_wait_for_a_kernel_that_runs_on_after_it() -> None:
    found = path(rank(launch(0, 2, (3, 900), name="other"), sync(5, 84), Call("aten::view", 84, 1000)))
    assert ms(found, name="other") == 0.0


def test_a_blocking_copy_holds_its_thread_until_it_is_done() -> None:
    copy = launch(0, 50, (6, 45), device_kind=COPY, name="Memcpy DtoH")
    found = path(rank(copy, Call("aten::view", 50, 60)))
    assert ms(found, what="copy") == 0.039
    assert ms(found, what="T4") == 0.006


def test_autograd_starts_when_the_main_thread_hands_over_and_the_main_thread_when_autograd_is_done() -> None:
    found = path(rank(Call("a", 0, 10), Call("b", 20, 50, AUTOGRAD), Call("c", 60, 70)))
    assert found.ms == 0.07
    assert (ms(found, name="a"), ms(found, what="T2", name="b"), ms(found, what="T2", name="c")) == (0.01, 0.03, 0.01)
    assert ms(found, what="T1") == 0.02
    assert ms(found, what="unexplained") == 0.0


def test_a_collective_starts_when_its_last_rank_arrives() -> None:
    early = rank(all_reduce(0, 2, (3, 120)))
    late = rank(Call("aten::mm", 0, 90), all_reduce(92, 95, (100, 120)))
    tasks, timeline = tasks_of(early, late)
    (transfer,) = (tasks.kind == TRANSFER).nonzero()[0]
    assert timeline.start[transfer] == 100.0 and timeline.end[transfer] == 120.0
    assert tasks.rank[transfer] == 1


def test_a_kernel_that_starts_before_the_collective_ahead_of_it_is_over_follows_its_ranks_own_work() -> None:
    early = rank(launch(0, 1, (5, 49), 20, name="work"), all_reduce(2, 3, (50, 60)), launch(4, 5, (52, 100), 20))
    found = path(early, rank(launch(0, 1, (5, 54), 20), all_reduce(2, 3, (55, 60)), launch(4, 5, (61, 70), 20)))
    assert (ms(found, name="work"), ms(found, what="unexplained")) == (0.044, 0.0)


def test_the_path_crosses_to_the_rank_that_arrived_last() -> None:
    early = rank(all_reduce(0, 2, (3, 120)), wait_event(4), launch(5, 7, (121, 200), name="after"))
    late = rank(Call("aten::mm", 0, 90), all_reduce(92, 95, (100, 120)))
    found = path(early, late)
    assert ms(found, name="after", rank=0) == 0.079
    assert ms(found, what="transfer", rank=None) == 0.02
    assert ms(found, what="T2", rank=1) == 0.09
    assert set(found.by_rank) == {0, 1}


def test_only_who_waits_for_a_collective_is_stalled_by_it() -> None:
    asynchronous = rank(all_reduce(0, 2, (3, 120)), launch(5, 7, (8, 200), name="compute"))
    late = rank(Call("aten::mm", 0, 90), all_reduce(92, 95, (100, 120)))
    assert ms(path(asynchronous, late), what="transfer") == 0.0


def test_a_broadcast_whose_root_is_done_early_is_no_meeting() -> None:
    root = rank(all_reduce(0, 2, (3, 10), kind="broadcast"))
    other = rank(Call("aten::mm", 0, 90), all_reduce(92, 95, (100, 120), kind="broadcast"))
    assert not (tasks_of(root, other)[0].kind == TRANSFER).any()


def test_a_long_gap_that_no_rule_explains_is_said_to_be_unexplained() -> None:
    found = path(rank(launch(0, 5, (2305, 2400))))
    assert ms(found, what="unexplained") == 2.3
    assert found.ms == 2.4


def test_a_path_that_begins_after_the_job_began_is_that_of_a_late_rank() -> None:
    found = path(rank(Call("aten::mm", 0, 10)), rank(Call("aten::mm", 40, 100)))
    (late,) = [part for part in found.rows if part.what == "late start"]
    assert (late.rank, late.ms, late.name) == (0, 0.04, "rank 1 began after rank 0")
    assert found.ms == 0.1


def test_kernels_launched_before_the_trace_hold_up_those_behind_them() -> None:
    found = path(rank(Orphan(0, 80), launch(5, 7, (81, 100), name="mine")))
    assert ms(found, what="launched before") == 0.08


def test_parts_of_the_path_add_up_to_it() -> None:
    late = rank(Call("aten::mm", 30, 90), all_reduce(92, 95, (100, 120)), sync(96, 130), Call("aten::view", 131, 150))
    found = path(rank(all_reduce(0, 2, (3, 120))), late)
    assert round(sum(part.ms for part in found.rows), 9) == round(found.ms, 9) == 0.15
    assert round(sum(part.share for part in found.rows), 9) == 1.0


def test_a_rank_without_any_times_has_no_path() -> None:
    assert path(rank()).rows == []
