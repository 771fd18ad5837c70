"""The ops of a job to look at first."""

from foretrace.analysis.critical_path import hot_ops
from foretrace.analysis.dependencies import measured_tasks
from foretrace.analysis.host_time import host_segments
from foretrace.graph.tables import ANNOTATION
from foretrace.simulation.critical_path import critical_path
from tests.analysis.builders import Call, Orphan, launch, rank


def test_a_call_has_the_kernels_that_ops_inside_it_launch() -> None:
    around = Call("step", 0, 60, kind=ANNOTATION)
    inside = Call("aten::matmul", 0, 20), Call("aten::mm", 2, 18)
    graph = rank(around, *inside, Orphan(0, 3), launch(4, 6, (7, 50)), launch(30, 32, (50, 52)))
    cut = host_segments(graph)
    tasks, timeline = measured_tasks([graph], [cut], [])
    (matmul, step) = hot_ops(critical_path(tasks, timeline), tasks, timeline, [graph], [cut])
    assert (matmul.name, matmul.launches, matmul.device_ms, matmul.mostly) == (
        "aten::matmul", 1, 0.043, "device",
    )  # fmt: skip
    assert (step.name, step.launches) == ("step", 1)


def test_a_pause_that_nothing_explains_is_not_the_time_of_the_op_after_it() -> None:
    graph = rank(
        Call("aten::mm", 0, 10), launch(2, 4, (5, 105)), Call("aten::copy_", 10, 20), launch(12, 14, (5105, 5106))
    )
    cut = host_segments(graph)
    tasks, timeline = measured_tasks([graph], [cut], [])
    path = critical_path(tasks, timeline)
    assert path.gap.max() == 5000.0
    found = {op.name: op.ms for op in hot_ops(path, tasks, timeline, [graph], [cut])}
    assert found["aten::mm"] > 0.1 and found["aten::copy_"] < 0.01
