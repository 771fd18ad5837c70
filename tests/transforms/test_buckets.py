"""Gradients in other buckets: held against DistributedDataParallel with that ``bucket_cap_mb``."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gpt
from foretrace.graph import ForetraceError, Graph
from foretrace.record.sketch import sketch
from foretrace.transforms.buckets import buckets
from foretrace.transforms.parallel.data import data_parallel
from tests.transforms.agreement import assert_same, sketched
from tests.transforms.parallel.steps import exchanged, gpt_step, neighbours, told, trained


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
    with pytest.raises(ForetraceError, match="shares no gradients in buckets"):
        buckets(sketched(gpt), 25.0)
