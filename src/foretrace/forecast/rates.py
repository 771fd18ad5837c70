"""How much arithmetic a step does and how many bytes it moves, against what the device can."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.costs.fallback import work_of
from foretrace.costs.families import Work, facts_of, family_of
from foretrace.costs.spread_of_ids import spread_of_ids
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
    found = Totals()
    known: dict[tuple[object, ...], tuple[Work, bool]] = {}
    ops = list(calls.ops)
    ids = spread_of_ids(ops, calls.indices)
    for row in sorted(set(step.work.call.tolist())):
        op, indices = ops[row], ids.get(row)
        shapes = tuple((t.shape, t.dtype, t.layout) for t in op.tensors)
        if not shapes:
            continue
        key = (op.name, shapes, indices.unique if indices else None)
        if key not in known:
            known[key] = _work(op, device, indices, calls.tf32)
        work, counts = known[key]
        found.nbytes += work.bytes
        if counts:
            found.flops += work.flops
            found.peak_us += work.flops / device.peak(work.rate) / 1e6
    return found if known else None


def _work(op: Op, device: Device, indices: Indices | None, tf32: Tf32) -> tuple[Work, bool]:
    """What a call has to do, and whether its arithmetic counts."""
    family = family_of(op)
    if family is None:
        return work_of(op), False
    return family.describe(op, facts_of(family, device, indices, tf32)).work, family.name in ARITHMETIC
