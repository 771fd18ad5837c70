"""A step's time and memory alone, for who asks for hundreds of them: as `predict` has them, without the reasons."""

from __future__ import annotations

from typing import NamedTuple

from foretrace.forecast.contention import contends, run_alone
from foretrace.forecast.flat import flat
from foretrace.forecast.memory import peak_memory, workspaces
from foretrace.forecast.predict import back_to_back
from foretrace.forecast.rest import after_a_wait
from foretrace.forecast.step import priced
from foretrace.forecast.timetable import timetable
from foretrace.graph import Graph
from foretrace.platform.platform import Platform


class Figures(NamedTuple):
    """What a sweep wants to know of a step, in milliseconds and bytes."""

    step_ms: float
    next_ms: float
    """From the end of one step to the end of the next."""
    device_ms: float
    """Sum of kernel times."""
    memory_bytes: int | None
    fits: bool | None


def figures(graph: Graph, platform: Platform) -> Figures:
    """A step's figures, with kernel times by the platform's models.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> square = Tensor((4096, 4096), "bfloat16", "cuda:0")
    >>> figures(Graph(OpTable.of([Op("aten::mm", (square, square), outputs=(square,))])), Platform.named("h200")).fits
    """
    step = flat(graph)
    costs, _ = priced(graph, step, platform, "model")
    slowed = contends(step.calls, platform, "model")
    _, timeline = run_alone(after_a_wait(costs, timetable(costs, platform.device)), costs.work, slowed)
    held = peak_memory(graph)
    memory = None if held is None else held + workspaces(step, platform.device)
    return Figures(
        step_ms=timeline.span / 1e3,
        next_ms=back_to_back(costs, platform.device, slowed) / 1e3,
        device_ms=float(costs.work.typical.sum()) / 1e3,
        memory_bytes=memory,
        fits=None if memory is None else memory <= platform.device.memory_gb * 1e9,
    )
