"""Sizes that follow from unknown values are assumed, and said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretrace.errors import ForetraceError
from foretrace.graph import Graph
from foretrace.graph.codec import from_lines, to_lines
from foretrace.graph.graph import cautions
from foretrace.record.sketch.assumptions import SPECIFIED
from foretrace.record.sketch.shares import DISTINCT, RETURNED, SELECTED, VARIABLE
from foretrace.record.sketch.sketch import sketch

LIBRARY = "foretrace_tests"
CHOICES: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda x: (x > 0).nonzero()[:, 0],
    "nonzero of numbers": lambda x: x.nonzero()[:, 0],
    "index": lambda x: x[x > 0],
    "where": lambda x: torch.where(x > 0)[0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "the complement": lambda x: x[~(x > 0)],
    "a part of a mask": lambda x: torch.cat([row[flags] for row, flags in zip(x.view(4, -1), (x > 0).view(4, -1))]),
    "rows that pass a check": lambda x: x[(x[:, None] > 0).all(1)],
    "rows that contain one": lambda x: x[(x[:, None] > 0).any(1)],
}


def sketched(step: Callable[[], Any], device: str | None = None) -> tuple[Any, Graph]:
    """What a step returned when it was watched, and its graph: its first call is a warm-up, and later ones have other
    shares."""
    returned: list[Any] = []
    graph = sketch(lambda: returned.append(step()), device)
    return returned[1], graph


@pytest.mark.parametrize("name", CHOICES)
def test_half_of_an_unknown_mask_passes_and_the_headline_says_where_and_how_to_set_it(name: str) -> None:
    size, graph = sketched(lambda: len(CHOICES[name](torch.randn(64))))
    assert 24 <= size <= 40 if name == "a part of a mask" else size == 32
    (caution,) = cautions(graph.notes)
    assert caution.startswith(f"assumed in the step, and decisive: {SELECTED} (test_selections.py:")
    assert f"the range holds 10 to 90 % of them: {VARIABLE}=test_selections.py:" in caution
    assert caution.endswith("=0.1 sets another")


def test_what_is_chosen_counted_and_filled_by_a_mask_agrees() -> None:
    def step() -> list[int]:
        x = torch.randn(40, 3)
        mask = x[:, 0] > 0
        chosen, others = x[mask], x[~mask]
        filled = torch.zeros(40, 3)
        filled[mask] = chosen * 2
        return [len(chosen), len(chosen) + len(others), int(mask.sum()), len(filled[mask])]

    sizes, _ = sketched(step, "cuda")
    assert sizes[0] == sizes[2] == sizes[3] == 20 and sizes[1] == 40


def test_a_mask_that_is_filled_with_several_values_has_as_many_places() -> None:
    def step() -> int:
        mask, out = torch.randn(40) > 0, torch.zeros(40)
        out[mask] = torch.randn(7)
        return len(out[mask])

    assert sketched(step)[0] == 7


def test_half_of_unknown_elements_are_distinct() -> None:
    def step() -> list[Any]:
        cells = (torch.randn(40, 2) * 4).long()
        found, places, counts = torch.unique(cells, dim=0, return_inverse=True, return_counts=True)
        run = torch.unique_consecutive(cells[:, 0])
        return [found.shape, places.shape, counts.shape, int(places.max()), len(run), len(torch.unique(cells))]

    sizes, graph = sketched(step)
    assert sizes == [(20, 2), (40,), (20,), 19, 20, 40]
    assert any(f"decisive: {DISTINCT} (test_selections.py" in note for note in graph.notes)


def test_a_custom_operator_that_asks_for_a_size_returns_half_of_its_rows() -> None:
    with torch.library._scoped_library(LIBRARY, "FRAGMENT") as library:
        library.define("kept(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        context = torch.library.get_ctx
        fake = lambda boxes, *_: boxes.new_empty(context().new_dynamic_size(), dtype=torch.int64)  # noqa: E731
        torch.library.register_fake(f"{LIBRARY}::kept", fake, lib=library)
        operator = getattr(torch.ops, LIBRARY).kept
        size, graph = sketched(lambda: len(operator(torch.randn(30, 4), torch.randn(30), 0.5)), "cuda")
    assert size == 15 and any(f"decisive: {RETURNED} (test_selections.py" in note for note in graph.notes)


def test_calls_say_how_their_work_and_their_number_follow_from_an_assumed_share() -> None:
    def step() -> None:
        x = torch.randn(100, 8)
        for row in x[x[:, 0] > 0].exp():
            row.relu()
        x.tanh()

    _, graph = sketched(step)
    sizes = {op.name: op.assumed for op in graph.ops}
    assert sizes["aten::tanh"] is None
    assert sizes["aten::exp"] == (0.2, 1.8, 1.0, 1.0) and sizes["aten::relu"] == (0.2, 1.8, 0.2, 1.8)
    assert any("the range holds 10 to 90 % of them and " in note for note in graph.notes)
    assert [op.assumed for op in from_lines(to_lines(graph.ops), "here")] == [op.assumed for op in graph.ops]


def test_a_large_mask_is_chosen_by_count_alone() -> None:
    size, _ = sketched(lambda: len(torch.randn(6_000_000)[torch.randn(6_000_000) > 0]))
    assert size == 3_000_000


def test_shares_and_values_are_set_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> list[Any]:
        x = torch.randn(100)
        first = len(x[x > 0])
        second = len(x[x > 1])
        return [first, second, x.mean().item(), int(x.argmax()), bool(x[0] > 0)]

    line = step.__code__.co_firstlineno + 2
    told = {line: "0.1", line + 2: "3"}
    said = ",".join(f"test_selections.py:{place}={value}" for place, value in told.items())
    monkeypatch.setenv(VARIABLE, f"{said},mask=0.25")
    values, graph = sketched(step)
    assert values == [10, 25, 3.0, 3, True]
    assert not cautions(graph.notes) and any(note.startswith(f"assumed: {SPECIFIED} (") for note in graph.notes)


@pytest.mark.parametrize("said", ["0.1", "train.py:3=half", "train.py=0.1"])
def test_what_names_no_line_and_no_value_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, said)
    with pytest.raises(ForetraceError, match="no line and its value"):
        sketch(lambda: None)
