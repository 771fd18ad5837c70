"""Calls against what the device could do: how much arithmetic a byte, and how fast it was done."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from foretrace.costs.families import Work
from foretrace.forecast.families import family
from foretrace.forecast.rates import works
from foretrace.forecast.workings import Workings
from foretrace.graph import Graph, Op
from foretrace.graph.dispatched import dispatched, owner
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device
from foretrace.report.names import short
from foretrace.report.pages.sheet import Chart

SHOWN = 400
"""Kinds of calls at most, those that take longest."""
LEAST_FLOPS_A_BYTE = 0.01
"""Where calls without arithmetic stand: copies and fills have none."""
TENSORS = 6
"""Tensors of a call whose shapes are told."""
NOTICEABLE = 2e-3
"""Share of the device time from which on a call may stretch the axes."""

Key = tuple[str, tuple[tuple[int, ...], ...], str]


def roofline(workings: Workings) -> Chart | None:
    """The calls of the first rank by name and shapes, each where its arithmetic and its speed put it."""
    device, graph = workings.device, workings.graphs[0]
    rows = dispatched(graph)
    spent = _device_time(graph, rows)
    busy = rows[spent > 0]
    if device is None or not len(busy):
        return None
    us = dict(zip(rows.tolist(), spent.tolist()))
    alike: dict[Key, tuple[Op, list[float], Work]] = {}
    for row, work, _ in works(graph, busy.tolist(), device):
        op = graph.ops[row]
        key = (op.name, tuple(t.shape for t in op.tensors), op.tensors[0].dtype)
        alike.setdefault(key, (op, [], work))[1].append(us[row])
    total = sum(sum(times) for _, times, _ in alike.values())
    slowest = sorted(alike.values(), key=lambda one: -sum(one[1]))[:SHOWN]
    ops = [_point(op, times, work, device, total) for op, times, work in slowest if work.bytes]
    return _framed(ops, device) if ops else None


def _device_time(graph: Graph, rows: Any) -> Floats:
    """Microseconds that the device works for each of these calls."""
    kernels, place = graph.kernels, owner(graph, rows)[graph.kernels.op]
    owned = place >= 0
    time = kernels.end - kernels.start
    return np.asarray(np.bincount(place[owned], time[owned], len(rows)), np.float64)


def _point(op: Op, times: list[float], work: Work, device: Device, total: float) -> dict[str, Any]:
    us = float(np.mean(times))
    shapes = ["×".join(map(str, t.shape)) or "scalar" for t in op.tensors]
    more = ", …" if len(shapes) > TENSORS else ""
    return {
        "name": short(op.name),
        "family": family("", op.name),
        "shapes": f"{op.tensors[0].dtype} {', '.join(shapes[:TENSORS])}{more}",
        "count": len(times),
        "ms": sum(times) / 1e3,
        "share": sum(times) / total,
        "intensity": max(work.flops / work.bytes, LEAST_FLOPS_A_BYTE),
        "tflops": max(work.flops, LEAST_FLOPS_A_BYTE * work.bytes) / us / 1e6,
        "gbps": work.bytes / us / 1e3,
        "rate": work.rate,
        "reached": min(work.us(device) / us, 1.0),
    }


def _framed(ops: list[dict[str, Any]], device: Device) -> Chart:
    """The points, the roofs over them, and axes that hold both."""
    intensity = [op["intensity"] for op in ops]
    speed = [op["tflops"] for op in ops if op["share"] > NOTICEABLE]
    by_rate: dict[float, list[str]] = defaultdict(list)
    for rate in sorted({op["rate"] for op in ops if op["intensity"] > 1}):
        by_rate[device.peak(rate)].append(rate)
    top = max(by_rate, default=device.peak("float32"))
    return {
        "kind": "roofline",
        "ops": ops,
        "gbps": device.memory_gbps,
        "rates": [{"name": ", ".join(names), "tflops": tflops} for tflops, names in sorted(by_rate.items())],
        "from": _power(min(intensity), np.floor),
        "to": _power(max(*intensity, top / device.memory_gbps * 1e4), np.ceil),
        "least": _power(min(speed, default=top / 1e6), np.floor),
        "most": _power(top, np.ceil),
    }


def _power(value: float, rounded: Any) -> float:
    """The power of ten below or above a value.

    >>> float(_power(30.0, np.ceil)), float(_power(30.0, np.floor))
    (100.0, 10.0)
    """
    return float(10.0 ** rounded(np.log10(value)))
