"""What inputs hold: as recorded, as their readers need it, or something harmless."""

from __future__ import annotations

import pytest

from foretrace.graph import Content, Graph, Indices, Op, OpTable, Tensor
from foretrace.replay.fillings import harmless, suited
from foretrace.replay.planning import plan_of

TABLE = Tensor((100, 8), "float32", "cpu", (8, 1), id=0, storage=0)
IDS = Tensor((50,), "int64", "cpu", (1,), id=1, storage=1)
ROWS = Tensor((50, 8), "float32", "cpu", (8, 1), id=2, storage=2)


def graph(**facts: object) -> Graph:
    op = Op("aten::embedding", (TABLE, IDS), outputs=(ROWS,), overload="default")
    return Graph(OpTable.of([op]), **facts)  # type: ignore[arg-type]


def contents(made: Graph) -> dict[int, Content]:
    return {given.tensor.id: given.content for given in plan_of(made).inputs}


def test_what_was_recorded_comes_first() -> None:
    known = Content("ids", {"low": 3, "high": 90, "unique": 2, "reuse": [0, 0, 0, 0, 2]})
    assert contents(graph(contents={1: known}))[1] == known


def test_without_it_ids_stay_inside_their_table_and_are_reused_as_counted() -> None:
    counted = Indices(op=0, rows=100, count=50, unique=25, bags=50, reuse=(0, 25))
    found = contents(graph(indices=[counted]))[1]
    assert found == Content("ids", {"low": 0, "high": 99, "unique": 25, "reuse": [0, 25]})


def test_made_up_values_are_told() -> None:
    assert any("2 of 2 inputs hold values made up" in note for note in plan_of(graph()).notes)


def test_what_nobody_knows_is_harmless() -> None:
    assert contents(graph())[0].kind == "normal"
    assert harmless(Tensor((2,), "bool")).facts == {"value": True}


@pytest.mark.parametrize("kind", ["ids", "arange", "offsets"])
def test_a_content_of_whole_numbers_does_not_fill_floats(kind: str) -> None:
    facts = {"ids": {"low": 0, "high": 1}, "arange": {"start": 0, "step": 1, "period": 2}}
    content = Content(kind, facts.get(kind, {"first": 0, "last": 4, "steps": [4]}))  # type: ignore[arg-type]
    assert suited(content, Tensor((5,), "int64")) == content and suited(content, Tensor((5,), "float32")) is None
