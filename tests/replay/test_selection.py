"""Parts of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foretrace.graph import ForetraceError, Op
from foretrace.replay.folder import Choices
from foretrace.replay.selection import Selection, select
from tests.replay.steps import STEPS
from tests.replay.test_replays import graph_of

OPS = [
    Op("aten::embedding", phase="forward"),
    Op("aten::mm", phase="forward"),
    Op("c10d::allreduce_", phase="backward"),
    Op("aten::mm", phase="backward"),
    Op("aten::_foreach_add_", phase="optimizer"),
]


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), [0, 1, 2, 3, 4]),
        (Selection(phase="backward"), [2, 3]),
        (Selection(first="mm"), [1, 2, 3, 4]),
        (Selection(first="aten::mm#1", last="_foreach*"), [3, 4]),
        (Selection(only="communication"), [2]),
        (Selection(only="lookup"), [0]),
        (Selection(only="compute", without=("mm", "_foreach*")), [0]),
    ],
)
def test_calls_are_taken_by_phase_place_and_kind(selection: Selection, taken: list[int]) -> None:
    assert select(OPS, selection) == taken


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(phase="sideways"), "no phase 'sideways'"),
        (Selection(only="music"), "of kind 'music'"),
        (Selection(first="conv2d"), "no call 'conv2d'"),
        (Selection(first="convolution"), "It has aten::_foreach_add_, aten::embedding"),
        (Selection(first="embeding"), "Did you mean .* aten::embedding"),
        (Selection(first="aten::nm"), "Did you mean .* aten::mm"),
        (Selection(last="mm#7"), "no call 'mm#7'. Of mm it has 2 calls, mm#0 to mm#1"),
        (Selection(last="mm#x"), "no call 'mm#x'. Of mm it has 2 calls"),
        (Selection(first="mm#"), "no call 'mm#'"),
        (Selection(first="embedding#1"), "Of embedding it has one call, embedding#0"),
        (Selection(without=("mm", "nosuchop")), "no call 'nosuchop'"),
        (Selection(without=("*",)), "nothing is left"),
        (Selection(first="_foreach*", last="mm"), "nothing is left"),
    ],
)
def test_what_is_not_there_is_said(selection: Selection, said: str) -> None:
    with pytest.raises(ForetraceError, match=said):
        select(OPS, selection)


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_each_phase_runs_alone(phase: str, loaded: Callable[..., Any]) -> None:
    graph, _, _ = graph_of(STEPS["adamw, foreach"]())
    benchmark = loaded(graph, Choices(Selection(phase=phase)))
    assert benchmark.source.failures == []
    assert {graph.ops[number].phase for number in benchmark.called} == {phase}
    assert benchmark.original["step_ms"] is None  # nobody timed a part of a step
