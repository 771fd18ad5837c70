"""What calls need of the tensors they read."""

from __future__ import annotations

from typing import Any

import pytest

from foretrace.graph import Op, Tensor
from foretrace.graph.operators import sparse_parts
from foretrace.replay.roles import roles


def tensor(number: int, shape: tuple[int, ...], dtype: str = "float32", **facts: Any) -> Tensor:
    return Tensor(shape, dtype, id=number, storage=number, **facts)


TABLE, IDS = tensor(0, (100, 8)), tensor(1, (64,), "int64")
IDS_OF_ROWS = tensor(1, (1, 64), "int64")


@pytest.mark.parametrize(
    ("op", "kind", "facts"),
    [
        (Op("aten::embedding", (TABLE, IDS)), "ids", {"low": 0, "high": 99}),
        (Op("aten::index_select", (TABLE, 1, IDS)), "ids", {"low": 0, "high": 7}),
        (Op("aten::nll_loss_forward", (tensor(2, (64, 10)), IDS)), "ids", {"low": 0, "high": 9}),
        (Op("aten::_sparse_coo_tensor_unsafe", (IDS_OF_ROWS, TABLE, [50, 8])), "ids", {"low": 0, "high": 49}),
        (Op("aten::sqrt", (IDS,)), "uniform", {"low": 1e-8, "high": 1e-4}),
    ],
)
def test_a_reader_says_what_it_needs(op: Op, kind: str, facts: dict[str, Any]) -> None:
    found = roles([op], {})[1]
    assert found.kind == kind and found.facts == facts


def test_offsets_of_bags_fit_their_ids() -> None:
    offsets = tensor(2, (16,), "int64")
    found = roles([Op("aten::_embedding_bag", (TABLE, IDS, offsets, False, 0, True, None, False))], {})
    assert found[2].kind == "even" and found[2].facts == {"total": 64, "whole": False}


def test_calls_that_only_move_data_hand_the_need_on() -> None:
    moved = tensor(5, (64,), "int64")
    found = roles([Op("aten::view", (IDS,), outputs=(moved,)), Op("aten::embedding", (TABLE, moved))], {})
    assert found[1].kind == "ids"


def test_sparse_tensors_are_made_of_what_was_taken_apart() -> None:
    whole = tensor(3, (100, 8), layout="sparse_coo")
    indices, values = tensor(4, (1, 64), "int64"), tensor(5, (64, 8))
    ops = [Op("aten::_indices", (whole,), outputs=(indices,)), Op("aten::_values", (whole,), outputs=(values,))]
    assert sparse_parts(ops) == {3: (indices, values)}
