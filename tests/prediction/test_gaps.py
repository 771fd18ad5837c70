"""Measured host time that no model covers is carried over; a step of a measured job is the time from step to step."""

from dataclasses import replace

import numpy as np
import pytest

import foretrace as ft
from foretrace.analysis.report import IdleRow
from foretrace.graph import Graph, Job, Op, OpTable, Span, Tensor
from foretrace.graph.graph import cautions
from foretrace.graph.tables import ANNOTATION
from foretrace.platform.platform import Platform
from foretrace.prediction.predict import predict_on_own_machine, predict_on_platform
from foretrace.report.step import step_facts
from tests.analysis.builders import Call, Runtime, launch, rank, sync
from tests.analysis.test_idle import LOADER, step
from tests.narrowing import present


def shaped(graph: Graph, device: str = "Tesla T4") -> Graph:
    """With measured kernels, of a device."""
    return replace(graph, device=device)


def priced(graph: Graph, on: str = "h200", drop_gaps: bool = False) -> ft.StepReport:
    return predict_on_platform(graph, Platform.named(on), "measured", drop_gaps=drop_gaps)


def test_data_loading_is_carried_over_to_another_machine_and_said() -> None:
    kept, dropped = priced(shaped(step(20_000.0))), priced(shaped(step(20_000.0)), drop_gaps=True)
    assert kept.step_ms == pytest.approx(dropped.step_ms + 19.9, abs=0.2)
    assert (kept.carried[0].cause, kept.carried[0].name) == ("data loading", LOADER) and not dropped.carried
    assert kept.idle_causes["carried over"] == pytest.approx(19.9, abs=0.2)
    assert kept.critical_path[0].what == "carried over" and kept.look_at[0].name.startswith(
        "carried over: data loading"
    )
    assert any("carried over, as measured: its host is unknown" in note for note in kept.notes)
    assert kept.to_dict()["carried"][0]["cause"] == "data loading"


def test_what_it_calls_meanwhile_is_not_counted_twice() -> None:
    row = priced(shaped(step(20_000.0))).carried[0]
    assert row.ms + 0.05 > 19.9 and row.ms < 19.99


def test_work_of_the_cpu_is_carried_over_where_it_is_far_longer_than_the_model_has_it() -> None:
    def drawn(us: float) -> Graph:
        late = launch(us + 20, us + 30, (us + 40, us + 90))
        return shaped(rank(Call("aten::randn", 0, us), Call("aten::mm", us + 10, us + 40), late))

    assert [row.cause for row in priced(drawn(10_000.0)).carried] == ["cpu work"]
    assert not priced(drawn(900.0)).carried


@pytest.mark.parametrize("busy", [False, True])
def test_a_long_launch_is_carried_over_where_the_device_idles_meanwhile(busy: bool) -> None:
    first = launch(5, 15, (16, 9_000 if busy else 26))
    late = launch(40, 8_040, (9_001, 9_090))
    graph = shaped(rank(Call("aten::relu", 0, 20), first, Call("aten::mm", 30, 8_050), late))
    assert [(row.cause, row.name) for row in priced(graph).carried] == [("launch call", "runtime")] * (not busy)


def test_pauses_without_a_name_are_not_carried_over_from_a_host_that_the_model_is_of() -> None:
    pause = rank(Call("aten::view", 0, 10), Call("aten::mm", 9_000, 9_050), launch(9_020, 9_030, (9_040, 9_090)))
    assert priced(shaped(pause)).carried[0].cause == "pause"
    assert not priced(shaped(pause, "NVIDIA H200")).carried


def test_a_trace_of_a_gpu_whose_host_was_not_measured_keeps_its_own_host_there() -> None:
    graph = shaped(step(20_000.0))
    there = ft.predict(graph, on="t4", kernels="measured")
    assert there.platform == "t4" and there.step_ms == pytest.approx(21.1, rel=0.01)
    assert any("hosts and kernels as measured" in note for note in there.notes)
    without = ft.predict(graph, on="t4", kernels="measured", drop_gaps=True)
    assert without.step_ms == pytest.approx(21.1 - 19.99, rel=0.02)
    assert ft.predict(graph, on="h200", kernels="measured").platform == "h200"


def trained(loading_us: float = 20_000.0) -> Graph:
    """A step on tensors that are known, with data loading before its last call."""
    return on_tensors(shaped(step(loading_us)))


def on_tensors(graph: Graph) -> Graph:
    """The same with the tensors of its products."""
    made = [Tensor((64, 64), "float32", "cuda:0", (64, 1), id=n, storage=n) for n in range(3)]
    ops = list(graph.ops)
    for product in (op for op in ops if op.name == "aten::mm"):
        product.args, product.overload, product.outputs = (made[0], made[1]), "default", (made[2],)
    return replace(graph, ops=replace(OpTable.of(ops), kind=graph.ops.kind))


@pytest.mark.parametrize("change", ["dtype=bf16", "fuse=launches"])
def test_what_ifs_carry_it_over_on_both_sides_and_say_so(change: str) -> None:
    found = ft.what_if(trained(), on="a100", changes=[change])
    for side in (found.before, found.after):
        assert side.carried[0].cause == "data loading" and side.carried[0].ms == pytest.approx(19.9, abs=0.2)
        assert side.step_ms > 19.7
    without = ft.what_if(trained(), on="a100", changes=[change], drop_gaps=True)
    carried = sum(row.ms for row in found.after.carried)  # with a pause after the last call
    assert not without.after.carried and without.after.step_ms == pytest.approx(found.after.step_ms - carried, abs=0.1)


def test_sweeps_carry_it_over_and_say_so() -> None:
    found, without = (ft.sweep(trained(), on="a100", sets={"dtype": ["bf16"]}, drop_gaps=d) for d in (False, True))
    assert found.points[0].error is None
    assert 19.8 < present(found.points[0].step_ms) - present(without.points[0].step_ms) < 21.1
    assert any("carried over" in note for note in found.notes) and not any("carried" in n for n in without.notes)


def ahead(count: int = 1, begin: float = 0.0) -> Graph:
    """A rank whose host takes 1 ms for a step, and leaves its device 0.5 ms of work at its end."""
    events: list[object] = []
    spans = []
    for number in range(count):
        at = begin + 1000.0 * number
        spans.append(Span(f"ProfilerStep#{number}", at, at + 1000.0))
        events += [Call(f"ProfilerStep#{number}", at, at + 1000.0, kind=ANNOTATION)]
        events += [Call("aten::mm", at + 600, at + 700), launch(at + 650, at + 660, (at + 670, at + 1500))]
    return rank(*events, steps=spans)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [1, 3])
def test_the_step_of_a_measured_job_does_not_count_how_far_its_host_runs_ahead(steps: int) -> None:
    report = predict_on_own_machine(Job([ahead(steps)]))
    assert report.step_ms == pytest.approx(1.0, rel=1e-3)
    assert report.span_ms == pytest.approx(1.5, rel=1e-3)
    assert report.step_ms_back_to_back == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("steps", [1, 3])
def test_idle_time_of_a_measured_job_adds_up_and_is_that_of_its_trace(steps: int) -> None:
    graph = ahead(steps)
    report, seen = predict_on_own_machine(Job([graph])), ft.observe(graph)
    assert sum(report.idle_causes.values()) == pytest.approx(report.device_idle_ms)
    assert report.device_active_ms == pytest.approx(seen.device_active_ms)
    assert report.idle_causes == pytest.approx(seen.idle_causes)


def test_steps_one_after_the_other_take_as_long_as_the_device_does_where_that_is_slower() -> None:
    mark, span = Call("ProfilerStep#0", 0, 100, kind=ANNOTATION), Span("ProfilerStep#0", 0.0, 100.0)
    report = predict_on_own_machine(
        Job([rank(mark, Call("aten::mm", 10, 90), launch(20, 30, (40, 940)), steps=[span])])
    )
    assert report.step_ms == report.step_ms_back_to_back == pytest.approx(0.9, rel=0.01)


def test_a_step_of_several_whose_marks_have_only_launches_takes_as_long_as_the_device_does() -> None:
    events: list[object] = []
    spans = []
    for number in range(5):
        at, began = 100.0 * number, 40.0 + 900.0 * number
        spans.append(Span(f"ProfilerStep#{number}", at, at + 100.0))
        events += [Call(f"ProfilerStep#{number}", at, at + 100.0, kind=ANNOTATION), Call("aten::mm", at + 10, at + 90)]
        events += [launch(at + 20, at + 30, (began, began + 900.0))]
    report = predict_on_own_machine(Job([rank(*events, steps=spans)]))  # type: ignore[arg-type]
    assert report.step_ms == report.step_ms_back_to_back == pytest.approx(0.9, rel=0.02)
    assert not any("does not start on an idle device" in note for note in report.notes)


def test_a_single_step_whose_mark_has_most_of_its_work_takes_as_long_as_its_mark() -> None:
    mark, span = Call("ProfilerStep#0", 0, 1000, kind=ANNOTATION), Span("ProfilerStep#0", 0.0, 1000.0)
    graph = rank(mark, Call("aten::mm", 10, 90), launch(20, 30, (40, 1150)), steps=[span])
    report = predict_on_own_machine(Job([graph]))
    assert report.step_ms == pytest.approx(1.0)
    assert report.step_ms_back_to_back == pytest.approx(1.11, rel=0.02)


def test_the_estimate_lies_inside_its_range() -> None:
    report = predict_on_own_machine(Job([ahead()]))
    assert report.low_ms < report.step_ms < report.high_ms


def test_a_host_that_polls_for_a_kernel_waits_for_it_on_another_machine_too() -> None:
    from tests.analysis.test_idle import polling

    graph = polling(2000.0, 9000.0, 700.0)
    waits = predict_on_platform(graph, Platform.named("h200"), "measured")
    assert waits.step_ms == pytest.approx(float(np.sum(graph.kernels.end - graph.kernels.start)) / 1e3, rel=0.5)
    assert [row.what for row in waits.critical_path].count("sync") >= 1


def test_idle_time_with_launched_work_is_not_in_a_forecast_and_that_is_said() -> None:
    def late(us: float) -> Graph:
        first, second = launch(2, 4, (5, 105)), launch(12, 14, (105 + us, 205 + us))
        return shaped(rank(Call("aten::mm", 0, 8), first, Call("aten::mm", 10, 18), second))

    assert any(note.startswith("5.0 ms in which the measured device idled") for note in priced(late(5000.0)).notes)
    assert not any("idled" in note for note in priced(late(5.0)).notes)


def gaps_fact(report: ft.StepReport) -> str:
    return next(said for name, _, said in step_facts(report) if name == "gaps")


def test_gaps_of_several_threads_may_be_longer_than_the_step_and_say_so() -> None:
    report = ft.StepReport(platform="h200", step_ms=10.0, carried=[IdleRow("pause", "aten::view", 25.0, 1.0)])
    assert "on several threads at once" in gaps_fact(report)
    report.step_ms = 30.0
    assert "threads" not in gaps_fact(report)


def test_on_its_own_machine_a_trace_of_one_rank_takes_what_it_took_whatever_it_ran_on() -> None:
    graph = replace(ahead(3), device="ARTEMIS")
    assert ft.predict(graph, on="own").step_ms == pytest.approx(ft.observe(graph).step_ms)
    with pytest.raises(ft.ForetraceError, match="keeps the hosts and kernels that were measured"):
        ft.predict(graph, on="own", host="h200")
    with pytest.raises(ft.ForetraceError, match="was not measured on any machine"):
        ft.predict(Graph(OpTable.of([Op("aten::mm")])), on="own")


def test_a_trace_that_names_no_gpu_is_of_the_one_that_is_named_with_measured_kernels() -> None:
    graph = replace(ahead(3), device="")
    report = ft.predict(graph, on="a100", kernels="measured")
    assert report.step_ms == pytest.approx(ft.observe(graph).step_ms)
    assert any("is taken to be of this GPU" in note for note in report.notes)


@pytest.mark.parametrize("starts", [(20, 5_000), (40_000, 45_000)])  # between kernels, and before the first one
def test_what_limits_a_step_on_its_own_machine_is_what_limited_it_in_its_trace(starts: tuple[int, int]) -> None:
    mark, span = Call("ProfilerStep#0", 0, 50_000, kind=ANNOTATION), Span("ProfilerStep#0", 0.0, 50_000.0)
    first, last = (
        launch(2, 5, (starts[0], starts[0] + 100)),
        launch(6, 9, (starts[1] + 44_000 * (starts[0] < 100), 50_000)),
    )
    graph = rank(mark, Call("aten::mm", 1, 20), first, last, steps=[span])
    seen, report = ft.observe(graph), ft.predict(graph, on="own")
    assert seen.bound in ("queue", None) and report.bound == seen.bound


def test_work_that_was_launched_and_not_recorded_is_unknown_and_not_all_on_the_host() -> None:
    found = predict_on_own_machine(Job([rank(Call("aten::mm", 0, 50), Runtime(10, 20), sync(50, 90))]))
    assert next(about for name, _, about in step_facts(found) if name == "step").endswith(
        "its 1 launches have no kernels in the trace"
    )
    (caution,) = found.cautions
    assert "none of the 1 launches has one in the trace" in caution
    told = found.to_dict()
    unknown = ("device_active_ms", "device_idle_ms", "device_span_ms", "kernel_ms", "kernels", "bound")
    assert {told[name] for name in unknown} == {told["ranks"][0]["device_active_ms"]} == {None}


def test_a_step_that_launches_nothing_is_all_on_the_host() -> None:
    found = predict_on_own_machine(Job([rank(Call("aten::mm", 0, 50))]))
    assert step_facts(found)[0][2].endswith("all of it on the host") and not found.cautions
    assert found.to_dict()["device_active_ms"] == 0.0


def slow(device: str, pause_us: float = 0.0, inside_us: float = 0.0, calls: int = 50) -> Graph:
    """A step whose every call follows a pause, and spends as much time as is said before its launch."""
    events: list[object] = []
    at = 0.0
    for _ in range(calls):
        at += pause_us + 5
        begin = at + inside_us
        events += [Call("aten::mm", at, begin + 20), launch(begin + 5, begin + 10, (begin + 15, begin + 25))]
        at = begin + 20
    return shaped(rank(*events), device)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["Tesla T4", "NVIDIA H200"])
@pytest.mark.parametrize("where, taken", [("pause_us", "30.4 ms"), ("inside_us", "31.0 ms")])
def test_many_short_pauses_that_no_model_explains_are_a_caution_and_within_the_range(
    where: str, taken: str, device: str
) -> None:
    usual, found = priced(slow(device)), priced(slow(device, **{where: 600.0}))  # type: ignore[arg-type]
    assert found.step_ms == pytest.approx(usual.step_ms) and not found.carried
    (note,) = [note for note in cautions(found.notes) if "unexplained" in note]
    assert f"calls and the pauses between them take {taken} in the trace" in note
    assert present(usual.high_ms) + 28 < present(found.high_ms) < present(usual.high_ms) + 31
    assert found.low_ms == usual.low_ms


def test_what_ifs_and_sweeps_have_the_same_caution_and_range() -> None:
    graph = on_tensors(slow("Tesla T4", pause_us=600.0))
    (said,) = [note for note in cautions(priced(graph).notes) if "unexplained" in note]
    found = ft.what_if(graph, dtype="bf16")
    for side in (found.before, found.after):
        assert said in side.cautions and present(side.high_ms) > side.step_ms + 28
    assert said in ft.sweep(graph, sets={"dtype": ["bf16"]}).notes
    assert not any("unexplained" in note for note in ft.what_if(graph, dtype="bf16", drop_gaps=True).after.notes)


@pytest.mark.parametrize("times", [1, 5])
def test_a_host_that_a_profiler_slows_is_no_caution(times: int) -> None:
    report = priced(slow("NVIDIA H200", inside_us=25.0 * times, pause_us=5.0 * times))
    assert not cautions(report.notes)


def test_pauses_are_no_caution_where_they_are_carried_over_or_left_out_on_purpose() -> None:
    assert not any("unexplained" in note for note in priced(slow("Tesla T4", pause_us=1_200.0)).notes)
    assert not any("unexplained" in note for note in priced(slow("Tesla T4", pause_us=600.0), drop_gaps=True).notes)
