"""The device work of a step on a platform."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from foretrace.analysis.dispatched import dispatched_calls
from foretrace.cost_models.kernels.roofline import MEASURED
from foretrace.graph import CallTable, Collective, ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.graph.graph import cautions
from foretrace.graph.tables import COLLECTIVE
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.platform.registry import find_platform
from foretrace.prediction.device_work import device_work, measured_work, own_time
from foretrace.prediction.predict import predict_on_platform
from tests.analysis.builders import Call, Orphan, all_reduce, launch, rank, recorded


def sketched(*names: str, **more: Any) -> Graph:
    return Graph(OpTable.of([Op(name) for name in names]), **more)


def test_kernels_that_nobody_launched_are_left_out_and_said(platform: Any) -> None:
    graph = rank(Call("aten::mm", 0, 10), launch(1, 2, (5, 25)), Orphan(0, 4))
    graph.device = "by hand"
    work, said = device_work(dispatched_calls(graph), platform)
    assert len(work) == 1 and said == ["1 kernels (0.00 ms) whose launch is not in this step are left out"]


def test_most_of_the_device_time_left_out_is_a_caution(platform: Any) -> None:
    graph = rank(Call("aten::mm", 0, 10), launch(1, 2, (5, 25)), Orphan(30, 90))
    graph.device = "by hand"
    _, (said,) = device_work(dispatched_calls(graph), platform)
    assert cautions([said])


def test_without_runtime_calls_kernels_are_those_of_their_ops(platform: Any) -> None:
    graph = rank(Call("aten::mm", 0, 10), launch(1, 2, (5, 25)), Call("aten::mm", 12, 20), launch(13, 14, (25, 30)))
    graph.calls, graph.device = CallTable.empty(), "by hand"
    graph.kernels.call[:] = -1
    work, said = device_work(dispatched_calls(graph), platform)
    assert work.launches(2).tolist() == [1, 1] and not said
    graph.kernels.op[:] = -1
    with pytest.raises(ForetraceError, match="which ops launched its kernels"):
        device_work(dispatched_calls(graph), platform, "measured")


def test_kernel_times_of_a_recording_count_on_its_own_device_only(platform: Any) -> None:
    own, _ = device_work(dispatched_calls(recorded()), platform)
    other, _ = device_work(dispatched_calls(recorded("another")), platform)
    assert (own.source == MEASURED).all()
    assert not (other.source == MEASURED).any()


def test_either_can_be_forced_and_measured_ones_of_another_device_are_said(platform: Any) -> None:
    modelled, said = device_work(dispatched_calls(recorded()), platform, "model")
    assert not (modelled.source == MEASURED).any() and not said
    _, said = device_work(dispatched_calls(recorded("NVIDIA A100")), platform, "measured")
    assert said == ["kernel times are those measured on NVIDIA A100"]


def test_measured_kernels_of_a_sketch_are_refused(platform: Any) -> None:
    with pytest.raises(ForetraceError, match="no measured kernels"):
        device_work(dispatched_calls(sketched("aten::mm")), platform, "measured")


def test_another_word_for_the_source_is_refused(platform: Any) -> None:
    with pytest.raises(ForetraceError, match="can't be 'guessed'"):
        device_work(dispatched_calls(recorded()), platform, "guessed")


def test_the_share_of_each_source_is_that_of_its_time(platform: Any) -> None:
    work, _ = device_work(
        dispatched_calls(sketched("aten::mm", "aten::mm", "aten::mm", "aten::strange", "aten::view")), platform
    )
    assert work.coverage() == {"measured": 0.0, "model": 0.75, "extrapolated": 0.0, "fallback": 0.25}


def test_what_no_model_knows_is_named_with_what_stands_in() -> None:
    square = Tensor((256, 256), "float32", "cuda:0")
    ops = [Op("aten::cholesky", (square,), overload="default"), Op("mine::fused", (square, square))]
    _, notes = device_work(dispatched_calls(Graph(OpTable.of(ops))), Platform.read(find_platform("h200")))
    by_roofline, by_tensors = notes
    assert "aten::cholesky" in by_roofline and by_roofline.endswith("of the device time: rooflines are used")
    assert "mine::fused" in by_tensors and by_tensors.endswith("device time: guesses from their tensors are used")


def test_modelled_kernels_run_on_the_stream_their_call_was_seen_on(platform: Any) -> None:
    graph = recorded("another")
    graph.kernels.stream[:] = 22
    work, _ = device_work(dispatched_calls(graph), platform, "model")
    assert work.stream.tolist() == [22]


def test_a_collective_without_a_fabric_is_said_to_take_no_time(platform: Any) -> None:
    graph = sketched("aten::mm", "c10d::allreduce_", world=2)
    graph.collectives = [Collective("all_reduce", "0", 1024, -1, 1, (0, 1))]
    work, said = device_work(dispatched_calls(graph), platform)
    assert len(work) == 1 and "1 collectives (all_reduce) take no time" in said[0]


def communicating(**more: Any) -> Graph:
    """A product, and a transfer of which the trace does not tell the size."""
    square = Tensor((64, 64), "float32", "cuda:0")
    graph = rank(
        Call("aten::mm", 0, 10), launch(1, 2, (5, 25)), Call("c10d::allreduce_", 12, 20),
        all_reduce(13, 14, (30, 330), nbytes=0, **more),
    )  # fmt: skip
    graph.device, graph.ops.detail = "another", [replace(op, args=(square, square)) for op in graph.ops].__getitem__
    return graph


@pytest.mark.parametrize("kind", ["all_reduce", ""])
@pytest.mark.parametrize(("kernels", "has_launch"), [(None, True), ("model", True), (None, False), ("model", False)])
def test_communication_among_unknown_ranks_stays_as_long_as_it_was_measured(
    platform: Any, kind: str, kernels: str | None, has_launch: bool
) -> None:
    graph = communicating()
    graph.collectives[0].kind = kind
    if not has_launch:
        graph.kernels.call[1] = graph.kernels.op[1] = graph.collectives[0].op = -1
    work, said = device_work(dispatched_calls(graph), platform, kernels)
    (row,) = [row for row, one in enumerate(work.kind) if one == COLLECTIVE]
    assert (work.typical[row], work.source[row], len(work)) == (300.0, MEASURED, 2)
    assert "1 communication kernel takes as long as measured, waiting included: 0.30 ms; the trace does not" in said[-1]
    platform.fabric = Fabric.named("h100-8x")
    forecast = predict_on_platform(graph, platform, kernels)
    assert forecast.coverage["measured"] == pytest.approx(300 / (300 + work.typical[1 - row]))
    assert forecast.exposed_communication_ms == pytest.approx(0.3)
    assert not any("no rank waits for these" in note for note in forecast.notes)


def test_collectives_of_a_cuda_graph_share_its_launch(platform: Any) -> None:
    graph = rank(
        Call("c10d::allreduce_", 12, 20),
        all_reduce(13, 14, (30, 40), ranks=(0, 1)), all_reduce(15, 16, (40, 50), ranks=(0, 1)), world=2,
    )  # fmt: skip
    graph.device, platform.fabric = "another", Fabric.named("h100-8x")
    assert device_work(dispatched_calls(graph), platform, "model")[0].launches(1).tolist() == [2]
    graph.kernels.call[:] = 0
    assert device_work(dispatched_calls(graph), platform, "model")[0].launches(1).tolist() == [1]


def test_a_group_that_is_known_to_be_one_rank_takes_no_time(platform: Any) -> None:
    work, said = device_work(dispatched_calls(communicating(ranks=(0,))), platform)
    assert COLLECTIVE not in work.kind and not any("communication" in note for note in said)


def test_recorded_communication_stays_as_long_as_it_was_measured_where_no_fabric_prices_it(platform: Any) -> None:
    work, said = device_work(dispatched_calls(communicating(ranks=(0, 1))), platform)
    assert COLLECTIVE in work.kind and not any("take no time" in note for note in said)


def test_a_collective_runs_on_a_stream_of_its_group_at_the_fabrics_price(
    platform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    price = SimpleNamespace(low=20.0, typical=30.0, high=60.0)
    monkeypatch.setattr("foretrace.cost_models.collectives.pricing.price_collective", lambda *_: price)
    platform.fabric = Fabric.named("h100-8x")
    graph = sketched("c10d::allreduce_", "aten::mm", world=2)
    graph.collectives = [Collective("all_reduce", "0", 1024, -1, 0, (0, 1))]
    work, said = device_work(dispatched_calls(graph), platform)
    assert not said and work.name == ["all_reduce", "aten::mm kernel"]
    assert work.kind[0] == COLLECTIVE and work.stream[0] != work.stream[1]
    assert work.launch.tolist() == [0, 1] and work.high.tolist() == [60.0, 11.0]


def test_a_kernel_that_starts_before_the_one_ahead_has_ended_takes_what_it_adds() -> None:
    graph = rank(
        Call("aten::mm", 0, 5), launch(1, 2, (10, 30)), launch(2, 3, (25, 40)), launch(3, 4, (50, 60), stream=9),
        launch(4, 5, (52, 55)),
    )  # fmt: skip
    assert own_time(graph.kernels).tolist() == [20.0, 10.0, 10.0, 3.0]
    assert measured_work(graph).typical.sum() == 43.0
