"""Calls that are one CUDA graph, in the simulation."""

from itertools import pairwise

from foretrace.platform.device import CudaGraphCosts
from tests.prediction.by_hand import Call, device, kernel_times, run, step


def test_kernels_of_a_graph_follow_each_other_with_the_gaps_of_a_graph() -> None:
    inside = Call(kernels=(10.0,), captured=True)
    times = kernel_times(*run(step(Call(kernels=(10.0,)), inside, inside), device(gap=3.0, queue=1)))
    gap = CudaGraphCosts.shipped().gap_us
    assert [round(after[0] - before[1], 6) for before, after in pairwise(times)] == [gap, gap]
