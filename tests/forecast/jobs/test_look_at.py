"""The ops of a job to look at first."""

from foretrace.forecast.host import host_segments
from foretrace.forecast.jobs.look_at import job_look_at
from foretrace.forecast.measured import measured
from foretrace.graph.tables import ANNOTATION
from tests.forecast.builders import Call, Orphan, launch, rank


def test_a_call_has_the_kernels_that_ops_inside_it_launch() -> None:
    around = Call("step", 0, 60, kind=ANNOTATION)
    inside = Call("aten::matmul", 0, 20), Call("aten::mm", 2, 18)
    graph = rank(around, *inside, Orphan(0, 3), launch(4, 6, (7, 50)), launch(30, 32, (50, 52)))
    cut = host_segments(graph)
    (matmul, step) = job_look_at(measured([graph], [cut], []), [graph], [cut])
    assert (matmul["name"], matmul["launches"], matmul["device_ms"], matmul["mostly"]) == (
        "aten::matmul", 1, 0.043, "device",
    )  # fmt: skip
    assert (step["name"], step["launches"]) == ("step", 1)
