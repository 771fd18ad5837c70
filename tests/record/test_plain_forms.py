"""Derivatives that a watched step would compute another way are recorded as in a plain one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from foretrace.record.watch.autograd import plain_form
from foretrace.record.watch.watch import Watch

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
