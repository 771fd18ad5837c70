"""Graphs shifted and cut in time; ranks of a job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.graph import CallTable, Collective, Graph, Indices, Job, KernelTable, Names, Op, OpTable, Span
from foretrace.graph.graph import cut_to_step
from foretrace.graph.tables import COLLECTIVE, COMPUTE, LAUNCH


def step_of_two_launches() -> Graph:
    """Two ops, each launching a kernel: a product at 0 us and an all_reduce at 100 us."""
    ops = OpTable.of(
        [Op("aten::mm", start_us=0.0, end_us=10.0), Op("c10d::allreduce_", start_us=100.0, end_us=110.0, parent=-1)]
    )
    calls = CallTable(
        name=np.zeros(2, np.int32),
        start=np.array([2.0, 102.0]),
        end=np.array([4.0, 104.0]),
        thread=np.zeros(2, np.int32),
        kind=np.full(2, LAUNCH, np.int8),
        op=np.array([0, 1], np.int32),
        correlation=np.array([7, 8]),
        names=Names(["cudaLaunchKernel"]),
    )
    kernels = KernelTable(
        name=np.array([0, 1], np.int32),
        start=np.array([5.0, 105.0]),
        end=np.array([50.0, 300.0]),
        stream=np.array([7, 20], np.int32),
        kind=np.array([COMPUTE, COLLECTIVE], np.int8),
        call=np.array([0, 1], np.int32),
        op=np.array([0, 1], np.int32),
        nbytes=np.zeros(2, np.int64),
        grid=np.ones(2, np.int64),
        block=np.ones(2, np.int64),
        names=Names(["gemm", "ncclDevKernel_AllReduce"]),
    )
    return Graph(
        ops,
        calls,
        kernels,
        steps=[Span("first", 0.0, 90.0), Span("second", 90.0, 200.0)],
        collectives=[Collective("all_reduce", "0", 64, kernel=1, op=1)],
        allocated=((1.0, 10), (101.0, 20)),
    )


def test_cutting_keeps_what_was_called_in_the_stretch_and_renumbers_it() -> None:
    second = step_of_two_launches().between(90.0, 200.0)
    assert [op.name for op in second.ops] == ["c10d::allreduce_"]
    assert (second.calls.op[0], second.kernels.op[0], second.kernels.call[0]) == (0, 0, 0)
    assert second.kernels.end[0] == 300.0, "a kernel belongs to the step that launched it, however long it runs"
    assert (second.collectives[0].kernel, second.collectives[0].op) == (0, 0)
    assert [step.name for step in second.steps] == ["second"]
    assert second.allocated == ((101.0, 20),)


def test_cutting_drops_what_belongs_to_another_step() -> None:
    first = step_of_two_launches().between(0.0, 90.0)
    assert first.collectives == []
    assert [first.kernels.names[code] for code in first.kernels.name] == ["gemm"]


def test_communication_without_a_launch_belongs_to_the_launches_around_it_on_the_device() -> None:
    graph = step_of_two_launches()
    graph.kernels = graph.kernels.rows(np.array([0, 1, 1]))
    graph.kernels.start[:], graph.kernels.kind[2] = [5.0, 105.0, 40.0], COLLECTIVE
    graph.kernels.call[2] = graph.kernels.op[2] = -1
    assert graph.between(0.0, 90.0).kernels.start.tolist() == [5.0, 40.0]
    assert graph.between(90.0, 200.0).kernels.start.tolist() == [105.0]
    first, whole = cut_to_step(graph, "first")
    assert len(first.kernels) == len(whole.kernels) == 2


def test_cutting_keeps_the_ids_of_the_lookups_in_the_stretch() -> None:
    ids = [Indices(op, rows=9, count=4, unique=2, bags=1, reuse=(1, 1)) for op in (0, 1)]
    second = replace(step_of_two_launches(), indices=ids).between(90.0, 200.0)
    assert [found.op for found in second.indices] == [0]


def test_moving_keeps_wall_clock_times() -> None:
    graph = step_of_two_launches()
    moved = graph.shifted(1000.0)
    assert moved.kernels.start.tolist() == [1005.0, 1105.0]
    assert moved.origin_ns == graph.origin_ns - 1_000_000
    assert graph.kernels.start.tolist() == [5.0, 105.0], "the original stays"


def test_kernels_without_a_launch_are_counted() -> None:
    graph = step_of_two_launches()
    graph.kernels.call[0] = -1
    assert graph.launched_before_us == 45.0


def test_a_job_names_the_ranks_it_lacks() -> None:
    job = Job([Graph(OpTable.of([]), rank=rank, world=4) for rank in (0, 3)])
    assert (job.world, job.missing) == (4, [1, 2])


def test_a_rank_that_shares_anothers_graph_is_not_missing() -> None:
    job = Job([Graph(OpTable.of([]), rank=0)], alike={1: 0, 2: 0})
    assert (job.world, job.missing) == (3, [])
    larger = Job([Graph(OpTable.of([]), rank=0, world=4)], alike={1: 0, 2: 0})
    assert (larger.world, larger.missing) == (4, [3])
