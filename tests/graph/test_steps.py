"""Which step is shown, and what belongs to it."""

import pytest

from foretrace.analysis.measure import measure_step
from foretrace.graph import ForetraceError, Graph, Job, Op, OpTable, Span, Storage
from foretrace.graph.graph import chosen_step, cut_to_step
from tests.analysis.builders import Call, Orphan, job, launch, rank


def steps(*lengths: float) -> list[Span]:
    return [Span(f"ProfilerStep#{i}", 1000.0 * i, 1000.0 * i + length) for i, length in enumerate(lengths)]


def three_steps() -> Graph:
    events = [Call("aten::mm", 1000.0 * i, 1000.0 * i + 100) for i in range(3)]
    launches = [launch(1000.0 * i + 10, 1000.0 * i + 20, (1500.0 * i + 30, 1500.0 * i + 1400)) for i in range(3)]
    return rank(*events, *launches, Orphan(0, 25), steps=steps(1000, 1000, 1000))


def test_the_step_of_median_length_is_shown() -> None:
    assert chosen_step(job(rank(steps=steps(500, 100, 300))), None) == "ProfilerStep#2"


def test_the_first_of_several_steps_is_not_chosen_since_the_profiler_starts_in_it() -> None:
    assert chosen_step(job(rank(steps=steps(300, 100, 500, 290, 600))), None) == "ProfilerStep#3"
    assert chosen_step(job(rank(steps=steps(300, 100, 290, 310, 305, 500))), None) == "ProfilerStep#4"
    assert chosen_step(job(rank(steps=steps(100, 300))), None) == "ProfilerStep#1"
    assert chosen_step(job(rank(steps=steps(100))), None) == "ProfilerStep#0"


def test_a_step_is_one_that_all_ranks_have() -> None:
    some = rank(steps=steps(500, 100, 300)[:1])
    assert chosen_step(job(rank(steps=steps(500, 100, 300)), some), None) == "ProfilerStep#0"


def test_without_steps_all_of_the_trace_is_shown() -> None:
    graph = rank(Call("aten::mm", 0, 1))
    assert chosen_step(Job([graph]), None) is None
    assert cut_to_step(graph, None) == (graph, graph)


def test_a_step_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(ForetraceError, match=r"by hand has no step 7. It has ProfilerStep#0, ProfilerStep#1"):
        chosen_step(job(rank(steps=steps(1, 2))), "7")


def test_a_step_has_the_kernels_it_launched_whenever_they_run() -> None:
    step, _ = cut_to_step(three_steps(), "ProfilerStep#1")
    assert step.kernels.start.tolist() == [1530.0]


def test_kernels_of_the_step_before_that_still_run_matter_for_the_path() -> None:
    _, with_earlier = cut_to_step(three_steps(), "ProfilerStep#1")
    assert with_earlier.kernels.start.tolist() == [1530.0, 1000.0]
    assert with_earlier.kernels.end.tolist() == [2900.0, 1400.0]
    assert with_earlier.kernels.call.tolist() == [0, -1]


def test_in_a_trace_of_one_step_what_was_launched_before_it_is_counted() -> None:
    graph = rank(Call("aten::mm", 0, 100), launch(10, 20, (30, 40)), Orphan(0, 25), steps=steps(1000))
    step, _ = cut_to_step(graph, "ProfilerStep#0")
    assert sorted(step.kernels.start.tolist()) == [0.0, 30.0]


def test_what_the_host_does_after_the_step_is_left_out() -> None:
    graph = rank(Call("aten::mm", 0, 100), Call("profiler's own", 1500, 1600), steps=steps(1000))
    step, _ = cut_to_step(graph, "ProfilerStep#0")
    assert [step.ops.names[code] for code in step.ops.name] == ["aten::mm"]


def test_a_step_of_a_trace_without_times_is_cut_by_rows() -> None:
    names = ["ProfilerStep#1", "aten::mm", "ProfilerStep#2", "aten::add", "aten::relu"]
    made = {0: Storage(0, 64, "cuda:0", birth=1, death=4), 1: Storage(1, 8, "cuda:0", birth=3, death=-1)}
    steps = [Span("ProfilerStep#1", 0, 2), Span("ProfilerStep#2", 2, 5)]
    graph = Graph(OpTable.of([Op(name) for name in names]), steps=steps, storages=made)
    step, _ = cut_to_step(graph, "ProfilerStep#2")
    assert [op.name for op in step.ops] == names[2:]
    assert [(one.birth, one.death) for one in step.storages.values()] == [(-1, 2), (1, -1)]
    assert measure_step(Job([graph])).step_ms == 0


def test_kernels_of_the_step_before_that_start_after_a_step_matter_for_what_it_launched() -> None:
    launches = [launch(at, at + 1, (began, began + 1000)) for at, began in ((10, 20), (20, 1020), (120, 2020))]
    graph = rank(*launches, steps=[Span("ProfilerStep#0", 0, 100), Span("ProfilerStep#1", 100, 200)])
    step, with_earlier = cut_to_step(graph, "ProfilerStep#1")
    assert step.kernels.start.tolist() == [2020.0]
    assert with_earlier.kernels.start.tolist() == [2020.0, 100.0, 1020.0]
