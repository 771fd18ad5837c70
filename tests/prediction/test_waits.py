"""Who waits for whom, told from calls."""

from foretrace.analysis.dispatched import dispatched_calls
from foretrace.graph import Collective, Constant, Graph, Op, OpTable, Tensor
from foretrace.prediction.priced_step import ALL_STREAMS, NO_SYNC, OWN_STREAM, Waits, step_waits
from tests.analysis import builders

CPU, GPU = Tensor((4,), "float32", "cpu"), Tensor((4,), "float32", "cuda:0")


def of(*ops: Op, **more: object) -> Waits:
    graph = Graph(OpTable.of(ops), **more)  # type: ignore[arg-type]
    return step_waits(graph, dispatched_calls(graph))


def test_a_sync_between_calls_holds_the_host_after_the_first() -> None:
    found = of(Op("aten::mm"), Op("cuda::stream_synchronize"), Op("aten::mm"), Op("cuda::device_synchronize"))
    assert found.host.tolist() == [ALL_STREAMS, NO_SYNC]


def test_a_sync_that_a_profile_shows_inside_a_call_counts() -> None:
    graph = builders.rank(builders.Call("aten::strange", 0, 20), builders.sync(5, 15))
    assert step_waits(graph, dispatched_calls(graph)).host.tolist() == [OWN_STREAM]


def test_a_sync_that_a_profile_shows_between_calls_holds_the_host_after_the_first() -> None:
    graph = builders.rank(
        builders.Call("aten::mm", 0, 10),
        builders.launch(1, 2, (5, 50)),
        builders.sync(12, 52),
        builders.Call("aten::relu", 60, 70),
        builders.launch(61, 62, (63, 65)),
    )
    assert step_waits(graph, dispatched_calls(graph)).host.tolist() == [ALL_STREAMS, NO_SYNC]


def test_a_sync_for_what_ran_before_the_step_holds_nobody_in_it() -> None:
    graph = builders.rank(builders.Orphan(0, 50), builders.Call("aten::relu", 2, 8), builders.sync(12, 52))
    assert step_waits(graph, dispatched_calls(graph)).host.tolist() == [NO_SYNC]


def test_a_stream_that_waits_for_an_event_waits_for_the_work_before_the_event() -> None:
    event, main, side = Constant("event", "0"), Constant("stream", "0"), Constant("stream", "1")
    found = of(
        Op("aten::mm", (GPU,)),
        Op("cuda::event_record", (event, main)),
        Op("aten::mm", (GPU,)),
        Op("cuda::stream_wait_event", (side, event)),
        Op("aten::relu", (GPU,)),
        Op("aten::empty", (), outputs=(GPU,), stream=1),  # gives the stream nothing to do
        Op("aten::mm", (GPU,), stream=1),
    )
    assert found.streams.tolist() == [[0, 4]]


def test_a_wait_for_a_collective_holds_the_work_of_its_own_stream() -> None:
    sent = Tensor((4,), "float32", "cuda:0", storage=1)
    work = Constant("work", "7")

    def held(stream: int) -> list[list[int]]:
        return of(
            Op("c10d::reduce_scatter_", ([sent],), outputs=(work,), stream=3),
            Op("c10d::wait", (work,), stream=stream),
            Op("aten::as_strided", (sent,), outputs=(sent,), stream=3),
            Op("aten::mm", (GPU,)),
            collectives=[Collective("reduce_scatter", "0", 16, -1, 0, (0, 1))],
        ).streams.tolist()

    assert held(0) == [[0, 2]]
    assert held(3) == []


def test_an_event_that_nobody_recorded_holds_nobody() -> None:
    wait = Op("cuda::stream_wait_event", (Constant("stream", "1"), Constant("event", "0")))
    assert not len(of(Op("aten::mm"), wait, Op("aten::mm", stream=1)).streams)


def test_a_collective_waits_for_the_work_before_it_and_only_its_readers_wait_for_it() -> None:
    gradient, other = (Tensor((4,), "float32", "cuda:0", storage=number) for number in (1, 2))
    found = of(
        Op("aten::mm", outputs=(gradient,)),
        Op("c10d::allreduce_", ([gradient],)),
        Op("aten::mm", (other,)),
        Op("aten::add_", (gradient,)),
        Op("aten::add_", (gradient,)),
        collectives=[Collective("all_reduce", "0", 16, -1, 1, (0, 1))],
    )
    assert found.streams.tolist() == [[0, 1], [1, 3]]


def test_waits_between_streams_are_seen_from_a_profiles_times() -> None:
    graph = builders.rank(
        builders.Call("aten::mm", 0, 10),
        builders.launch(1, 2, (5, 50)),
        builders.wait_event(12),
        builders.Call("aten::relu", 20, 30),
        builders.launch(21, 22, (51, 60), stream=8),
    )
    assert step_waits(graph, dispatched_calls(graph)).streams.tolist() == [[0, 1]]
