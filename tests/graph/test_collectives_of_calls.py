"""The collectives among recorded calls: kind, group, ranks, size."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from foretrace.graph import Collective, Constant, Op, Tensor
from foretrace.graph.calls import collectives_of
from foretrace.record.sketch.process_group import pretended_group
from foretrace.record.watch.watch import Watch

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

WORLD = 4
MINE, ALL = 8 * 4, WORLD * 8 * 4
"""Bytes of eight floats, and of eight from each rank."""


def mine() -> torch.Tensor:
    return torch.ones(8)


def of_all() -> list[torch.Tensor]:
    return [torch.ones(8) for _ in range(WORLD)]


def whole() -> torch.Tensor:
    return torch.ones(WORLD * 8)


CALLS = {
    "all_reduce": (lambda: dist.all_reduce(mine()), "all_reduce", MINE),
    "all_reduce of many": (lambda: dist.all_reduce_coalesced([mine(), mine()]), "all_reduce", 2 * MINE),
    "all_gather": (lambda: dist.all_gather(of_all(), mine()), "all_gather", ALL),
    "all_gather into one": (lambda: dist.all_gather_into_tensor(whole(), mine()), "all_gather", ALL),
    "reduce_scatter": (lambda: dist.reduce_scatter(mine(), of_all()), "reduce_scatter", ALL),
    "reduce_scatter of one": (lambda: dist.reduce_scatter_tensor(mine(), whole()), "reduce_scatter", ALL),
    "all_to_all": (lambda: dist.all_to_all(of_all(), of_all()), "all_to_all", ALL),
    "all_to_all of one": (lambda: dist.all_to_all_single(mine(), mine()), "all_to_all", MINE),
    "broadcast": (lambda: dist.broadcast(mine(), 0), "broadcast", MINE),
    "reduce": (lambda: dist.reduce(mine(), 0), "reduce", MINE),
    "send": (lambda: dist.send(mine(), 0), "send", MINE),
    "recv": (lambda: dist.recv(mine(), 0), "recv", MINE),
    "gather, not the root": (lambda: dist.gather(mine(), None, dst=0), "gather", ALL),
    "gather, the root": (lambda: dist.gather(mine(), of_all(), dst=1), "gather", ALL),
    "scatter, not the root": (lambda: dist.scatter(mine(), None, src=0), "scatter", ALL),
    "scatter, the root": (lambda: dist.scatter(mine(), of_all(), src=1), "scatter", ALL),
}


def seen(call: object) -> list[Collective]:
    with pretended_group(WORLD, rank=1), Watch() as watch:
        call()  # type: ignore[operator]
    return collectives_of(watch.ops, watch.communication.groups)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_tells_kind_group_ranks_and_size(name: str) -> None:
    call, kind, nbytes = CALLS[name]
    (found,) = seen(call)
    assert (found.kind, found.nbytes, found.ranks, found.dtype) == (kind, nbytes, (0, 1, 2, 3), "float32")
    assert found.kernel == -1


def test_a_barrier_is_one() -> None:
    assert [found.kind for found in seen(dist.barrier)] == ["barrier"]


def test_functional_collectives_name_their_group_and_its_ranks() -> None:
    from torch.distributed import _functional_collectives as functional

    def call() -> None:
        pair = dist.new_group([0, 1])
        functional.all_reduce(mine(), "sum", pair).add(1)
        functional.reduce_scatter_tensor(whole(), "avg", 0, dist.group.WORLD).add(1)

    reduced, scattered = seen(call)
    assert (reduced.kind, reduced.ranks, reduced.nbytes) == ("all_reduce", (0, 1), MINE)
    assert (scattered.kind, scattered.ranks, scattered.nbytes) == ("reduce_scatter", (0, 1, 2, 3), ALL)


def test_each_stands_at_the_row_of_its_op() -> None:
    ops = [Op("aten::mm"), Op("c10d::allreduce_", ([Tensor((2,), "int8")],)), Op("c10d::wait"), Op("aten::gather")]
    (found,) = collectives_of(ops, {})
    assert (found.op, found.nbytes, found.group, found.ranks) == (1, 2, "", ())


def test_an_op_of_torch_that_sounds_like_one_is_none() -> None:
    names = ["aten::gather", "aten::scatter", "aten::_foreach_reduce", "c10d::wait", "_c10d_functional::wait_tensor"]
    assert collectives_of([Op(name) for name in names], {}) == []


def test_a_damaged_call_has_no_size() -> None:
    bare = [
        Op("c10d::allreduce_"),
        Op("c10d::gather_"),
        Op("c10d::scatter_", (3,)),
        Op("c10d::_allgather_base_", (1, 2)),
    ]
    assert [found.nbytes for found in collectives_of(bare, {})] == [0, 0, 0, 0]
    named = Op("c10d::gather_", ([], [Tensor((2,), "int8")], Constant("group", "7")))
    assert collectives_of([named], {"7": (0, 1, 2)})[0].nbytes == 6


@pytest.mark.parametrize("kind", ["send", "recv_"])
def test_a_send_names_the_rank_at_the_other_end(kind: str) -> None:
    data = Tensor((8,), "float32", id=0)
    call = Op(f"c10d::{kind}", ([data], Constant("group", "stages"), 1, 0))
    (found,) = collectives_of([call], {"stages": (2, 6)})
    assert found.peer == 6
