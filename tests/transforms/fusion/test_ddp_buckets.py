"""Sizes and overlap of gradient buckets: compared with DistributedDataParallel."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import foretrace as ft
import gpt
from foretrace.graph import ForetraceError, Graph
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.fusion.ddp_buckets import buckets, overlap
from tests.transforms.agreement import assert_same, shapes, sketched
from tests.transforms.parallel.steps import data_parallel, exchanged, gpt_step, neighbours, told, trained


@cache
def wide(mb: float | None, in_place: bool = False) -> Graph:
    """An MLP under DDP on eight ranks."""

    def build() -> tuple[nn.Module, torch.Tensor]:
        model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise((256, 512, 1024, 64))))
        return DistributedDataParallel(model, bucket_cap_mb=mb, gradient_as_bucket_view=in_place), torch.randn(8, 256)

    return sketch(trained(build), device="cuda", world=8)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("old", "new"), [(None, 0.25), (0.25, None), (0.25, 2), (100, 1), (1, 100)])
def test_a_step_in_other_buckets_is_ddps_to_the_last_byte(old: float | None, new: float | None, in_place: bool) -> None:
    made, truth = buckets(wide(old, in_place), new or 25.0), wide(new, in_place)
    assert_same(made, truth)
    assert exchanged(made) == exchanged(truth) and neighbours(made) == neighbours(truth)
    assert [c.ranks for c in made.collectives] == [c.ranks for c in truth.collectives]


def test_buckets_of_a_gpt_are_ddps() -> None:
    small = buckets(gpt_step(8, ddp=True), 0.05)
    assert len(small.collectives) > 5
    assert_same(buckets(small, 25.0), gpt_step(8, ddp=True))


def test_what_parallelize_made_can_be_put_in_other_buckets() -> None:
    alone = gpt_step()
    assert told(buckets(data_parallel(alone, 8), 0.05)) == told(data_parallel(alone, 8, 0.05))


def test_one_bucket_holds_everything() -> None:
    (only,) = buckets(wide(0.25), math.inf).collectives
    assert only.nbytes == sum(c.nbytes for c in wide(0.25).collectives)


def test_a_step_that_shares_no_gradients_is_refused() -> None:
    with pytest.raises(ForetraceError, match="reduces no gradients in buckets"):
        buckets(sketched(gpt), 25.0)


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


def test_gradients_reduced_after_backward_can_overlap_with_it() -> None:
    step = sketch(by_hand, device="cuda", world=8)
    beside = overlap(step, True)
    assert len(step.collectives) == 2 and step.collectives[0].op > last_of_backward(step)
    assert beside.collectives[0].op < last_of_backward(beside)
    assert sorted(shapes(beside)) == sorted(shapes(step))


def test_communication_after_backward_is_exposed() -> None:
    told = ft.what_if(wide(0.25), changes=["overlap=off"])
    assert told.after.exposed_communication_ms >= told.before.exposed_communication_ms - 1e-9
