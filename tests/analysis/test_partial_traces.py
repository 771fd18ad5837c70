"""Traces that lack ops, launches, kernels or events of the host: what is said of them, and what is not."""

from pathlib import Path

import pytest

from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import StepReport
from foretrace.analysis.steps import list_steps
from foretrace.formats.load import load_traces
from foretrace.graph import Job
from foretrace.graph.graph import cautions
from foretrace.prediction.predict import predict_on_own_machine
from foretrace.report.step import step_facts
from foretrace.report.terminal import print_report
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
    assert report.bound is None and cautions(report.notes)
    assert limit(report).startswith("what limits it is unknown: no device work is recorded in ")


def lossy(kept: int, launches: int = 20, us: float = 400.0, after_us: float = 0.0) -> Trace:
    """Kernels in a row of which the first are recorded, a sync to their end, and then the host alone."""
    trace = Trace()
    (begin,) = marks(trace, [launches * us + after_us])
    for number in range(launches):
        trace.add("cpu_op", "aten::mm", begin + 5 * number, 4.0, MAIN)
        launched(trace, begin + 5 * number, begin + 5 + us * number, us - 1.0, number + 1)
    trace.add("cuda_runtime", "cudaDeviceSynchronize", begin + 5 * launches, (us - 5) * launches, MAIN)
    trace.add("cpu_op", "aten::sort", begin + us * launches, after_us, MAIN)
    kernels = [event for event in trace.events if event["cat"] == "kernel"]
    trace.events = [event for event in trace.events if event not in kernels[kept:]]
    return trace


def test_the_host_is_not_said_to_limit_a_step_the_later_kernels_of_which_are_missing(tmp_path: Path) -> None:
    assert measured(lossy(20), tmp_path).bound == "device"
    report = measured(lossy(6), tmp_path)
    assert report.bound is report.ranks[0].bound is None
    assert limit(report).startswith("what limits it is unknown: no device work is recorded in 70 % of it")
    assert list_steps(load_traces(tmp_path / "trace.json")).steps[0].bound is None
    predicted = predict_on_own_machine(load_traces(tmp_path / "trace.json"))
    assert predicted.bound is None and "what limits it is unknown" in limit(predicted)


def test_the_host_limits_a_step_however_long_the_missing_kernels_took(tmp_path: Path) -> None:
    report = measured(lossy(18, after_us=40_000.0), tmp_path)
    assert report.bound == "host" and cautions(report.notes)
    assert limit(report).startswith("host-bound")


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


def test_devices_of_which_nothing_is_recorded_have_no_figures(tmp_path: Path) -> None:
    trace = Trace()
    marks(trace, [STEP_US])
    trace.add("cuda_runtime", "cudaLaunchKernel", START + 5, 2.0, MAIN, correlation=1)
    document = measured(trace, tmp_path).to_dict()
    assert document["step_ms"] == {"0": 10.0}
    of_devices = ("device_active_ms", "device_idle_ms", "kernel_ms", "overlap", "launched_before_ms")
    assert all(document[name] == {"0": None} for name in of_devices)
    assert document["device_span_ms"] is document["attributed"] is document["bound"] is None


def test_steps_that_lost_all_their_kernels_are_not_listed_as_the_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = Trace()
    for number, begin in enumerate(marks(trace, [STEP_US] * 3)):
        launched(trace, begin + 10, begin + 100, 5_000.0, number + 1)
    trace.events = [event for event in trace.events if event["name"] != "sgemm" or event["ts"] < START + 2 * STEP_US]
    path = tmp_path / "trace.json"
    path.write_bytes(trace.text())
    found = list_steps(load_traces(path))
    assert [row.device_active_ms for row in found.steps] == [5.0, 5.0, None]
    assert found.steps[2].bound is None and cautions(found.notes)
    print_report(found)
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if "ProfilerStep#2" in line]
    assert shown == [["ProfilerStep#2", "10.0", "–", "–", "0", "–"]]


def test_a_step_whose_kernels_all_run_after_it_is_listed_with_them(tmp_path: Path) -> None:
    trace = Trace()
    (begin,) = marks(trace, [STEP_US])
    launched(trace, begin + 10, begin + 100 * STEP_US, 5_000.0, 1)
    path = tmp_path / "trace.json"
    path.write_bytes(trace.text())
    (row,) = list_steps(load_traces(path)).steps
    assert (row.device_active_ms, row.device_idle_ms, row.kernels, row.bound) == (0.0, 10.0, 1, None)


def test_a_clock_of_the_device_that_is_late_makes_no_queue(tmp_path: Path) -> None:
    for late_us, known in ((0.0, True), (2_000.0, False)):
        trace = Trace()
        (begin,) = marks(trace, [STEP_US])
        for number in range(5):
            at = begin + 2_000 * number
            launched(trace, at + 900, at + 910 + late_us, 50.0, number + 1)
            trace.add("cuda_runtime", "cudaDeviceSynchronize", at + 920, 50.0, MAIN, correlation=100 + number)
        report = measured(trace, tmp_path)
        late = [note for note in report.notes if note.startswith("the clock of the device is late: 5 of 5 waits")]
        assert bool(late) == (not known) and cautions(report.notes) == late
        assert (report.bound, list_steps(load_traces(tmp_path / "trace.json")).steps[0].bound) == (
            ("host", "host") if known else (None, None)
        )
        assert limit(report).startswith("host-bound") if known else "clocks of host and device differ" in limit(report)


def test_collectives_without_kernels_are_not_taken_for_no_communication(tmp_path: Path) -> None:
    trace = Trace()
    (begin,) = marks(trace, [STEP_US])
    for number in range(50):
        launched(trace, begin + 100 * number, begin + 100 * number + 10, 50.0, number + 1)
    trace.add("cpu_op", "record_param_comms", begin + 6_000, 20.0, MAIN)
    trace.add("cuda_runtime", "cudaLaunchKernelExC", begin + 6_005, 5.0, MAIN, correlation=99)
    (caution,) = cautions(measured(trace, tmp_path).notes)
    assert caution.startswith("communication is missing: 1 of 1 launches of collectives have no kernel in the trace")
    trace.add("kernel", "ncclDevKernel_AllReduce", begin + 6_020, 9.0, 20, 0, device=0, stream=20, correlation=99)
    assert not cautions(measured(trace, tmp_path).notes)


def test_work_that_runs_on_after_a_wait_for_an_event_is_no_sign_of_a_late_clock(tmp_path: Path) -> None:
    trace = Trace()
    (begin,) = marks(trace, [STEP_US])
    for number in range(5):
        at = begin + 2_000 * number
        launched(trace, at + 900, at + 910, 500.0, number + 1)
        for wait in ("cudaEventSynchronize", "cudaStreamSynchronize"):
            trace.add("cuda_runtime", wait, at + 920, 5.0, MAIN, correlation=100 + number)
    assert not measured(trace, tmp_path).notes


def test_a_copy_that_ends_after_its_op_waited_for_it_shows_a_late_clock(tmp_path: Path) -> None:
    trace = Trace()
    (begin,) = marks(trace, [STEP_US])
    trace.add("cpu_op", "aten::_local_scalar_dense", begin, 100.0, MAIN)
    trace.add("cuda_runtime", "cudaMemcpyAsync", begin + 5, 5.0, MAIN, correlation=1)
    trace.add("gpu_memcpy", "Memcpy DtoH", begin + 1_000, 2.0, 7, 0, device=0, stream=7, correlation=1)
    trace.add("cuda_runtime", "cudaStreamSynchronize", begin + 20, 70.0, MAIN, correlation=2)
    (caution,) = cautions(measured(trace, tmp_path).notes)
    assert caution.startswith("the clock of the device is late: 1 of 1 waits for it are over") and "912 us" in caution


def test_a_host_whose_waits_are_unknown_is_not_busier_than_the_device(tmp_path: Path) -> None:
    trace = Trace()
    (begin,) = marks(trace, [STEP_US])
    trace.add("cpu_op", "aten::mm", begin, STEP_US, MAIN)
    launched(trace, begin + 1_000, begin + 1_700, STEP_US - 1_700, 1)
    assert measured(trace, tmp_path).bound == "host"
    trace.events = [event for event in trace.events if event["cat"] != "cuda_runtime"]
    report = measured(trace, tmp_path)
    assert report.device_idle_ms == pytest.approx(1.7) and report.bound == "device"
    assert list_steps(load_traces(tmp_path / "trace.json")).steps[0].bound == "device"
