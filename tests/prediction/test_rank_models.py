"""A rank that is about to be simulated."""

from dataclasses import replace

import pytest

from foretrace.graph import Graph, Span, Timings
from foretrace.prediction.predict import measured_ranks
from foretrace.prediction.rank_models import MeasuredRank
from foretrace.simulation.task_graph import KERNEL, SYNC
from tests.analysis.builders import Call, all_reduce, job, launch, rank


def recorded(*plain_ms: float) -> Graph:
    """A step of 300 us that holds a kernel of 50, of a recording in which profiled steps took 1.2 times as long."""
    call, kernel = Call("aten::mm", 0.0, 300.0), launch(90.0, 100.0, (200.0, 250.0))
    graph = rank(call, kernel, steps=[Span("ProfilerStep#3", 0.0, 300.0)])
    graph.profiling_overhead, graph.unprofiled = 1.2, Timings(synced_ms=plain_ms)
    return graph


@pytest.mark.parametrize(("plain", "slowdown"), [((), 1.2), ((0.2,), 1.5), ((0.1, 0.25, 9.0), 1.2), ((0.4,), 0.75)])
def test_host_times_are_brought_from_the_profiled_step_to_plain_ones(plain: tuple[float, ...], slowdown: float) -> None:
    rank_model = MeasuredRank.of(recorded(*plain), "ProfilerStep#3")
    duration, kind = rank_model.tasks.tasks.duration, rank_model.tasks.tasks.kind
    assert rank_model.profiling_overhead == pytest.approx(slowdown)
    assert duration[kind <= SYNC].sum() == pytest.approx(300.0 / slowdown)
    assert duration[kind == KERNEL].tolist() == [50.0], "what profiling adds is on the host"


def test_what_nothing_explains_is_known_task_by_task() -> None:
    rank_model = MeasuredRank.of(recorded(), None)
    assert rank_model.stalled_us == 80.0, "100 us after its launch, of which 20 may be latency"


def test_a_stream_beside_a_busy_one_does_not_stall_nor_does_what_starts_before_its_launch() -> None:
    beside = rank(
        Call("aten::mm", 0.0, 300.0), launch(80.0, 85.0, (90.0, 200.0)), launch(90.0, 100.0, (200.0, 250.0), stream=9)
    )
    early = rank(Call("aten::mm", 0.0, 300.0), launch(10.0, 20.0, (30.0, 40.0)), launch(190.0, 230.0, (200.0, 250.0)))
    assert [MeasuredRank.of(graph, None).stalled_us for graph in (beside, early)] == [0.0, 0.0]


def test_the_root_of_a_broadcast_goes_on_and_a_rank_of_an_all_reduce_stays() -> None:
    def both(late: float) -> Graph:
        of_root = 10.0 if not late else late + 10
        return rank(
            Call("c10d::broadcast_", 0.0, 4.0),
            all_reduce(1.0, 2.0, (2.0 + late, 2.0 + of_root), kind="broadcast"),
            Call("c10d::allreduce_", 200.0, 204.0),
            all_reduce(201.0, 202.0, (202.0 + late, 212.0 + late)),
        )

    root, other = measured_ranks(job(both(0.0), both(100.0)))[0]
    assert root.tasks.leaves is not None and root.tasks.leaves.tolist() == [True, False]
    assert other.tasks.leaves is None


def test_collectives_of_unknown_size_take_from_the_last_start_to_the_end() -> None:
    def meets(at: float, until: float) -> Graph:
        graph = rank(Call("c10d::allreduce_", 0.0, 4.0), all_reduce(1.0, 2.0, (at, until), nbytes=0))
        return replace(graph, collectives=[replace(one, us=until - at) for one in graph.collectives])

    both = measured_ranks(job(meets(2.0, 212.0), meets(102.0, 202.0)))[0]
    assert [one.us for each in both for one in each.graph.collectives] == [105.0, 105.0]


def test_a_device_that_is_busy_with_earlier_steps_after_the_mark_does_not_stall() -> None:
    launches = [launch(at, at + 1, (began, began + 1000)) for at, began in ((10, 20), (20, 1020), (120, 2020))]
    calls = [Call("aten::mm", 0, 50), Call("aten::mm", 100, 150)]
    graph = rank(*calls, *launches, steps=[Span("ProfilerStep#0", 0, 100), Span("ProfilerStep#1", 100, 200)])
    assert MeasuredRank.of(graph, "ProfilerStep#1").stalled_us == 0.0
    alone = MeasuredRank.of(rank(*calls[1:], launches[-1], steps=graph.steps[1:]), "ProfilerStep#1")
    assert alone.stalled_us > 1000.0
