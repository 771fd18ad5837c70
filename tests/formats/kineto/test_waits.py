"""Waits for the device of which a profiler trace holds no event."""

from pathlib import Path

import numpy as np
import pytest

from foretrace.analysis.measure import measure_step
from foretrace.formats.kineto import read_kineto
from foretrace.graph import Graph
from foretrace.graph.tables import SYNC
from foretrace.prediction.gaps import with_host_gaps
from tests.traces import MAIN, Trace


def step(then: str, kernel_us: float = 9_000.0, recorded: bool = False, thread: int = MAIN) -> Trace:
    """A step in which the host launches a kernel, and 9 ms later does something else."""
    trace = Trace()
    with trace.step(1), trace.op("DistributedDataParallel.forward", "user_annotation"):
        with trace.op("aten::mm"):
            trace.launch("gemm", us=kernel_us)
        if recorded:
            trace.call("cudaEventSynchronize", us=50)
        begin = trace.now
        while "Query" in then and trace.now < begin + 9_000:
            trace.call(then, us=5, tid=thread)
            trace.now += 5
        trace.now = begin + 9_050
        if "Query" not in then:
            trace.call(then, us=5)
        with trace.op("aten::relu"):
            trace.launch("relu", us=10)
    return trace


def read(trace: Trace, folder: Path) -> Graph:
    return read_kineto(trace.write(folder / "trace.json"))


def waited_ms(graph: Graph) -> float:
    syncs = graph.calls.kind == SYNC
    return float((graph.calls.end - graph.calls.start)[syncs].sum()) / 1e3


@pytest.mark.parametrize("then", ["cudaEventElapsedTime", "hipEventElapsedTime", "cudaEventQuery", "cudaStreamQuery"])
def test_a_pause_that_ends_with_the_kernel_of_an_event_waits_for_it(then: str, tmp_path: Path) -> None:
    graph = read(step(then), tmp_path)
    assert waited_ms(graph) == pytest.approx(9, rel=0.01)
    report = measure_step(graph)
    assert report.overheads["T1"].ms < 0.1 and "annotation" not in report.overheads
    assert sum(row.ms for row in report.critical_path if row.what == "kernel") == pytest.approx(9, rel=0.01)
    assert not with_host_gaps(graph).host_gaps  # nothing to carry over to another machine
    assert (np.diff(graph.calls.start) >= 0).all()
    assert len(graph.kernels) == (graph.kernels.call >= 0).sum() == 2


@pytest.mark.parametrize(
    "trace",
    [
        step("cudaEventElapsedTime", kernel_us=4_000),  # over long before
        step("cudaEventElapsedTime", recorded=True),  # this trace has its waits
        step("cudaGetDevice"),
        step("cudaEventQuery", thread=77),  # a watchdog, which launches nothing
    ],
)
def test_another_pause_is_the_host_s(trace: Trace, tmp_path: Path) -> None:
    graph = read(trace, tmp_path)
    assert waited_ms(graph) < 0.1
    assert [gap.us > 8_000 for gap in with_host_gaps(graph).host_gaps] == [True]
