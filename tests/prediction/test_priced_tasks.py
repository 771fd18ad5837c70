"""The rules of the simulation, each as a sentence."""

import numpy as np
import pytest

from foretrace.prediction.priced_step import ALL_STREAMS, OWN_STREAM
from foretrace.simulation.task_graph import KERNEL, SYNC, T1, T2, T3, T4, T5
from tests.prediction.by_hand import Call, device, host_end, kernel_times, run, step


def test_a_call_is_t1_t2_its_launch_and_t3_with_the_kernel_behind_the_launch() -> None:
    table, timeline = run(step(Call(kernels=[10.0])), device())
    assert table.kind.tolist() == [T1, T2, T4, KERNEL, T3]
    assert timeline.start.tolist() == [0.0, 1.0, 3.0, 6.0, 6.0]
    assert timeline.end.tolist() == [1.0, 3.0, 6.0, 16.0, 7.0]


def test_t5_lies_between_the_launches_of_a_call() -> None:
    table, timeline = run(step(Call(kernels=[1.0, 1.0, 1.0])), device())
    assert [k for k in table.kind.tolist() if k != KERNEL] == [T1, T2, T4, T5, T4, T5, T4, T3]
    assert host_end(table, timeline) == 1 + 2 + 3 * 3 + 2 * 0.5 + 1


def test_a_call_without_kernels_costs_the_host_only() -> None:
    table, timeline = run(step(Call(), Call()), device())
    assert KERNEL not in table.kind and timeline.span == 2 * (1 + 2 + 1)


def test_a_kernel_starts_after_its_launch_and_the_devices_latency() -> None:
    assert kernel_times(*run(step(Call(kernels=[10.0])), device(latency=2.0))) == [(8.0, 18.0)]


def test_a_kernel_starts_after_the_one_before_it_on_its_stream_and_a_gap() -> None:
    times = kernel_times(*run(step(Call(kernels=[100.0]), Call(kernels=[5.0])), device(gap=1.5, latency=2.0)))
    assert times[1][0] == times[0][1] + 1.5


def test_kernels_on_different_streams_run_side_by_side() -> None:
    first, second = kernel_times(*run(step(Call([100.0]), Call([5.0], stream=8)), device()))
    assert second[1] < first[1]


def test_a_stream_waits_for_the_work_it_was_told_to_wait_for() -> None:
    made = step(Call([100.0]), Call([5.0], stream=8), Call([5.0], stream=8), streams=[(0, 1)])
    first, second, third = kernel_times(*run(made, device()))
    assert second[0] == first[1] and third[0] == second[1]


def test_a_wait_of_a_call_that_launches_nothing_holds_the_next_work_of_its_stream() -> None:
    made = step(Call([100.0]), Call(stream=8), Call([5.0], stream=8), streams=[(0, 1)])
    first, second = kernel_times(*run(made, device()))
    assert second[0] == first[1]


def test_a_sync_holds_the_host_until_its_stream_has_drained() -> None:
    table, timeline = run(step(Call([100.0]), Call([5.0], waits=OWN_STREAM), Call()), device())
    (_, drained) = kernel_times(table, timeline)[1]
    (wait,) = np.flatnonzero(table.kind == SYNC)
    assert timeline.end[wait] == drained
    assert host_end(table, timeline) == drained + 1 + (1 + 2 + 1)


def test_a_sync_of_one_stream_does_not_wait_for_another() -> None:
    made = step(Call([1000.0], stream=8), Call([5.0], waits=OWN_STREAM))
    assert host_end(*run(made, device())) < 100.0
    made = step(Call([1000.0], stream=8), Call([5.0], waits=ALL_STREAMS))
    assert host_end(*run(made, device())) > 1000.0


def test_a_sync_with_nothing_to_wait_for_costs_nothing() -> None:
    assert host_end(*run(step(Call(waits=ALL_STREAMS)), device())) == 4.0


def test_a_host_that_runs_ahead_is_stopped_when_the_queue_is_full() -> None:
    calls = [Call([100.0]) for _ in range(6)]
    free, held = (host_end(*run(step(*calls), device(queue=queue))) for queue in (None, 2))
    assert free == 6 * 7.0
    times = kernel_times(*run(step(*calls), device(queue=2)))
    # The last launch begins when the fourth kernel is done.
    assert held == times[3][1] + 3.0 + 1.0


def test_the_kernels_of_a_cuda_graph_come_with_one_launch() -> None:
    table, timeline = run(step(Call([5.0, 5.0, 5.0], one_launch=True)), device(gap=1.0))
    assert (table.kind == T4).sum() == 1 and T5 not in table.kind
    assert kernel_times(table, timeline) == [(6.0, 11.0), (12.0, 17.0), (18.0, 23.0)]


def test_the_main_thread_waits_while_autograd_runs_the_backward() -> None:
    table, timeline = run(step(Call(thread=0), Call(thread=1), Call(thread=1), Call(thread=0)), device())
    assert timeline.span == 4 * 4.0
    assert len(np.unique(table.lane)) == 2


def test_threads_that_ran_at_once_do_so_again() -> None:
    _, timeline = run(step(Call(thread=0), Call(thread=1, concurrent=True), Call(thread=0, concurrent=True)), device())
    assert timeline.span == 2 * 4.0


def test_on_a_cpu_a_call_does_its_work_itself() -> None:
    made = step(Call([100.0], launch=0.0), Call([50.0], launch=0.0))
    table, timeline = run(made, device(kind="cpu"))
    assert host_end(table, timeline) == timeline.span == 150.0 + 2 * 4.0


def test_several_steps_follow_each_other_with_nothing_between() -> None:
    one = step(Call([100.0]), Call([5.0], stream=8), streams=[(0, 1)])
    table, timeline = run(one.repeated(3), device())
    assert host_end(table, timeline) == 3 * 2 * 7.0
    times = kernel_times(table, timeline)
    assert [start for start, _ in times[::2]] == [6.0, 106.0, 206.0]
    assert [start for start, _ in times[1::2]] == [106.0, 206.0, 306.0]


@pytest.mark.parametrize("calls", [[Call(), Call([3.0, 4.0]), Call([1.0], waits=ALL_STREAMS), Call()]])
def test_every_task_knows_its_call_and_every_kernel_its_row(calls: list[Call]) -> None:
    table, _ = run(step(*calls), device())
    kernels = table.kind == KERNEL
    assert table.row[kernels].tolist() == [0, 1, 2]
    assert table.op[kernels].tolist() == [1, 1, 2]
    assert table.row[~kernels].tolist() == list(range(np.count_nonzero(~kernels))), "rows of host segments"
