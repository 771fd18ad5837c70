"""A small measured job, for the tests of writers."""

import numpy as np

from foretrace.graph import CallTable, Collective, Graph, Job, KernelTable, Names, Op, OpTable, Span, Tensor
from foretrace.graph.tables import ANNOTATION, COLLECTIVE, COMPUTE, COPY, LAUNCH, NODE, SYNC, WAIT_EVENT

EPOCH_NS = 1_790_857_026_000_000_000


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def rank(number: int, world: int = 2, late_us: float = 0.0) -> Graph:
    """One rank: a matrix product, an all-reduce on a stream of its own, and a read of the result on the host."""
    x = Tensor((64, 64), "bfloat16", "cuda:0", id=1, storage=0)
    ops = OpTable.of(
        [
            Op("ProfilerStep#3", start_us=0.0, end_us=500.25),
            Op("aten::mm", (x, x), overload="default", parent=0, phase="forward", start_us=10.5, end_us=40.125),
            Op("aten::empty", ([64, 64],), {"pin_memory": False}, parent=1, phase="forward", start_us=12, end_us=14),
            Op("torch::autograd::AccumulateGrad", phase="backward", thread=7, start_us=50.0, end_us=55.0),
            Op("c10d::allreduce_", ([x],), parent=0, phase="backward", start_us=60.0, end_us=90.0),
            Op('a "name" <b>', parent=0, phase="other", start_us=100.0, end_us=490.0),
        ]
    )
    ops.kind[0], ops.kind[3] = ANNOTATION, NODE
    calls = CallTable(
        name=_ints(0, 1, 0, 2, 3),
        start=np.array([20.0, 65.0, 70.0, 105.0, 120.0]),
        end=np.array([25.0, 66.0, 75.0, 110.0, 480.0]),
        thread=_ints(0, 0, 0, 0, 0),
        kind=np.array([LAUNCH, WAIT_EVENT, LAUNCH, LAUNCH, SYNC], np.int8),
        op=_ints(1, 4, 4, 5, 5),
        correlation=np.array([11, 12, 13, 14, 15]),
        names=Names(["cudaLaunchKernel", "cudaStreamWaitEvent", "cudaMemcpyAsync", "cudaStreamSynchronize"]),
    )
    kernels = KernelTable(
        name=_ints(0, 1, 2),
        start=np.array([30.0, 140.0 + late_us, 460.0]),
        end=np.array([130.5, 450.0, 470.0]),
        stream=_ints(7, 20, 7),
        kind=np.array([COMPUTE, COLLECTIVE, COPY], np.int8),
        call=_ints(0, 2, 3),
        op=_ints(1, 4, 5),
        nbytes=np.array([0, 8192, 8192]),
        grid=np.array([132, 16, 0]),
        block=np.array([256, 512, 0]),
        names=Names(["sm90_gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "Memcpy DtoH (Device -> Pinned)"]),
    )
    return Graph(
        ops, calls, kernels, number, world, "NVIDIA H200", f"rank-{number}", EPOCH_NS,
        steps=[Span("ProfilerStep#3", 0.0, 500.25)],
        collectives=[Collective("all_reduce", "0", 8192, 1, 4, ranks=tuple(range(world)), dtype="bfloat16")],
        groups={"0": tuple(range(world))},
    )  # fmt: skip


def job(world: int = 2) -> Job:
    return Job([rank(number, world, late_us=5.0 * number) for number in range(world)])
