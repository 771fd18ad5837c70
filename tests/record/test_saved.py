"""What autograd adds only because somebody watches is taken out, and nothing else."""

from __future__ import annotations

import torch

from foretrace.graph import Op, Storage, Tensor
from foretrace.record.watch.autograd import without_saves
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
