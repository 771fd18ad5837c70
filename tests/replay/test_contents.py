"""Contents of inputs: recorded, or as their readers need them."""

from __future__ import annotations

from typing import Any

import pytest

from foretrace.graph import Content, Graph, Indices, Op, OpTable, Tensor
from foretrace.graph.operators import sparse_parts
from foretrace.replay.generate.contents import default_content, required_contents, usable_content
from foretrace.replay.generate.planning import plan_of

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
    assert default_content(Tensor((2,), "bool")).facts == {"value": True}


@pytest.mark.parametrize("kind", ["ids", "arange", "offsets"])
def test_a_content_of_whole_numbers_does_not_fill_floats(kind: str) -> None:
    facts = {"ids": {"low": 0, "high": 1}, "arange": {"start": 0, "step": 1, "period": 2}}
    content = Content(kind, facts.get(kind, {"first": 0, "last": 4, "steps": [4]}))  # type: ignore[arg-type]
    assert (
        usable_content(content, Tensor((5,), "int64")) == content
        and usable_content(content, Tensor((5,), "float32")) is None
    )


def tensor(number: int, shape: tuple[int, ...], dtype: str = "float32", **facts: Any) -> Tensor:
    return Tensor(shape, dtype, id=number, storage=number, **facts)


WEIGHT, ROW_IDS = tensor(0, (100, 8)), tensor(1, (64,), "int64")
IDS_OF_ROWS = tensor(1, (1, 64), "int64")


@pytest.mark.parametrize(
    ("op", "kind", "facts"),
    [
        (Op("aten::embedding", (WEIGHT, ROW_IDS)), "ids", {"low": 0, "high": 99}),
        (Op("aten::index_select", (WEIGHT, 1, ROW_IDS)), "ids", {"low": 0, "high": 7}),
        (Op("aten::nll_loss_forward", (tensor(2, (64, 10)), ROW_IDS)), "ids", {"low": 0, "high": 9}),
        (Op("aten::_sparse_coo_tensor_unsafe", (IDS_OF_ROWS, WEIGHT, [50, 8])), "ids", {"low": 0, "high": 49}),
        (Op("aten::sqrt", (ROW_IDS,)), "uniform", {"low": 1e-8, "high": 1e-4}),
    ],
)
def test_a_reader_says_what_it_needs(op: Op, kind: str, facts: dict[str, Any]) -> None:
    found = required_contents([op], {})[1]
    assert found.kind == kind and found.facts == facts


def test_offsets_of_bags_fit_their_ids() -> None:
    offsets = tensor(2, (16,), "int64")
    found = required_contents([Op("aten::_embedding_bag", (WEIGHT, ROW_IDS, offsets, False, 0, True, None, False))], {})
    assert found[2].kind == "even" and found[2].facts == {"total": 64, "whole": False}


def test_calls_that_only_move_data_hand_the_need_on() -> None:
    moved = tensor(5, (64,), "int64")
    found = required_contents(
        [Op("aten::view", (ROW_IDS,), outputs=(moved,)), Op("aten::embedding", (WEIGHT, moved))], {}
    )
    assert found[1].kind == "ids"


def test_sparse_tensors_are_made_of_what_was_taken_apart() -> None:
    whole = tensor(3, (100, 8), layout="sparse_coo")
    indices, values = tensor(4, (1, 64), "int64"), tensor(5, (64, 8))
    ops = [Op("aten::_indices", (whole,), outputs=(indices,)), Op("aten::_values", (whole,), outputs=(values,))]
    assert sparse_parts(ops) == {3: (indices, values)}
