"""All steps of a trace, and what differs in the slow ones."""

import pytest

from foretrace.analysis.steps import _named_parts, list_steps
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job, Span
from foretrace.graph.tables import ANNOTATION
from tests.analysis.builders import Call, all_reduce, launch, rank
from tests.analysis.test_idle import LOADER, doing


def trained(*loads: float, kernel_us: float = 500.0) -> Graph:
    """Steps that load a batch for so long, and then launch a kernel."""
    events: list[object] = []
    spans, loading, at = [], [], 0.0
    for number, load in enumerate(loads):
        end = at + load + kernel_us + 100
        spans.append(Span(f"ProfilerStep#{number}", at, end))
        loading.append((LOADER, at + 5, at + load))
        events += [
            Call(f"ProfilerStep#{number}", at, end, kind=ANNOTATION),
            Call("aten::mm", at + load + 10, at + load + 50),
        ]
        events += [launch(at + load + 20, at + load + 30, (at + load + 40, at + load + 40 + kernel_us))]
        at = end
    return doing(rank(*events, steps=spans), *loading)  # type: ignore[arg-type]


def test_a_slow_step_is_told_by_what_it_has_more_of() -> None:
    found = list_steps(Job([trained(100, 100, 2100, 100, 100)], "run"))
    assert [row.slow for row in found.steps] == [False, False, True, False, False]
    assert found.median_ms == pytest.approx(0.7) and found.steps[2].ms == pytest.approx(2.7)
    assert found.steps[2].differs == {f"data loading: {LOADER}": pytest.approx(2.0)}
    assert (found.steps[2].bound, found.steps[0].bound) == ("host", "device")
    assert found.to_dict()["steps"][2]["step"] == "ProfilerStep#2"


def worked(*kernels: tuple[str, float], host_us: float = 20.0, talks_us: float = 50.0) -> Graph:
    """Steps of a call, a kernel of a name and a length, and a collective, the half of it behind that."""
    events: list[object] = []
    spans, at = [], 0.0
    for number, (name, us) in enumerate(kernels):
        begin, end = at + host_us, at + host_us + us + talks_us / 2
        spans.append(Span(f"ProfilerStep#{number}", at, end))
        events += [Call(f"ProfilerStep#{number}", at, end, kind=ANNOTATION), Call("aten::thing", at, begin)]
        events += [launch(begin - 4, begin - 2, (begin, begin + us), name=name)]
        events += [all_reduce(begin - 2, begin - 1, (begin + us - talks_us / 2, end))]
        at = end
    return rank(*events, steps=spans)  # type: ignore[arg-type]


def test_device_work_that_a_slow_step_has_more_of_is_named_by_its_family() -> None:
    found = list_steps(Job([worked(("sgemm", 500.0), ("sgemm", 500.0), ("sgemm", 900.0))]))
    assert found.steps[2].differs == {"device work: matrix product": pytest.approx(0.4)}


def test_parts_of_a_slow_step_add_up_with_what_it_has_less_of() -> None:
    found = list_steps(Job([worked(("sgemm", 500.0), ("sgemm", 500.0), ("flash_fwd", 900.0))]))
    differs = found.steps[2].differs
    assert differs == {
        "device work: attention": pytest.approx(0.9),
        "device work: matrix product": pytest.approx(-0.5),
    }
    assert sum(differs.values()) == pytest.approx(found.steps[2].ms - found.median_ms)


def test_exposed_communication_is_no_other_device_work() -> None:
    ranks = [worked(("sgemm", 500.0), talks_us=talks) for talks in (50.0, 50.0, 450.0)]
    active = [list_steps(Job([graph])).steps[0].device_active_ms or 0.0 for graph in ranks]
    assert active[2] - active[0] == pytest.approx(0.2)


def test_many_small_parts_of_a_cause_are_one() -> None:
    parts = {f"T2: aten::op{number}": 0.05 for number in range(8)} | {"T1: aten::mm": 0.55, "sync": 0.02}
    named = _named_parts(parts, 1.0)
    assert named == {"T1: aten::mm": 0.55, "T2: others": pytest.approx(0.4)}


def test_steps_alike_have_nothing_that_differs() -> None:
    assert not any(row.slow or row.differs for row in list_steps(Job([trained(100, 101, 99)])).steps)


def test_a_step_is_that_of_the_rank_that_takes_longest_for_it() -> None:
    ranks = [trained(100, 100), trained(100, 900)]
    ranks[1].rank = 1
    assert [row.rank for row in list_steps(Job(ranks)).steps] == [0, 1]


def test_a_trace_without_marks_has_no_steps_to_list() -> None:
    with pytest.raises(ForetraceError, match="marks no steps"):
        list_steps(Job([rank(Call("aten::mm", 0, 10))]))


def test_the_device_work_of_a_step_is_of_the_kernels_that_it_launched_whenever_they_run() -> None:
    marks, at = [100.0, 1000.0, 1000.0, 2000.0, 1000.0, 900.0], 0.0
    events: list[object] = []
    spans = []
    for number, us in enumerate(marks):
        spans.append(Span(f"ProfilerStep#{number}", at, at + us))
        events += [Call(f"ProfilerStep#{number}", at, at + us, kind=ANNOTATION), Call("aten::mm", at, at + 50)]
        began = 20.0 + 1000.0 * number
        events += [launch(at + 10, at + 15, (began, began + 1000.0), name="sgemm")]
        at += us
    found = list_steps(Job([rank(*events, steps=spans)]))  # type: ignore[arg-type]
    assert [row.slow for row in found.steps] == [False, False, False, True, False, False]
    assert found.steps[3].differs == {"work of other steps": pytest.approx(1.0)}
