"""Gradients shared beside backward or behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

import foretrace as ft
from foretrace.graph import Graph
from foretrace.record.sketch import sketch
from foretrace.transforms.buckets import buckets
from foretrace.transforms.overlap import overlap
from tests.transforms.agreement import assert_same, shapes
from tests.transforms.parallel.steps import exchanged
from tests.transforms.test_buckets import wide


def by_hand() -> Callable[[], None]:
    """A step that shares its gradients itself, in one bucket for each layer, when backward is done."""
    with torch.device("cuda"):
        model, given = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 64)), torch.randn(8, 256)
        rooms = [torch.empty(sum(w.numel() for w in layer.parameters())) for layer in model]
    update = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        update.zero_grad()
        model(given).square().mean().backward()
        for layer, room in zip(reversed(model), reversed(rooms)):
            parts = room.split([w.numel() for w in layer.parameters()])
            for weight, part in zip(layer.parameters(), parts):
                torch.mul(weight.grad, 1 / dist.get_world_size(), out=part.view_as(weight))
            dist.all_reduce(room)
            for weight, part in zip(layer.parameters(), parts):
                weight.grad.copy_(part.view_as(weight))
        update.step()

    return step


def last_of_backward(graph: Graph) -> int:
    return max(row for row, op in enumerate(graph.ops) if op.phase == "backward" and op.name == "aten::mm")


@pytest.mark.parametrize("in_place", [False, True])
def test_without_overlap_all_buckets_wait_for_backward(in_place: bool) -> None:
    step = wide(0.25, in_place)
    behind = overlap(step, False)
    assert exchanged(behind) == exchanged(step) and sorted(shapes(behind)) == sorted(shapes(step))
    assert step.collectives[0].op < last_of_backward(step)
    assert all(c.op > last_of_backward(behind) for c in behind.collectives)
    assert_same(overlap(behind, True), step)


def test_buckets_keep_waiting_for_backward_in_other_sizes() -> None:
    behind = buckets(overlap(wide(0.25), False), 1)
    assert_same(behind, overlap(wide(1), False))


def test_a_step_that_shares_its_gradients_behind_backward_does_so_beside_it() -> None:
    step = sketch(by_hand, device="cuda", world=8)
    beside = overlap(step, True)
    assert len(step.collectives) == 2 and step.collectives[0].op > last_of_backward(step)
    assert beside.collectives[0].op < last_of_backward(beside)
    assert sorted(shapes(beside)) == sorted(shapes(step))


def test_what_is_shared_behind_backward_is_not_hidden() -> None:
    told = ft.whatif(wide(0.25), changes=["overlap=off"])
    assert told.after.exposed_communication_ms >= told.before.exposed_communication_ms
