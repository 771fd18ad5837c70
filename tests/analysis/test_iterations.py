"""Iterations of traces that mark no steps."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from foretrace.analysis.iterations import find_iterations, repeated_launches
from foretrace.analysis.measure import measure_step
from foretrace.analysis.steps import list_steps
from foretrace.formats.kineto import read_kineto
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.prediction.predict import predict_on_own_machine
from foretrace.report.step import step_facts
from tests.analysis.builders import Call, launch, rank
from tests.narrowing import present
from tests.traces import Trace


def serving(folder: Path, name: str = "step[DECODE bs={0}]", cat: str = "user_annotation", count: int = 5) -> Graph:
    """A server that decodes, without a profiler's step, 1 ms after another."""
    trace = Trace()
    for number in range(count):
        begin = trace.now
        with trace.op("scheduler.py(7): get_next_batch", "python_function"):
            trace.now += 200
        with trace.op(name.format(number), cat) if name else nullcontext():
            for layer in range(4):
                with trace.op(f"layer_{layer}", "user_annotation"), trace.op("aten::mm"):
                    trace.launch("gemm", us=100)
                    trace.now += 50
        trace.now = begin + 1_000
    return read_kineto(trace.write(folder / "trace.json"))


@pytest.mark.parametrize(
    ("name", "cat", "shown"),
    [
        ("step[DECODE bs={0}]", "user_annotation", "step[DECODE bs=#]"),
        ("execute_model", "user_annotation", "execute_model"),
        ("execute_context_1(sq{0})_generation_0", "user_annotation", "execute_context_#(sq#)_generation_#"),
        ("gpu_model_runner.py(1640): execute_model", "python_function", "gpu_model_runner.py(1640): execute_model"),
    ],
)
def test_what_comes_again_and_launches_the_work_is_an_iteration(
    name: str, cat: str, shown: str, tmp_path: Path
) -> None:
    graph = serving(tmp_path, name, cat)
    report = measure_step(graph)
    row = present(report.iterations)
    assert (row.name, row.count, row.ms) == (shown, 5, pytest.approx(1.0, rel=0.01))
    assert report.step is None and report.step_ms > 4
    (fact,) = [fact for fact in step_facts(report) if fact[0] == "holds"]
    assert fact[1:] == (
        "5",
        f"of {shown}, 1.00 ms apart: none is marked as a step, and all of the trace is taken as one",
    )
    assert predict_on_own_machine(Job([graph])).iterations == row


def test_iterations_are_listed_and_shown_like_steps(tmp_path: Path) -> None:
    job = Job([serving(tmp_path)])
    listed = list_steps(job)
    assert [row.step for row in listed.steps] == [f"step[DECODE bs=#] {n}" for n in range(4)], (
        "the last has no next one"
    )
    assert listed.median_ms == pytest.approx(1.0, rel=0.01)
    assert {row.bound for row in listed.steps} == {"host"}
    one = measure_step(job, "step[DECODE bs=#] 2")
    assert one.idle and "no event" not in {row.cause for row in one.idle}
    assert not any("whole trace" in note for note in one.notes)
    assert (one.steps, one.step_ms, one.ranks[0].device_active_ms) == (4, pytest.approx(1.0, 0.01), pytest.approx(0.4))


def test_what_launches_a_part_of_the_work_or_comes_once_is_none(tmp_path: Path) -> None:
    assert find_iterations(serving(tmp_path, name="")) is None
    assert find_iterations(serving(tmp_path, count=1)) is None
    with pytest.raises(ForetraceError, match="marks no steps"):
        list_steps(Job([serving(tmp_path, name="")]))


def launching(*names: str) -> Graph:
    calls = [Call("aten::mm", 10.0 * n, 10.0 * n + 9) for n in range(len(names))]
    launches = [
        launch(10.0 * n + 2, 10.0 * n + 4, (10.0 * n + 5, 10.0 * n + 9), name=name) for n, name in enumerate(names)
    ]
    return rank(*calls, *launches)


STEP = ("embed", *("norm", "gemm") * 6, "head", "adam", "adam")


def test_launches_that_come_again_are_steps_or_layers_of_one_and_said_to_be() -> None:
    row = present(measure_step(launching(*STEP * 5)).iterations)
    assert (row.name, row.count, row.ms) == ("", 5, pytest.approx(0.16))
    assert present(repeated_launches(launching("autotune", *STEP * 5, "embed"))).count == 5, "the first may be another"
    (fact,) = [fact for fact in step_facts(measure_step(launching(*STEP * 5))) if fact[0] == "holds"]
    assert fact[1:] == (
        "5",
        "times the same launches, 0.160 ms apart, steps or layers of one: no step is marked, and all of the trace is "
        "taken as one",
    )


@pytest.mark.parametrize(
    "names", [STEP, STEP * 2, (*STEP * 3, *STEP[:9], *STEP * 2), ("gemm",) * 40, (*STEP * 3, *("sort",) * 40)]
)
def test_one_step_and_launches_that_differ_are_none(names: tuple[str, ...]) -> None:
    assert repeated_launches(launching(*names)) is None


def test_marked_steps_are_the_steps(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(2):
        with trace.step(number), trace.op("forward", "user_annotation"), trace.op("aten::mm"):
            trace.launch("gemm")
    report = measure_step(read_kineto(trace.write(tmp_path / "trace.json")))
    assert report.iterations is None and report.steps == 2
