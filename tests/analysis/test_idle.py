"""What fills host time, and why a device idles."""

import pytest

from foretrace.analysis.compare import compare_steps
from foretrace.analysis.host_time import host_segments
from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import NO_EVENT
from foretrace.graph import Graph, Job, Span
from foretrace.graph.tables import ANNOTATION, FUNCTION, OTHER_CALL
from foretrace.prediction.predict import predict_on_own_machine
from foretrace.report.step import step_facts
from foretrace.simulation.task_graph import SYNC
from tests.analysis.builders import AUTOGRAD, Call, Orphan, Runtime, doing, launch, rank, sync
from tests.narrowing import present

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def step(load_us: float, begin: float = 0.0) -> Graph:
    """A step that loads a batch, then launches a kernel of 1 ms."""
    mark = Call("ProfilerStep#1", begin, load_us + 1100, kind=ANNOTATION)
    loaded = Call("aten::stack", load_us / 2, load_us / 2 + 10)
    called, launched = (
        Call("aten::mm", load_us, load_us + 50),
        launch(load_us + 20, load_us + 30, (load_us + 35, load_us + 1035)),
    )
    graph = rank(mark, loaded, called, launched, steps=[Span("ProfilerStep#1", begin, load_us + 1100)])
    return doing(graph, (LOADER, 5.0, load_us - 5.0))


def causes(graph: Graph) -> dict[str, float]:
    return {cause: ms * 1e3 for cause, ms in measure_step(graph).idle_causes.items()}


def test_data_loading_is_a_cause_of_its_own_with_the_ops_inside_it() -> None:
    seen = measure_step(step(2000.0))
    assert seen.bound == "host" and seen.idle[0].cause == "data loading" and seen.idle[0].name == LOADER
    assert seen.idle_causes["data loading"] == pytest.approx(1.99)
    assert seen.overheads["data loading"].ms == pytest.approx(1.99)
    assert seen.critical_path[0].what == "data loading"
    assert sum(seen.idle_causes.values()) == pytest.approx(seen.device_idle_ms)
    again = predict_on_own_machine(Job([step(2000.0)]))
    assert present(again.profiling_ms) == pytest.approx(again.step_ms - 1.0 - 1.99), "a profiler does not load data"


def test_a_step_is_judged_by_its_own_time_and_not_by_that_from_first_to_last_kernel() -> None:
    seen = measure_step(step(2000.0))
    assert seen.device_active_ms == pytest.approx(1.0) and seen.device_idle_ms == pytest.approx(2.1)
    assert measure_step(step(100.0)).bound == "device"


def calling(count: int, call_us: float, kernel_us: float, *more: Runtime) -> Graph:
    """A step of calls one after the other, each of which launches a kernel in its middle."""
    at = [number * call_us for number in range(count)]
    calls = [Call("aten::mm", begin, begin + call_us) for begin in at]
    middle = [begin + call_us / 2 for begin in at]
    launches = [launch(begin, begin + 2, (begin + 3, begin + 3 + kernel_us)) for begin in middle]
    return rank(*calls, *launches, *more, steps=[Span("ProfilerStep#1", 0.0, count * call_us)])


def test_a_host_that_never_waits_and_keeps_the_device_waiting_limits_the_step() -> None:
    seen = measure_step(calling(10, call_us=100.0, kernel_us=80.0))
    assert seen.device_idle_ms == pytest.approx(0.2, abs=0.05) and seen.bound == "host"
    assert seen.ranks[0].host_ms == pytest.approx(1.0)


def test_a_device_that_hardly_idles_limits_the_step_though_the_host_never_waits() -> None:
    assert measure_step(calling(10, call_us=100.0, kernel_us=97.0)).bound == "device"


def test_a_host_that_waits_for_longer_than_the_device_idles_does_not_limit_the_step() -> None:
    waits = [sync(number * 100.0 + 55.0, number * 100.0 + 93.0) for number in range(10)]
    assert measure_step(calling(10, 100.0, 80.0, *waits)).bound == "device"


def test_what_the_step_before_left_on_the_device_fills_its_gaps() -> None:
    steps = [Span("ProfilerStep#1", 0.0, 1000.0), Span("ProfilerStep#2", 1000.0, 2000.0)]
    calls = [Call("aten::mm", 0, 50), Call("aten::mm", 1000, 1050)]
    graph = rank(*calls, launch(10, 20, (100, 1900)), launch(1010, 1020, (1900, 2600)), steps=steps)
    seen = measure_step(graph, "ProfilerStep#2")
    assert seen.device_active_ms == pytest.approx(1.0) and seen.bound == "device"


def test_loading_that_goes_away_is_named_in_the_difference_of_two_steps() -> None:
    change = {
        row.what: row.change_ms
        for row in compare_steps(measure_step(step(2000.0)), measure_step(step(100.0))).critical_path
    }
    assert change["data loading"] == pytest.approx(-1.9)


def test_an_annotation_that_launches_nothing_is_a_cause_and_one_that_launches_is_not() -> None:
    graph = rank(Call("aten::sort", 10, 400), Call("aten::mm", 500, 550), launch(520, 530, (540, 600)))
    assert causes(doing(graph, ("prepare", 5, 450)))["annotation"] == pytest.approx(445)
    assert causes(doing(graph, ("all of it", 5, 590)))["T2"] == pytest.approx(410)


def test_a_long_python_function_names_a_pause_between_ops_by_its_innermost_piece() -> None:
    graph = rank(Call("aten::view", 0, 10), Call("aten::mm", 1010, 1050), launch(1020, 1030, (1040, 1100)))
    graph = doing(graph, ("train.py(3): run", 0, 1060), ("tokens.py(7): encode", 110, 810), kind=FUNCTION)
    assert {
        (row.cause, row.name, round(row.ms * 1e3)) for row in measure_step(graph).idle if row.cause == "python"
    } == {
        ("python", "tokens.py(7): encode", 700),
        ("python", "train.py(3): run", 300),
    }


def test_collecting_garbage_and_waiting_for_a_lock_have_their_names() -> None:
    graph = rank(Call("aten::view", 0, 10), Call("aten::mm", 1010, 1050), launch(1020, 1030, (1040, 1100)))
    functions = (
        ("<built-in function collect>", 100, 400),
        ("<built-in method acquire of _thread.lock object>", 500, 800),
    )
    found = causes(doing(graph, *functions, kind=FUNCTION))
    assert found["garbage collection"] == found["lock"] == pytest.approx(300)


def test_launched_work_that_does_not_start_is_no_fault_of_the_host() -> None:
    earlier = Call("aten::add", -50, -10), launch(-40, -35, (-30, -20))
    seen = measure_step(rank(*earlier, Call("aten::mm", 0, 50), launch(10, 20, (5000, 5100))))
    assert seen.bound == "queue" and seen.idle[0].cause == "queued"


def test_what_a_device_does_before_its_first_recorded_event_is_unknown() -> None:
    late = Call("aten::mm", 0, 50), launch(10, 20, (5000, 5100))
    seen = measure_step(rank(*late))
    assert seen.idle[0].name == "before the first recorded device event" and seen.bound is None
    assert seen.to_dict()["ranks"]["0"]["bound"] is None
    (headline, *_) = [about for name, _, about in step_facts(seen) if name == "step"]
    assert "unknown" in headline and "4.98 ms before the first recorded device event" in headline
    assert "does not start" not in headline
    seen = measure_step(rank(Call("aten::add", -50, -10), launch(-40, -35, (-30, -20)), *late))
    assert (seen.idle[0].cause, seen.idle[0].name) == ("queued", "")
    assert any("work is launched and does not start" in about for _, _, about in step_facts(seen))


def test_a_step_whose_work_all_runs_after_it_is_not_limited_by_the_host() -> None:
    mark = Call("ProfilerStep#1", 0, 1000, kind=ANNOTATION)
    calls = Call("aten::mm", 100, 150), launch(110, 120, (5000, 5100))
    seen = measure_step(rank(mark, *calls, steps=[Span("ProfilerStep#1", 0.0, 1000.0)]))
    assert seen.device_active_ms == 0 and seen.bound is None, "what the device does meanwhile is not recorded"
    assert seen.idle_causes["queued"] == pytest.approx(0.88)
    assert sum(seen.idle_causes.values()) == pytest.approx(seen.device_idle_ms)


def polling(*lengths: float, sticks_out: float = 30.0) -> Graph:
    """A host that launches a kernel, and goes on just before the end of each, however late that is."""
    events: list[Call | Runtime | Orphan] = []
    at = 0.0
    for length in lengths:
        events += [launch(at, at + 5, (at + length - 200, at + length + sticks_out), name="notify")]
        events += [Call("aten::empty", at + length, at + length + 5)]
        at += length + 500
    return rank(*events)


def test_a_pause_that_ends_with_the_kernel_launched_before_it_is_a_wait() -> None:
    cut = host_segments(polling(2000.0, 9000.0, 700.0))
    assert sorted(cut.duration[(cut.kind == SYNC)].round().tolist()) == [695, 1995, 8995]
    assert {cut.causes.items[code] for code in cut.cause[cut.kind == SYNC]} == {("busy wait", "notify")}


def test_a_pause_that_ends_while_a_long_kernel_runs_is_none() -> None:
    assert not (host_segments(polling(2000.0, 9000.0, 700.0, sticks_out=4000.0)).kind == SYNC).any()


def test_a_step_whose_kernels_are_not_in_the_trace_is_not_all_of_it_on_the_host() -> None:
    seen = measure_step(Job([rank(Call("aten::mm", 0, 50), Runtime(10, 20), sync(50, 90))]))
    assert seen.bound is None and seen.unrecorded_launches == 1


def test_what_was_launched_before_the_trace_counts_only_in_the_step_that_it_ran_in() -> None:
    steps = [Span("ProfilerStep#1", 0.0, 1000.0), Span("ProfilerStep#2", 1000.0, 2000.0)]
    calls = [Call("aten::mm", 20, 50), Call("aten::mm", 1010, 1050)]
    graph = rank(*calls, Orphan(0, 300), launch(30, 40, (400, 500)), launch(1020, 1030, (1100, 1200)), steps=steps)
    before = {
        name: measure_step(graph, name).ranks[0].launched_before_ms for name in ("ProfilerStep#1", "ProfilerStep#2")
    }
    assert before == {"ProfilerStep#1": pytest.approx(0.3), "ProfilerStep#2": 0.0}


def test_a_kernel_of_which_nobody_knows_the_launch_did_not_wait_in_a_queue() -> None:
    """The trace has launches, and does not say which kernel is of which: the host's time is the cause."""
    graph = rank(
        Call("aten::mm", 0, 50), launch(20, 30, (40, 100)), Call("aten::slow", 200, 2000), Call("aten::mm", 2000, 2050),
        launch(2020, 2030, (2040, 2100)),
    )  # fmt: skip
    graph.kernels.call[:] = -1
    seen = measure_step(graph)
    assert "queued" not in seen.idle_causes and seen.bound == "host" and seen.idle[0].name == "aten::slow"
    assert measure_step(rank(Orphan(500, 600), Call("aten::mm", 0, 50), launch(20, 30, (700, 800)))).idle_causes[
        "queued"
    ]


def test_annotations_name_idle_time_where_no_thread_calls_anything() -> None:
    """JAX: what the host is doing, and no calls."""
    graph = doing(rank(Orphan(500, 600), Orphan(800, 900)), ("PjitFunction(train_step)", 0.0, 1000.0))
    seen = measure_step(graph)
    assert seen.idle_causes == {"annotation": pytest.approx(0.8)} and seen.idle[0].name == "PjitFunction(train_step)"


def test_idle_time_in_which_no_thread_launches_says_what_is_open_meanwhile() -> None:
    graph = rank(Call("aten::mm", 0, 50), launch(10, 20, (25, 100)), Runtime(10, 900, OTHER_CALL, AUTOGRAD))
    idle = {(row.cause, row.name): row.ms for row in measure_step(graph).idle}
    assert idle[NO_EVENT, "inside runtime"] == pytest.approx(0.8)
