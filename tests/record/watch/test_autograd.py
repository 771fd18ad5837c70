"""What autograd adds only because somebody watches is taken out, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from foretrace.graph import Op, Storage, Tensor
from foretrace.record.watch.autograd import plain_form, without_saves
from foretrace.record.watch.watch import Watch


def tensor(number: int, storage: int = 0) -> Tensor:
    return Tensor((4,), "float32", id=number, storage=storage)


RELU = Op("aten::relu", (tensor(0),), outputs=(tensor(1),), phase="forward")
SAVE = Op("aten::detach", (tensor(1),), outputs=(tensor(2),), phase="forward")
USE = Op("aten::threshold_backward", (tensor(2),), phase="backward", node="ReluBackward0")


def names(ops: list[Op]) -> list[str]:
    return [op.name.removeprefix("aten::") for op in ops]


def copies(*ops: Op) -> list[Op]:
    from copy import copy

    return [copy(op) for op in ops]


def test_a_detach_that_saves_for_backward_goes() -> None:
    assert names(without_saves(copies(RELU, SAVE, USE), {})) == ["relu", "threshold_backward"]


def test_a_detach_that_takes_out_of_savings_goes() -> None:
    unpack = Op("aten::detach", (tensor(2),), outputs=(tensor(3),), phase="backward", node="ReluBackward0")
    assert names(without_saves(copies(RELU, unpack, USE), {})) == ["relu", "threshold_backward"]


def test_a_script_that_detaches_and_goes_on_computing_is_believed() -> None:
    use = Op("aten::mul", (tensor(2),), phase="forward")
    assert names(without_saves(copies(RELU, SAVE, use), {})) == ["relu", "detach", "mul"]


def test_a_detach_of_something_older_stays() -> None:
    other = Op("aten::add", (tensor(0),), outputs=(tensor(9),), phase="forward")
    assert names(without_saves(copies(RELU, other, SAVE, USE), {})) == ["relu", "add", "detach", "threshold_backward"]


def test_a_detach_in_a_users_own_backward_stays() -> None:
    own = Op("aten::detach", (tensor(7),), outputs=(tensor(8),), phase="backward", node="MyFunctionBackward")
    assert names(without_saves(copies(RELU, own), {})) == ["relu", "detach"]


def test_births_deaths_and_frees_move_to_the_ops_that_stay() -> None:
    save, use, last = copies(SAVE, USE, Op("aten::add", (tensor(5, 5),), phase="backward"))
    save.frees, use.frees = (11,), (12,)
    storages = {
        1: Storage(1, 4, "cpu", birth=0, death=2),
        2: Storage(2, 4, "cpu", birth=2, death=3),
        3: Storage(3, 4, "cpu", birth=3, death=4),
        4: Storage(4, 4, "cpu"),
    }
    kept = without_saves([*copies(RELU), save, use, last], storages)
    assert kept[1].frees == (11, 12)
    lives = {number: (storage.birth, storage.death) for number, storage in storages.items()}
    assert lives == {1: (0, 1), 2: (1, 2), 3: (2, 3), 4: (-1, -1)}


def test_a_real_step_has_no_detach_that_the_script_did_not_write() -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    with Watch() as watch:
        hidden = (weight @ weight).relu().sigmoid()
        hidden.sum().backward()
        hidden.detach().mul(2)
    assert [op.name for op in watch.ops].count("aten::detach") == 1


def test_modules_entered_at_a_detach_are_those_of_the_next_call() -> None:
    x, saved, y = (Tensor((4,), "float32", id=number, storage=min(number, 1)) for number in (1, 2, 3))
    ops = [
        Op("aten::relu", outputs=(x,)),
        Op("aten::detach", (x,), outputs=(saved,), entered=2),
        Op("aten::add", (x,), outputs=(y,), entered=1),
    ]
    assert [op.entered for op in without_saves(ops, {})] == [0, 3]


aten = torch.ops.aten
rows = torch.tensor([0, 2, 2])
places = torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1]])

DERIVED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gather": lambda x: x.gather(0, places),
    "index_select": lambda x: x.index_select(0, rows),
    "rows by ids": lambda x: x[rows],
    "columns by ids": lambda x: x[:, rows],
    "cummax": lambda x: x.cummax(0)[0],
    "take": lambda x: x.take(rows),
    "masked_select": lambda x: x.masked_select(x > 0),
    "select": lambda x: x[0],
    "slice": lambda x: x[1:3],
    "embedding": lambda x: torch.nn.functional.embedding(rows, x),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_watched_derivative_calls_what_a_plain_one_calls(name: str) -> None:
    x = torch.randn(6, 4, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as plain:
        DERIVED[name](x).sum().backward()
    expected, x.grad = x.grad, None
    with Watch() as watch:
        DERIVED[name](x).sum().backward()
    assert torch.equal(x.grad, expected)
    called = {event.name for event in plain.events()}
    assert {op.name for op in watch.ops if op.phase == "backward"} <= called


def test_outside_backward_a_call_stays_as_it_is() -> None:
    with Watch() as watch:
        torch.zeros(4).scatter_add(0, torch.tensor([1]), torch.ones(1))
    assert watch.ops[-1].name == "aten::scatter_add"


def test_what_somebody_else_can_see_is_not_changed_in_place() -> None:
    args = (torch.ones(4), 0, torch.tensor([1]), torch.ones(1))
    assert plain_form(aten.scatter_add.default, args, "GatherBackward0", fresh=False)[0] is aten.scatter_add.default
    assert plain_form(aten.scatter_add.default, args, "", fresh=True)[0] is aten.scatter_add.default


@pytest.mark.parametrize("accumulate", [True, False])
def test_index_put_becomes_what_autograd_calls_by_itself(accumulate: bool) -> None:
    given, values = torch.ones(4), torch.ones(1)
    func, args = plain_form(aten.index_put.default, (given, [rows], values, accumulate), "IndexBackward0", fresh=True)
    assert func is aten._index_put_impl_.default
    assert args == (given, [rows], values, accumulate, True)


def table() -> torch.nn.EmbeddingBag:
    return torch.nn.EmbeddingBag(10, 4, mode="sum", sparse=True)


def test_a_sparse_gradient_is_taken_over_not_cloned() -> None:
    bag = table()
    with Watch() as watch:
        bag(torch.tensor([[1, 2, 2]])).sum().backward()
    last = [op.name for op in watch.ops][-3:]
    assert last == ["aten::_indices", "aten::_values", "aten::_sparse_coo_tensor_unsafe"]
    assert "aten::clone" not in [op.name for op in watch.ops]
    assert bag.weight.grad.layout == torch.sparse_coo and bag.weight.grad._nnz() == 3


def test_a_second_gradient_is_added_to_the_first() -> None:
    bag = table()
    bag(torch.tensor([[1]])).sum().backward()
    with Watch() as watch:
        bag(torch.tensor([[2, 3]])).sum().backward()
    assert "aten::add_" in [op.name for op in watch.ops]
    assert bag.weight.grad._nnz() == 3


def test_what_autograd_gives_away_is_watched_to_its_end() -> None:
    """``torch.autograd.grad`` keeps no gradient: the watch must not wait for one to be kept."""
    bag, other = table(), torch.ones(4, requires_grad=True)
    with Watch() as watch:
        product = bag(torch.tensor([[1, 2]])) * other.sigmoid()
        torch.autograd.grad(product.sum(), [bag.weight, other])
        torch.ones(3).mul(2)
    names = [op.name for op in watch.ops]
    assert "aten::sigmoid_backward" in names and names[-1] == "aten::mul"
    assert bag.weight.grad is None


def test_weights_have_no_hooks_left_after_a_step() -> None:
    bag = table()
    with Watch():
        bag(torch.tensor([[1]])).sum().backward()
    assert not bag.weight._backward_hooks and not bag.weight._post_accumulate_grad_hooks
