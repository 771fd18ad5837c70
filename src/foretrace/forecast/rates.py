"""How much arithmetic a step does and how many bytes it moves, against what the device can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from foretrace.cost_models.kernels.families import Work, facts_of, family_of
from foretrace.cost_models.kernels.families.lookups import spread_of_ids
from foretrace.cost_models.kernels.roofline import work_of
from foretrace.forecast.forecast import Forecast
from foretrace.forecast.step import Step
from foretrace.graph import Graph, Indices, Op, Tf32
from foretrace.platform.device import Device

ARITHMETIC = ("matrix", "convolutions", "attention")
"""Families whose arithmetic counts: what a model's FLOPs are commonly taken to be."""


@dataclass
class Totals:
    """Of all calls of a step that give the device something to do."""

    flops: float = 0.0
    peak_us: float = 0.0
    """What the arithmetic would take at the device's peak rates."""
    nbytes: float = 0.0
    """The fewest that must be moved."""


def totals(calls: Graph, step: Step, device: Device) -> Totals | None:
    """Arithmetic and bytes of a step; None where its source does not tell shapes."""
    found, known = Totals(), False
    for _, work, counts in works(calls, sorted(set(step.work.call.tolist())), device):
        known = True
        found.nbytes += work.bytes
        if counts:
            found.flops += work.flops
            found.peak_us += work.flops / device.peak(work.rate) / 1e6
    return found if known else None


def add_rates(forecast: Forecast, each: Sequence[Totals | None]) -> None:
    """Tell what the ranks of a step do a second, in the mean; nothing where a rank's source does not tell shapes."""
    done = [one for one in each if one is not None]
    if not done or len(done) < len(each) or not forecast.step_ms:
        return
    forecast.tflops = sum(one.flops for one in done) / len(done) / 1e12
    forecast.gigabytes = sum(one.nbytes for one in done) / len(done) / 1e9
    forecast.tflops_per_second = forecast.tflops / forecast.step_ms * 1e3
    forecast.mfu = sum(one.peak_us for one in done) / len(done) / 1e3 / forecast.step_ms
    forecast.gbps = forecast.gigabytes / forecast.device_active_ms * 1e3 if forecast.device_active_ms else None


def works(calls: Graph, rows: Iterable[int], device: Device) -> Iterator[tuple[int, Work, bool]]:
    """What some calls have to do, and whether their arithmetic counts; those without shapes are left out.

    >>> from foretrace.graph import OpTable, Tensor
    >>> square = Tensor((1000, 1000), "float32", "cuda:0")
    >>> step = Graph(OpTable.of([Op("aten::mm", (square, square), outputs=(square,)), Op("aten::some")]))
    >>> [(row, work.flops, counts) for row, work, counts in works(step, [0, 1], Device.named("h200"))]
    [(0, 2000000000, True)]
    """
    known: dict[tuple[object, ...], tuple[Work, bool]] = {}
    ops = list(calls.ops)
    ids = spread_of_ids(ops, calls.indices)
    for row in rows:
        op, indices = ops[row], ids.get(row)
        shapes = tuple((t.shape, t.dtype, t.layout) for t in op.tensors)
        if not shapes:
            continue
        key = (op.name, shapes, indices.unique if indices else None)
        if key not in known:
            known[key] = _work(op, device, indices, calls.tf32)
        yield row, *known[key]


def _work(op: Op, device: Device, indices: Indices | None, tf32: Tf32) -> tuple[Work, bool]:
    """What a call has to do, and whether its arithmetic counts."""
    family = family_of(op)
    if family is None:
        return work_of(op), False
    return family.describe(op, facts_of(family, device, indices, tf32)).work, family.name in ARITHMETIC
