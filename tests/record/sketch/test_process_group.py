"""A pretended process group: other ranks have what this one has, and distributed tensors are initialised."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from foretrace.record.sketch.sketch import sketch


def test_objects_come_back_from_other_ranks_as_this_one_sent_them() -> None:
    found: list[Any] = []

    def step() -> None:
        gathered: list[Any] = [None] * 3
        dist.all_gather_object(gathered, {"loss": 0.5})
        given = [("a", 1)]
        dist.broadcast_object_list(given, src=0)
        found[:] = [gathered, given]

    graph = sketch(step, device="cuda", world=3)
    assert found == [[{"loss": 0.5}] * 3, [("a", 1)]]
    names = [op.name for op in graph.ops]
    assert names.count("c10d::allgather_") == names.count("c10d::broadcast_") == 2, "sizes, then contents"
    assert any("other ranks send what this one has (test_process_group.py:" in note for note in graph.notes)


def test_a_part_that_is_not_received_stays_unknown() -> None:
    read: list[Any] = []

    def step() -> None:
        whole = torch.empty(4, dtype=torch.int64)
        dist.broadcast(whole[:2], 0)
        parts = [torch.empty(2, dtype=torch.int64) for _ in range(2)]
        dist.all_gather(parts, torch.tensor([5, 6]))
        read[:] = [whole.tolist(), [part.tolist() for part in parts]]

    sketch(step, world=2)
    assert read == [[1, 1, 1, 1], [[5, 6], [5, 6]]]


def test_a_flag_that_no_rank_raises_stays_down() -> None:
    read: list[bool] = []

    def step() -> None:
        overflow, count = torch.zeros(1, dtype=torch.uint8), torch.ones(1)
        dist.all_reduce(overflow, dist.ReduceOp.MAX)
        dist.all_reduce(count)
        read[:] = [bool(overflow.item())]

    graph = sketch(step, world=4)
    assert read == [False]
    assert any("other ranks send what this one has" in note for note in graph.notes)


def test_random_weights_of_distributed_tensors_are_sketched() -> None:
    def step() -> None:
        mesh = init_device_mesh("cuda", (2,))
        weight = distribute_tensor(torch.empty(8, 4, device="cuda"), mesh, [Shard(0)])
        torch.nn.init.normal_(weight)
        assert weight.to_local().shape == (4, 4)

    graph = sketch(step, device="cuda", world=2)
    assert "aten::normal_" in [op.name for op in graph.ops]
