"""Calls that fail: named, replaced, counted."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from foretrace.graph import Graph, Op, OpTable, Tensor


def tensor(number: int, *shape: int) -> Tensor:
    return Tensor(shape or (4,), "float32", "cpu", id=number, storage=number)


def failing() -> Graph:
    """A product of sizes that do not fit, between two calls that work; the last one is of a package nobody has."""
    return Graph(
        OpTable.of(
            [
                Op("aten::relu", (tensor(0, 4, 4),), outputs=(tensor(1, 4, 4),), overload="default"),
                Op("aten::mm", (tensor(1, 4, 4), tensor(2, 3, 3)), outputs=(tensor(3, 4, 3),), overload="default"),
                Op("aten::neg", (tensor(3, 4, 3),), outputs=(tensor(4, 4, 3),), overload="default"),
                Op("mine::op", (tensor(4, 4, 3),), outputs=(tensor(5, 4, 3),), overload="default"),
                Op("aten::exp", (tensor(5, 4, 3),), outputs=(tensor(6, 4, 3),), overload="default"),
            ]
        )
    )


@pytest.fixture
def benchmark(loaded: Callable[..., Any]) -> Any:
    return loaded(failing())


def test_a_call_that_fails_is_named_with_its_arguments(benchmark: Any) -> None:
    (failure,) = benchmark.source.failures
    assert failure.number == 1 and failure.call == "aten.mm.default(t1, t2)"
    assert "cannot be multiplied" in failure.error


def test_what_comes_after_it_goes_on_with_something_of_its_size(benchmark: Any) -> None:
    benchmark.step()()
    assert benchmark.called == {0, 2, 4}
    assert benchmark.source.stand_ins == [3]


def test_failures_and_stand_ins_lower_the_coverage(benchmark: Any) -> None:
    measure, report = (importlib.import_module(f"harness.{name}") for name in ("measure", "report"))
    result = report.merge_ranks([measure.measure_benchmark(benchmark, 2, paced=True)])
    assert result["coverage"]["calls"] == pytest.approx(3 / 5)
    assert result["failures"][0]["number"] == 1 and result["stand_ins"][0]["call"] == "mine::op"
    text = report.format_result(result, 10)
    assert "failed: aten.mm.default(t1, t2)" in text and "not called: mine::op" in text


def test_a_view_of_what_lies_otherwise_here_is_a_copy(loaded: Callable[..., Any]) -> None:
    turned, flat = tensor(1, 4, 3), tensor(2, 12)
    views = [
        Op("aten::t", (tensor(0, 3, 4),), outputs=(turned,), overload="default"),
        Op("aten::view", (turned, [12]), outputs=(flat,), overload="default"),
    ]
    benchmark = loaded(Graph(OpTable.of(views)))
    assert benchmark.source.failures == [] and benchmark.source.translated == {1: "aten.reshape.default"}
    assert benchmark.called == {0, 1}


def test_an_edited_line_that_is_no_call_fails_as_python_does(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(Graph(OpTable.of([Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default")])))
    step = benchmark.folder / "step.py"
    step.write_text(step.read_text().replace("    begin()", "    1 / 0"))
    source = importlib.import_module("harness.source").Source(step, "cpu")
    with pytest.raises(ZeroDivisionError):
        source.make_runnable(benchmark.inputs)


def test_a_name_that_no_line_makes_is_no_failed_call(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(failing())
    step = benchmark.folder / "step.py"
    step.write_text("".join(line for line in step.read_text().splitlines(True) if "aten.relu" not in line))
    source = importlib.import_module("harness.source").Source(step, "cpu")
    with pytest.raises(NameError, match="t1"):
        source.make_runnable(benchmark.inputs)
    assert source.failures == []
