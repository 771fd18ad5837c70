"""A step takes as long as its mark, or from device end to device end where the host runs ahead of its device."""

import pytest

from foretrace.analysis.measure import measure_step
from foretrace.analysis.step_time import step_window
from foretrace.analysis.steps import list_steps
from foretrace.graph import Graph, Job, Span
from foretrace.prediction.predict import predict_on_own_machine
from foretrace.report.step import step_facts
from tests.analysis.builders import Call, launch, rank, sync


def loop(marks: list[float], device_us: float, waits: tuple[int, ...] = (), late_us: float = 10.0) -> Graph:
    """Steps that each launch one kernel, ``late_us`` after their start; some wait for it at their end."""
    events: list[object] = []
    spans = []
    at = done = 0.0
    for number, us in enumerate(marks):
        begin = max(at + late_us + 10, done)
        done = begin + device_us
        us = max(us, done - at + 5) if number in waits else us
        spans.append(Span(f"ProfilerStep#{number}", at, at + us))
        events += [Call("aten::mm", at, at + late_us + 10), launch(at + late_us, at + late_us + 5, (begin, done))]
        events += [sync(at + late_us + 10, at + us)] * (number in waits)
        at += us
    return rank(*events, steps=spans)  # type: ignore[arg-type]


def lengths(graph: Graph) -> list[float]:
    return [step_window(graph, span.name).ms for span in graph.steps]


def test_steps_of_a_host_that_runs_ahead_are_from_device_end_to_device_end() -> None:
    graph = loop([2000.0] * 5, 10_000.0)
    assert lengths(graph) == pytest.approx([10.0] * 5, abs=0.03)
    seen, there = measure_step(graph), predict_on_own_machine(Job([graph]))
    assert seen.step_ms == pytest.approx(10.0) and seen.bound == "device" and seen.mark_ms == pytest.approx(2.0)
    assert there.step_ms == pytest.approx(seen.step_ms, abs=0.03) == there.step_ms_back_to_back
    for report in (seen, there):
        assert ("mark", "2.00 ms", "on the host, which runs ahead: the step is from device end to device end") in (
            step_facts(report)
        )


def test_a_step_that_waits_for_the_work_of_those_before_it_is_no_slow_one() -> None:
    found = list_steps(Job([loop([2000.0] * 6, 10_000.0, waits=(3,))]))
    assert [row.ms for row in found.steps] == pytest.approx([10.0] * 6, abs=0.05)
    assert not any(row.slow for row in found.steps)


def test_steps_of_a_host_that_its_device_keeps_up_with_are_as_long_as_their_marks() -> None:
    graph = loop([2000.0, 2100.0, 1900.0], 1500.0, late_us=1000.0)
    assert lengths(graph) == pytest.approx([2.0, 2.1, 1.9])
    assert measure_step(graph).mark_ms is None


def test_a_step_without_others_is_as_long_as_its_mark_unless_that_is_of_its_launches_only() -> None:
    assert lengths(loop([9000.0], 10_000.0)) == pytest.approx([9.0])
    assert lengths(loop([2000.0], 1500.0, late_us=1000.0)) == pytest.approx([2.0])
    assert lengths(loop([2000.0], 10_000.0)) == pytest.approx([10.0])


def test_device_work_that_ends_long_after_a_lone_step_is_said_beside_it() -> None:
    said = "from the step's first device work to its last: in a loop, its device decides how long it takes"
    assert ("span", "10.0 ms", said) in step_facts(measure_step(loop([9000.0], 10_000.0)))
    assert not any(name == "span" for name, *_ in step_facts(measure_step(loop([9000.0], 9000.0))))
