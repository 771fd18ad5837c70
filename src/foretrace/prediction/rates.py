"""Arithmetic and bytes of a step against the device's peaks: FLOP/s, MFU, and the roofline of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foretrace.analysis.report import StepReport, Workings
from foretrace.cost_models.kernels.families import context_of, family_of
from foretrace.cost_models.kernels.families.lookups import index_statistics, looks_up
from foretrace.cost_models.kernels.family import TENSOR_CORE_FAMILIES
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Graph, Indices, Op, Tf32
from foretrace.graph.calls import dispatched, enclosing_calls
from foretrace.graph.tables import SIGMAS_TO_P90, Floats, Ints
from foretrace.platform.device import Device
from foretrace.platform.power import PowerModel
from foretrace.prediction.priced_step import PricedStep

KNOWN_SHARE = 0.8
"""Share of the device time whose calls must tell what they do, for rates to be of the step."""
DEFAULT_RATE = "float32"
"""The rate of a step without arithmetic."""


@dataclass(eq=False)
class Totals:
    """Arithmetic and bytes of all calls of a step that launch device work."""

    flops: float = 0.0
    peak_us: float = 0.0
    """What the arithmetic would take at the device's peak rates."""
    nbytes: float = 0.0
    """The fewest that must be moved."""
    above_rest: float = 0.0
    """Watts that the device would draw beyond those at rest, times microseconds; 0 where its draw is unknown."""


def totals(calls: Graph, step: PricedStep, device: Device) -> Totals | None:
    """Arithmetic and bytes of a step; None where its source does not tell the shapes of most of its work."""
    found, known_us, model = Totals(), 0.0, PowerModel.of(device)
    us = np.bincount(step.work.call, step.work.typical, len(calls.ops))
    for row, work, counts in works(calls, sorted(set(step.work.call.tolist())), device):
        known_us += us[row]
        if model and us[row] > 0:
            rate = work.flops / device.peak(work.rate) / 1e6 / us[row] if counts else 0.0
            bandwidth = min(1.0, work.bytes / 1e3 / us[row] / device.memory_gbps)
            found.above_rest += us[row] * model.draw.above_rest(min(1.0, rate), bandwidth, 0.0, 1.0)
        found.nbytes += work.bytes
        if counts:
            found.flops += work.flops
            found.peak_us += work.flops / device.peak(work.rate) / 1e6
    return found if known_us and known_us >= KNOWN_SHARE * float(us.sum()) else None


def add_rates(report: StepReport, each: Sequence[Totals | None]) -> None:
    """Add FLOP/s, MFU and bandwidth, the means over the ranks; nothing where a rank's source does not tell shapes."""
    done = [one for one in each if one is not None]
    if not done or len(done) < len(each) or not report.step_ms:
        return
    report.tflops = sum(one.flops for one in done) / len(done) / 1e12
    report.gigabytes = sum(one.nbytes for one in done) / len(done) / 1e9
    report.tflops_per_second = report.tflops / report.step_ms * 1e3
    report.mfu = sum(one.peak_us for one in done) / len(done) / 1e3 / report.step_ms
    report.gbps = report.gigabytes / report.device_active_ms * 1e3 if report.device_active_ms else None


def add_power(report: StepReport, each: Sequence[Totals | None], device: Device) -> None:
    """Add the draw of a GPU, and the energy of a step, to a report that has its rates; nothing where it has none."""
    model, active_ms = PowerModel.of(device), min(report.device_active_ms, report.period_ms)
    drawn = sustained_draw(model, each, report.period_ms, active_ms)
    if model is None or drawn is None:
        return
    report.power_w, report.sustained_ms = drawn
    report.energy_j = report.power_w * report.sustained_ms / 1e3 * report.world
    off = np.exp(SIGMAS_TO_P90 * model.spread)
    report.energy_low_j, report.energy_high_j = report.energy_j / off, report.energy_j * off


def sustained_draw(
    model: PowerModel | None, each: Sequence[Totals | None], period_ms: float, active_ms: float
) -> tuple[float, float] | None:
    """Watts of a GPU while steps are repeated, and milliseconds from one to the next then; None where unknown."""
    done = [one for one in each if one is not None]
    if model is None or not done or len(done) < len(each) or not period_ms:
        return None
    above_w = sum(one.above_rest for one in done) / len(done) / (1e3 * period_ms)
    return model.drawn(above_w), period_ms + active_ms * (model.slower(above_w) - 1)


def works(
    calls: Graph, rows: Iterable[int], device: Device, made: Mapping[int, Op] | None = None
) -> Iterator[tuple[int, Work, bool]]:
    """The arithmetic and bytes of calls by row, and whether their arithmetic counts for MFU.

    Left out are those without shapes, and those that no family describes: what a custom op reads of its tensors may be
    all of a table or a few rows. ``made`` are these calls, where the caller has them already: those of traces are
    costly to create.
    """
    known: dict[tuple[object, ...], tuple[Work, bool] | None] = {}
    rows = list(rows)
    if made is None or calls.indices:  # statistics are by row of all ops
        lookups = np.flatnonzero(calls.ops.names.matching(looks_up)[calls.ops.name]).tolist()
        needed = range(len(calls.ops)) if calls.indices else sorted({*rows, *lookups})
        made = {row: calls.ops.call(row) for row in needed}
    places = list(made)
    ids = {places[place]: found for place, found in index_statistics(list(made.values()), calls.indices).items()}
    for row in rows:
        op, indices = made[row], ids.get(row)
        shapes = tuple((t.shape, t.dtype, t.layout) for t in op.tensors)
        if not shapes:
            continue
        key = (op.name, shapes, indices.unique if indices else None)
        if key not in known:
            known[key] = _work(op, device, indices, calls.tf32)
        found = known[key]
        if found is not None:
            yield row, *found


def _work(op: Op, device: Device, indices: Indices | None, tf32: Tf32) -> tuple[Work, bool] | None:
    """What a call has to do, and whether its arithmetic counts; None where its tensors do not tell."""
    family = family_of(op)
    if family is None or family.is_guess(op):
        return None
    return family.describe(op, context_of(family, device, indices, tf32)).work, family.name in TENSOR_CORE_FAMILIES


Key = tuple[str, tuple[tuple[int, ...], ...], str]


class RooflineCalls(NamedTuple):
    """Calls of one name with the same shapes."""

    op: Op
    """One of the calls."""
    us: list[float]
    """What the device takes for each."""
    flops: float
    nbytes: float
    """What each does, and the fewest bytes that it must move."""
    rate: str
    """The type whose peak rate limits its arithmetic."""
    least_us: float
    """What each would take at the device's peak rates."""


class Roofline(NamedTuple):
    """Peak rates of the device, and the work that it was given."""

    calls: list[RooflineCalls]
    """Those that take longest first."""
    memory_gbps: float
    peaks: dict[str, float]
    """TFLOP/s, of the rates of the calls and of `DEFAULT_RATE`."""


def roofline(workings: Workings) -> Roofline | None:
    """The calls of the first rank by name and shapes; None where device, times or shapes are not known."""
    device, graph = workings.device, workings.graphs[0]
    rows = dispatched(graph)
    spent = _device_time(graph, rows)
    if device is None:
        return None
    us = dict(zip(rows.tolist(), spent.tolist()))
    found: dict[Key, RooflineCalls] = {}
    for row, work, _ in works(graph, rows[spent > 0].tolist(), device):
        op = graph.ops[row]
        key = (op.name, tuple(t.shape for t in op.tensors), op.tensors[0].dtype)
        if key not in found:
            found[key] = RooflineCalls(op, [], work.flops, work.bytes, work.rate, work.us(device))
        found[key].us.append(us[row])
    calls = sorted(found.values(), key=lambda alike: -sum(alike.us))
    peaks = {rate: device.peak(rate) for rate in {DEFAULT_RATE, *(alike.rate for alike in calls)}}
    return Roofline(calls, device.memory_gbps, peaks) if calls else None


def _device_time(graph: Graph, rows: Ints) -> Floats:
    """Microseconds that the device works for each of these calls."""
    kernels, place = graph.kernels, enclosing_calls(graph, rows)[graph.kernels.op]
    owned = place >= 0
    time = kernels.end - kernels.start
    return np.asarray(np.bincount(place[owned], time[owned], len(rows)), np.float64)
