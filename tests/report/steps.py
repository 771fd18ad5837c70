"""Steps to draw: small, with times, kernels and names that nobody should trust."""

from __future__ import annotations

import numpy as np

from foretrace.graph import Collective, Graph, Op, OpTable, Storage, Tensor
from foretrace.graph.tables import COLLECTIVE, COMPUTE, LAUNCH, CallTable, KernelTable, Names

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def sketched(calls: int = 40) -> Graph:
    """A step that never ran: products, each followed by an addition, with one name that is markup."""
    square = [Tensor((1024, 1024), "bfloat16", "cuda:0", id=i, storage=i) for i in range(3)]
    ops = []
    for number in range(calls):
        phase, module = ("forward", f"net.{number % 4}") if number < calls // 2 else ("backward", f"net.{number % 3}")
        inputs = (square[0], square[1])
        ops.append(Op("aten::mm", inputs, outputs=(square[2],), phase=phase, module=module))
        ops.append(Op("aten::add", inputs, outputs=(square[2],), phase=phase, module=HOSTILE))
    ops.append(Op(f"mine::{HOSTILE}", (square[0],), outputs=(square[2],), phase="optimizer"))
    nbytes = square[0].nbytes
    storages = {0: Storage(0, nbytes, "cuda:0"), 1: Storage(1, nbytes, "cuda:0", birth=4, death=60)}
    return Graph(OpTable.of(ops), storages=storages, source=f"train {HOSTILE}.py")


def rank(number: int, arrives_us: float, world: int = 2) -> Graph:
    """A measured rank: an op, its kernel, then an all_reduce whose kernel starts when the rank arrives."""
    ops = OpTable.of([
        Op("aten::mm", phase="forward", start_us=0.0, end_us=20.0),
        Op("c10d::allreduce_", phase="backward", start_us=30.0, end_us=40.0),
    ])  # fmt: skip
    column = lambda *values: np.array(values, np.int32)  # noqa: E731
    calls = CallTable(
        name=column(0, 0), start=np.array([5.0, 32.0]), end=np.array([8.0, 36.0]), thread=column(0, 0),
        kind=np.full(2, LAUNCH, np.int8), op=column(0, 1), correlation=np.array([1, 2]), names=Names(["launch"]),
    )  # fmt: skip
    nothing = np.zeros(2, np.int64)
    kernels = KernelTable(
        name=column(0, 1), start=np.array([10.0, arrives_us]), end=np.array([35.0, 150.0]), stream=column(7, 20),
        kind=np.array([COMPUTE, COLLECTIVE], np.int8), call=column(0, 1), op=column(0, 1), nbytes=nothing, grid=nothing,
        block=nothing, names=Names(["gemm", "ncclDevKernel_AllReduce"]),
    )  # fmt: skip
    members = tuple(range(world))
    met = [Collective("all_reduce", "world", 1 << 20, kernel=1, op=1, ranks=members)]
    return Graph(ops, calls, kernels, rank=number, world=world, collectives=met, groups={"world": members})
