"""The calls of a step under the roofs of its device: what each has to do, how long it took, how fast it could be."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretrace.forecast.rates import works
from foretrace.forecast.workings import Workings
from foretrace.graph import Graph, Op
from foretrace.graph.calls import dispatched, enclosing_calls
from foretrace.graph.tables import Floats, Ints

USUAL = "float32"
"""The rate of a step without arithmetic."""

Key = tuple[str, tuple[tuple[int, ...], ...], str]


class Alike(NamedTuple):
    """Calls of one name with the same shapes."""

    op: Op
    """One of them."""
    us: list[float]
    """What the device takes for each."""
    flops: float
    nbytes: float
    """What each does, and the fewest bytes that it must move."""
    rate: str
    """The type whose peak rate limits its arithmetic."""
    least_us: float
    """What each would take at the device's peak rates."""


class Roofs(NamedTuple):
    """What the device could do, and what it was given."""

    calls: list[Alike]
    """Those that take longest first."""
    memory_gbps: float
    peaks: dict[str, float]
    """TFLOP/s, of the rates of the calls and of `USUAL`."""


def roofs(workings: Workings) -> Roofs | None:
    """The calls of the first rank by name and shapes; None where device, times or shapes are not known."""
    device, graph = workings.device, workings.graphs[0]
    rows = dispatched(graph)
    spent = _device_time(graph, rows)
    if device is None:
        return None
    us = dict(zip(rows.tolist(), spent.tolist()))
    found: dict[Key, Alike] = {}
    for row, work, _ in works(graph, rows[spent > 0].tolist(), device):
        op = graph.ops[row]
        key = (op.name, tuple(t.shape for t in op.tensors), op.tensors[0].dtype)
        if key not in found:
            found[key] = Alike(op, [], work.flops, work.bytes, work.rate, work.us(device))
        found[key].us.append(us[row])
    calls = sorted(found.values(), key=lambda alike: -sum(alike.us))
    peaks = {rate: device.peak(rate) for rate in {USUAL, *(alike.rate for alike in calls)}}
    return Roofs(calls, device.memory_gbps, peaks) if calls else None


def _device_time(graph: Graph, rows: Ints) -> Floats:
    """Microseconds that the device works for each of these calls."""
    kernels, place = graph.kernels, enclosing_calls(graph, rows)[graph.kernels.op]
    owned = place >= 0
    time = kernels.end - kernels.start
    return np.asarray(np.bincount(place[owned], time[owned], len(rows)), np.float64)
