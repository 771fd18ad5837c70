"""Data parallel: compared with DistributedDataParallel."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.parallel.data import gradient_buckets
from foretrace.transforms.weights import Gradient
from tests.transforms.parallel.steps import data_parallel, exchanged, gpt_step, neighbours, told, trained


def test_a_data_parallel_gpt_calls_what_ddp_calls() -> None:
    assert told(data_parallel(gpt_step(), 8)) == told(gpt_step(8, ddp=True))


def wide(wrap: bool) -> tuple[nn.Module, torch.Tensor]:
    sizes = (512, 2048, 4096, 2048, 64)
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
    return DistributedDataParallel(model) if wrap else model, torch.randn(16, 512)


@pytest.mark.parametrize("world", [2, 64])
def test_buckets_of_an_mlp_are_ddps_in_size_order_and_place(world: int) -> None:
    ours = data_parallel(sketch(trained(lambda: wide(False)), device="cuda"), world)
    theirs = sketch(trained(lambda: wide(True)), device="cuda", world=world)
    assert len(theirs.collectives) > 2
    assert exchanged(ours) == exchanged(theirs)
    assert neighbours(ours) == neighbours(theirs)
    assert [c.ranks for c in ours.collectives] == [c.ranks for c in theirs.collectives]


def test_the_first_bucket_is_small_and_none_is_left_out() -> None:
    gradients = [Gradient(Tensor((2**18,), "float32"), row, "") for row in range(60)]
    sizes = [len(bucket) for bucket in gradient_buckets(gradients, 25.0)]
    assert sizes == [1, 25, 25, 9]


def test_an_infinite_bucket_waits_for_backward() -> None:
    graph = data_parallel(gpt_step(), 8, math.inf)
    (only,) = graph.collectives
    last_product = max(row for row, op in enumerate(graph.ops) if op.name == "aten::mm")
    assert only.op > last_product


def test_gradients_of_two_dtypes_fill_buckets_of_their_own() -> None:
    gradients = [Gradient(Tensor((8,), dtype), row, "") for row, dtype in enumerate(("float32", "bfloat16", "float32"))]
    assert [[g.tensor.dtype for g in bucket] for bucket in gradient_buckets(gradients, 25.0)] == [
        ["bfloat16"],
        ["float32", "float32"],
    ]


def test_a_distributed_step_is_refused() -> None:
    with pytest.raises(ForetraceError, match="distributed already: it calls all_reduce in group 0"):
        data_parallel(gpt_step(8, ddp=True), 8)


def test_a_step_without_optimizer_is_refused() -> None:
    x = Tensor((4,), "float32", "cuda:0", id=0, storage=0)
    with pytest.raises(ForetraceError, match="updates no weights"):
        data_parallel(Graph(OpTable.of([Op("aten::relu", (x,), phase="forward")])), 2)


def test_a_trace_without_tensor_ids_is_refused() -> None:
    with pytest.raises(ForetraceError, match="does not identify its tensors"):
        data_parallel(Graph(OpTable.of([Op("aten::relu", (Tensor((4,), "float32"),))])), 2)
