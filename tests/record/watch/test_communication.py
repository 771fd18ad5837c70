"""What the opaque arguments of collectives say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from foretrace.graph import Constant, Op
from foretrace.record.sketch.process_group import pretended_group
from foretrace.record.watch.communication import Communication, c10d, is_box
from foretrace.record.watch.watch import Watch

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def watched(*calls: Any) -> tuple[Watch, list[Op]]:
    """The collectives that calls make on a group of four."""
    with pretended_group(world=4, rank=1), Watch() as watch:
        for call in calls:
            call()
    return watch, [op for op in watch.ops if op.name.startswith("c10d::") and op.name != "c10d::wait"]


def constants(op: Op, kind: str) -> list[str]:
    return [value.value for value in op.args if isinstance(value, Constant) and value.kind == kind]


REDUCTIONS = {
    "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "avg": dist.ReduceOp.AVG, "product": dist.ReduceOp.PRODUCT,
    "sum": dist.ReduceOp.SUM,
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_the_reduction_is_told_whatever_reduces(name: str) -> None:
    op, one, four = REDUCTIONS[name], torch.ones(2), torch.ones(8)
    _, ops = watched(
        lambda: dist.all_reduce(one, op=op),
        lambda: dist.reduce(one, 0, op=op),
        lambda: dist.reduce_scatter(one, [one] * 4, op=op),
        lambda: dist.reduce_scatter_tensor(one, four, op=op),
        lambda: dist.all_reduce_coalesced([one], op=op),
        lambda: dist.group.WORLD.allreduce([one], op),
    )
    assert [constants(found, "reduce_op") for found in ops] == [[name]] * 6


def test_a_reduction_is_forgotten_once_it_is_done() -> None:
    _, ops = watched(
        lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX), lambda: dist.all_reduce(torch.ones(2))
    )
    assert [constants(op, "reduce_op") for op in ops] == [["max"], ["sum"]]


def test_groups_are_told_by_name_with_their_ranks() -> None:
    groups = []

    def call() -> None:
        groups.append(dist.new_group([1, 3]))
        dist.all_reduce(torch.ones(2), group=groups[0])
        dist.all_reduce(torch.ones(2))

    watch, ops = watched(call)
    names = [constants(op, "group")[0] for op in ops]
    assert [watch.communication.groups[name] for name in names] == [(1, 3), (0, 1, 2, 3)]


def test_each_work_has_a_number_of_its_own() -> None:
    _watch, ops = watched(*[lambda: dist.all_reduce(torch.ones(2), async_op=True)] * 3)
    assert [op.outputs[-1] for op in ops] == [Constant("work", str(n)) for n in range(3)]


def test_a_work_nobody_issued_has_no_number() -> None:
    assert Communication().waited(object()) is None


def test_no_argument_of_a_collective_is_opaque() -> None:
    one = torch.ones(2)
    _, ops = watched(
        lambda: dist.all_reduce(one), lambda: dist.broadcast(one, 0), lambda: dist.all_gather([one] * 4, one),
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4)), dist.barrier,
    )  # fmt: skip
    assert len(ops) == 5
    assert not [value for op in ops for value in (*op.args, *op.outputs) if getattr(value, "kind", "") == "object"]


def test_the_process_group_is_as_it_was_after_a_watched_step() -> None:
    before = dict(vars(c10d.ProcessGroup))
    with Watch():
        assert vars(c10d.ProcessGroup)["allreduce"] is not before["allreduce"]
    assert {name: vars(c10d.ProcessGroup)[name] for name in before} == before


def test_a_job_reduces_as_before_after_a_watched_step() -> None:
    """A method put back without its self would end the job at its next all_reduce."""
    with pretended_group(world=2, rank=0):
        with Watch():
            dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX)
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(4))


def test_a_tensor_is_no_box() -> None:
    assert not is_box(torch.ones(2))
