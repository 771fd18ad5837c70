"""Traces that lack ops, launches, kernels or events of the host: what is said of them, and what is not."""

from pathlib import Path

import pytest

from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import StepReport
from foretrace.formats.load import load_traces
from foretrace.graph import Job
from foretrace.graph.graph import cautions
from foretrace.report.step import step_facts
from tests.traces import MAIN, Trace

STEP_US, START = 10_000.0, 1_000_000.0
OTHER_THREAD = MAIN + 1


def measured(trace: Trace, folder: Path, step: str | None = None) -> StepReport:
    path = folder / "trace.json"
    path.write_bytes(trace.text())
    return measure_step(load_traces(path), step)


def limit(report: StepReport) -> str:
    return step_facts(report)[0][2]


def marks(trace: Trace, lengths: list[float]) -> list[float]:
    """Step marks of these lengths one after the other, and when they begin."""
    begins = [START + sum(lengths[:place]) for place in range(len(lengths))]
    for number, (begin, length) in enumerate(zip(begins, lengths)):
        trace.add("user_annotation", f"ProfilerStep#{number}", begin, length, MAIN)
    return begins


def launched(trace: Trace, at: float, start: float, us: float, correlation: int) -> None:
    """A launch and its kernel."""
    trace.add("cuda_runtime", "cudaLaunchKernel", at, 2.0, MAIN, correlation=correlation)
    trace.add("kernel", "sgemm", start, us, 7, 0, device=0, stream=7, correlation=correlation)


def test_of_marks_around_annotations_alone_the_one_that_holds_some_is_the_step(tmp_path: Path) -> None:
    trace = Trace()
    begin, _ = marks(trace, [STEP_US, 50.0])
    trace.add("user_annotation", "Optimizer.step#SGD.step", begin + 5_000, 1_000.0, MAIN)
    report = measured(trace, tmp_path)
    assert (report.step, report.steps, report.step_ms) == ("ProfilerStep#0", 1, 10.0)
    assert limit(report) == "no device work is recorded in it"
    assert not report.notes, "where there are no ops, none lack shapes"


def test_the_path_of_a_step_of_annotations_is_that_of_its_thread_and_ends_with_it(tmp_path: Path) -> None:
    trace = Trace()
    begin, _ = marks(trace, [STEP_US, STEP_US])
    trace.add("user_annotation", "## forward ##", begin, 2 * STEP_US, MAIN)
    trace.add("python_function", "<built-in function sleep>", begin, 50 * STEP_US, OTHER_THREAD)
    report = measured(trace, tmp_path, "ProfilerStep#0")
    assert [(row.what, row.name, row.ms) for row in report.critical_path] == [("annotation", "## forward ##", 10.0)]
    assert report.critical_path_ms == report.step_ms


def test_what_bounds_a_step_is_unknown_where_the_device_idles_and_nothing_is_recorded_of_the_host(
    tmp_path: Path,
) -> None:
    trace = Trace()
    for number in range(4):
        trace.add("kernel", "sgemm", START + 1_000 * number, 800.0, 7, 0, device=0, stream=7)
    report = measured(trace, tmp_path)
    assert report.bound is None and report.device_idle_ms == pytest.approx(0.6)
    assert limit(report) == "device idle 16 % of it; most of that time has no events of the host"


def test_the_time_between_launches_is_not_called_that_between_ops_where_none_are_recorded(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(3):
        launched(trace, START + 1_000 * number, START + 1_000 * number + 5, 100.0, number + 1)
    report = measured(trace, tmp_path)
    assert "ms for T1 (between launches)" in limit(report)


def test_kernels_whose_launches_the_profiler_lost_belong_to_no_step_that_was_over_when_they_ran(tmp_path: Path) -> None:
    trace = Trace()
    begins = marks(trace, [STEP_US] * 3)
    for number, begin in enumerate(begins):
        launched(trace, begin + 10, begin + 100, 5_000.0, number + 1)
        trace.add("kernel", "lost", begin + 6_000, 1_000.0, 7, 0, device=0, stream=7, correlation=100 + number)
    report = measured(trace, tmp_path, "ProfilerStep#0")
    assert report.critical_path_ms <= report.step_ms == 10.0
    assert report.device_active_ms == pytest.approx(6.0)


def test_queued_work_is_not_said_to_limit_a_step_whose_kernels_are_missing(tmp_path: Path) -> None:
    trace = Trace()
    launched(trace, START, START + 5, 10.0, 1)
    for number in range(2, 22):
        trace.add("cuda_runtime", "cudaLaunchKernel", START + 5 * number, 2.0, MAIN, correlation=number)
    trace.add("kernel", "sgemm", START + 20_000, 100.0, 7, 0, device=0, stream=7, correlation=21)
    report = measured(trace, tmp_path)
    assert report.bound == "queue" and cautions(report.notes)
    assert limit(report).startswith("what limits it is unknown: no device work is recorded in ")


def test_kernels_that_other_steps_lack_are_no_caution(tmp_path: Path) -> None:
    trace = Trace()
    for number, begin in enumerate(marks(trace, [STEP_US] * 3)):
        for place in range(5):
            launched(trace, begin + 100 * place, begin + 100 * place + 20, 50.0, 10 * number + place + 1)
    trace.events = [e for e in trace.events if e["cat"] != "kernel" or e["ts"] < START + 2 * STEP_US]
    report = measured(trace, tmp_path, "ProfilerStep#1")
    assert not cautions(report.notes)
    assert "in other steps, kernels are missing: 5 of 15 launches have none" in report.notes[0]
    assert cautions(measured(trace, tmp_path, "ProfilerStep#2").notes)


def test_devices_that_take_turns_are_a_caution_since_active_is_when_any_of_them_works(tmp_path: Path) -> None:
    trace = Trace()
    (begin,) = marks(trace, [STEP_US])
    for number in range(20):
        at, device = begin + 500 * number, number % 2
        trace.add("cuda_runtime", "cudaLaunchKernel", at, 2.0, MAIN, correlation=number + 1)
        trace.add("kernel", "sgemm", at + 10, 400.0, 7, device, device=device, stream=7, correlation=number + 1)
    (note,) = cautions(measured(trace, tmp_path).notes)
    assert "work of 2 (0, 1), and active is when any of them works; they work for 40 %, 40 % of the step" in note


def test_what_the_traces_of_some_ranks_lack_is_said_with_these_ranks(tmp_path: Path) -> None:
    trace = Trace()
    launched(trace, START, START + 5, 10.0, 1)
    path = tmp_path / "trace.json"
    path.write_bytes(trace.text())
    (first,), (second,) = (load_traces(path).graphs for _ in range(2))
    second.rank, first.world, second.world = 1, 2, 2
    second.notes = ["its clock is wrong"]
    assert "its clock is wrong (rank 1)" in measure_step(Job([first, second])).notes
