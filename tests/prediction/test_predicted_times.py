"""A simulated step as a graph."""

import numpy as np
import pytest

from foretrace.analysis.host_time import KINDS, Segments, host_segments
from foretrace.analysis.idle import idle_rows
from foretrace.analysis.report import LATENCY, idle_by_cause
from foretrace.graph import Graph, Op, OpTable
from foretrace.prediction.priced_step import OWN_STREAM
from foretrace.prediction.priced_tasks import at_predicted_times
from foretrace.simulation.task_graph import SYNC, T4
from tests.prediction.by_hand import Call, device, run, step

CALLS = [Call(after=0.0), Call([30.0, 5.0]), Call([4.0], waits=OWN_STREAM), Call([2.0], thread=1)]


@pytest.fixture
def graph_and_segments() -> tuple[Graph, Segments]:
    made = step(*CALLS)
    calls = Graph(OpTable.of([Op("aten::mm", thread=call.thread) for call in CALLS]))
    return at_predicted_times(calls, made, *run(made, device(gap=1.0, latency=2.0)))


def test_ops_launches_and_kernels_stand_at_their_predicted_times(graph_and_segments: tuple[Graph, Segments]) -> None:
    graph, _ = graph_and_segments
    assert graph.ops.start[:2].tolist() == [1.0, 4.0]
    assert graph.ops.end[:2].tolist() == [3.0, 4.0 + 2 + 3 + 0.5 + 3 + 1]
    launches = graph.calls.start[graph.kernels.call]
    assert (graph.kernels.start >= launches).all()
    assert graph.kernels.op.tolist() == [1, 1, 2, 3]
    assert graph.calls.op[graph.kernels.call].tolist() == [1, 1, 2, 3]


def test_the_five_overheads_are_found_again_in_the_predicted_graph(graph_and_segments: tuple[Graph, Segments]) -> None:
    graph, segments = graph_and_segments
    again = host_segments(graph)
    for kind in range(len(KINDS)):
        ours = segments.duration[segments.kind == kind].sum()
        # The very first T1 begins before anything is there to measure it from.
        assert again.duration[again.kind == kind].sum() == pytest.approx(ours - (1.0 if KINDS[kind] == "T1" else 0.0))


def test_a_wait_lasts_from_the_hosts_arrival_to_the_devices_end(graph_and_segments: tuple[Graph, Segments]) -> None:
    graph, segments = graph_and_segments
    (wait,) = np.flatnonzero(segments.kind == SYNC)
    assert segments.end[wait] == graph.kernels.end[2] + 2.0  # and its word reaches the host
    assert segments.start[wait] == segments.end[wait - 1]
    assert segments.kind[wait - 1] == T4


def idle_us(graph: Graph, segments: Segments, span: float) -> dict[str, float]:
    rows = idle_rows(graph, graph.kernels, segments, 0.0, span, graph.ops)
    return {cause: round(ms * 1e3, 6) for cause, ms in idle_by_cause(rows).items()}


def test_idle_time_is_put_down_to_what_the_host_did_meanwhile() -> None:
    made = step(Call([10.0], to_launch=50.0), Call([10.0], before=40.0))
    calls = Graph(OpTable.of([Op("aten::mm"), Op("aten::mm")]))
    table, timeline = run(made, device())
    graph, segments = at_predicted_times(calls, made, table, timeline)
    # T3 of the first call and 9 us of the second T1 pass while the first kernel runs.
    assert idle_us(graph, segments, timeline.span) == {"T1": 1.0 + 31.0, "T2": 52.0, "T4": 6.0}
    assert timeline.span - 20.0 == 1.0 + 31.0 + 52.0 + 6.0


def test_what_the_device_itself_takes_to_start_is_not_put_down_to_the_host() -> None:
    made = step(Call([100.0]), Call([100.0]), Call(before=50.0))
    table, timeline = run(made, device(gap=5.0, latency=7.0))
    graph, segments = at_predicted_times(Graph(OpTable.of([Op("aten::mm")] * 3)), made, table, timeline)
    causes = idle_us(graph, segments, timeline.span)
    assert sum(us for cause, us in causes.items() if cause != LATENCY) == 6.0  # up to the first launch
