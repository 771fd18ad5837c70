"""What would save a fleet the most GPU hours: each answer counts the critical path and what overlaps.

Answered from the reduced records alone: a record knows how its step responds to faster or slower parts
(`foretrace.fleet.response`), how far its kernels are from their rooflines, and calls to price on another device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from foretrace.analysis.breakdown import KERNEL_GROUPS
from foretrace.analysis.report import NotebookDocument
from foretrace.cost_models.kernels.model import device_models
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.errors import ForetraceError
from foretrace.fleet.labels import HOURS
from foretrace.fleet.record import unpacked_call
from foretrace.fleet.response import COMMUNICATION, COMPONENTS, HOST
from foretrace.fleet.store import Flat, Store, hours_of, text_codes
from foretrace.graph import Graph, OpTable
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.platform.registry import load_platform

if TYPE_CHECKING:
    import pyarrow as pa

FASTER = 0.9
"""What a family that is a tenth faster takes of its time."""
FASTEST = 10
"""Percentile of the hosts' speeds that counts as the fastest: the very fastest may be one bad measurement."""
OPS = 12
"""Ops whose kernels at their roofline are a question of their own."""
PRICED = 0.3
"""Share of a family's time in a recording from which on its priced groups stand for the others."""
FUSED = ("element-wise", "copy")
COLUMNS = (
    "name", "device", "made", "clean", "step_ms", "balanced_ms", "memory_bytes", "launches", "fused_ms",
    "fused_launches", HOURS, "response", "world",
    *(f"kernels.list.element.{name}" for name in ("family", "op", "dtype", "ms", "count", "gflop", "mbytes")),
    *(f"kernels.list.element.{name}" for name in ("least_ms", "call")),
    *(f"host_ops.list.element.{name}" for name in ("name", "ms", "count")),
)  # fmt: skip
_PLACE = {name: place for place, name in enumerate(COMPONENTS)}


@dataclass(slots=True)
class Saving:
    """One change, and what it would save."""

    kind: str
    what: str
    hours: float
    """GPU hours a week; negative where it costs some."""
    share: float
    """Of the fleet's hours."""
    dollars: float | None
    """A week, where a price is known."""
    recordings: int
    """Those that it makes faster by more than a thousandth."""


@dataclass
class FleetWhatIf(NotebookDocument):
    """What would save hours, the most first."""

    store: str
    recordings: int
    hours: float
    """GPU hours a week."""
    weeks: float
    price: float | None
    savings: list[Saving]
    notes: list[str] = field(default_factory=list)


class FleetResponse:
    """The steps of all recordings as functions of how long their parts take."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        rows = Flat(table, "response")
        self.row = rows.row
        values = rows.items.flatten().to_numpy(zero_copy_only=False)
        self.paths: Floats = values.reshape(-1, len(COMPONENTS))
        self.first = np.searchsorted(self.row, np.arange(table.num_rows))
        self.known = np.bincount(self.row, minlength=table.num_rows) > 0
        self.hours = hours_of(table)
        self.step_ms: Floats = np.maximum(table.column("step_ms").to_numpy(), 1e-9)

    def ms(self, scale: Mapping[str, Floats | float]) -> Floats:
        """The step of each recording with components scaled, by one factor or by one a recording."""
        if not len(self.paths):
            return self.step_ms
        paths = self.paths.copy()
        for name, factor in scale.items():
            paths[:, _PLACE[name]] *= factor[self.row] if isinstance(factor, np.ndarray) else factor
        found = self.step_ms.copy()
        # Relative to the same paths as they were: these are rounded, and a change that changes nothing saves nothing.
        longest, before = (np.maximum.reduceat(one.sum(axis=1), self.first[self.known]) for one in (paths, self.paths))
        found[self.known] *= np.divide(longest, before, out=np.ones(len(before)), where=before > 0)
        return found

    @cached_property
    def kernels(self) -> Flat:
        """The kernel groups of all recordings."""
        return Flat(self.table, "kernels")

    def by_family(self, ms: Floats) -> dict[str, Floats]:
        """For each family, its time in each recording if its groups took so long, relative to what they took."""
        codes, names = self.kernels.codes("family")
        count, before = self.table.num_rows, self.kernels["ms"]
        found = {}
        for code, name in enumerate(names):
            of_family = codes == code
            was = np.bincount(self.kernels.row[of_family], before[of_family], count)
            now = np.bincount(self.kernels.row[of_family], ms[of_family], count)
            found[name] = np.divide(now, was, out=np.ones(count), where=was > 0)
        return found


def fleet_whatif(
    store: Store,
    on: Sequence[str] = (),
    price: float | None = None,
    weeks: float | None = None,
    slow_host: float | None = None,
) -> FleetWhatIf:
    """What would save a fleet the most hours.

    Parameters
    ----------
    store
        The fleet.
    on
        Platforms on which every job is predicted as well: its kernels there, its host and its fabric as they are.
    price
        Dollars for a GPU hour.
    weeks
        Weeks that the hours in the store are of; as many as lie between the first and the last recording by default.
    slow_host
        Also ask what hosts that take so many times as long would cost.
    """
    table = store.table(COLUMNS)
    if not table.num_rows:
        raise store.holds_nothing()
    fleet, notes = FleetResponse(table), list[str]()
    period = weeks or _weeks(table)
    whole = float(fleet.hours.sum()) / period
    answers: list[tuple[str, str, Floats]] = []
    profiled = int((~table.column("clean").to_numpy().astype(bool)).sum())
    if profiled:
        notes.append(
            f"{profiled:,} of {table.num_rows:,} recordings were only timed under a profiler: their hosts seem slower "
            "than they are, and faster kernels save more than is said here"
        )
    for family in _present(fleet):
        answers.append(("a tenth faster", family, fleet.ms({family: FASTER})))
    answers += _at_roofline(fleet)
    answers += _hosts(fleet, notes)
    if slow_host is not None:
        answers.append(("host", f"hosts take {slow_host:g} times as long", fleet.ms(dict.fromkeys(HOST, slow_host))))
    balanced = table.column("balanced_ms").to_numpy()
    if (balanced > 0).any():
        answers.append(("stragglers", "all ranks equally fast", np.where(balanced > 0, balanced, fleet.step_ms)))
    if COMMUNICATION in _present(fleet):
        answers.append(("communication", "all of it hidden", fleet.ms({COMMUNICATION: 0.0})))
    answers.append(("compiled", "chains of element-wise calls fused, at least", _compiled(fleet)))
    for name in on:
        answers.append(("on", name, on_platform(fleet, load_platform(name), notes)))
    savings = [_saving(fleet, kind, what, ms, period, price) for kind, what, ms in answers]
    return FleetWhatIf(
        store=str(store.path),
        recordings=table.num_rows,
        hours=whole,
        weeks=period,
        price=price,
        savings=sorted(savings, key=lambda row: -row.hours),
        notes=notes,
    )


def _saving(fleet: FleetResponse, kind: str, what: str, ms: Floats, weeks: float, price: float | None) -> Saving:
    gained = 1 - ms / fleet.step_ms
    hours = float((fleet.hours * gained).sum()) / weeks
    share = hours * weeks / float(fleet.hours.sum())
    return Saving(kind, what, hours, share, None if price is None else hours * price, int((gained > 1e-3).sum()))


def _weeks(table: pa.Table) -> float:
    """Weeks between the first and the last recording; one where they have no dates."""
    days = [date.fromisoformat(day[:10]) for day in text_codes(table.column("made"))[1] if day]
    return ((max(days) - min(days)).days // 7 + 1) if days else 1


def _present(fleet: FleetResponse) -> list[str]:
    """Families that some recording has."""
    return [name for name in KERNEL_GROUPS if (fleet.paths[:, _PLACE[name]] > 0).any()]


def _at_roofline(fleet: FleetResponse) -> list[tuple[str, str, Floats]]:
    """Kernels at the device's peak rates: all of them, and those of the ops that would gain most."""
    ms, least = fleet.kernels["ms"], fleet.kernels["least_ms"]
    best = np.where(least > 0, np.minimum(least, ms), ms)
    answers = [("at the roofline", "all kernels", fleet.ms(fleet.by_family(best)))]
    codes, names = fleet.kernels.codes("op")
    weight = fleet.hours / fleet.step_ms
    gain = np.bincount(codes, (ms - best) * weight[fleet.kernels.row], len(names))
    for code in np.argsort(-gain, kind="stable")[:OPS].tolist():
        if gain[code] > 0:
            only = np.where(codes == code, best, ms)
            answers.append(("at the roofline", names[code], fleet.ms(fleet.by_family(only))))
    return answers


def host_factors(fleet: FleetResponse) -> Floats:
    """How many times as long the host of each recording takes for the same ops as the typical one; NaN where unknown.

    Compared op by op with the median over the fleet, weighted by host time.
    """
    ops = Flat(fleet.table, "host_ops")
    codes, _ = ops.codes("name")
    clean = fleet.table.column("clean").to_numpy().astype(bool)
    each = ops["ms"] / np.maximum(ops["count"], 1)
    usable = (each > 0) & clean[ops.row]
    typical = np.full(int(codes.max(initial=-1)) + 1, np.nan)
    for code in np.unique(codes[usable]).tolist():
        typical[code] = np.median(each[usable & (codes == code)])
    apart = np.log(np.divide(each, typical[codes], out=np.ones_like(each), where=usable))
    count = fleet.table.num_rows
    weight = np.where(usable, ops["ms"], 0.0)
    total = np.bincount(ops.row, weight, count)
    mean = np.bincount(ops.row, weight * apart, count)
    return np.where(total > 0, np.exp(np.divide(mean, total, out=np.zeros(count), where=total > 0)), np.nan)


def _hosts(fleet: FleetResponse, notes: list[str]) -> list[tuple[str, str, Floats]]:
    """Hosts as fast as the fastest, and all of them twice as fast."""
    twice = ("host", "hosts twice as fast", fleet.ms(dict.fromkeys(HOST, 0.5)))
    factor = host_factors(fleet)
    known = np.isfinite(factor)
    if not known.any():
        notes.append("no recording was timed without a profiler: hosts can't be compared with each other")
        return [twice]
    if not known.all():
        notes.append(f"{int((~known).sum()):,} recordings do not say how fast their hosts are: these stay as they are")
    fastest = float(np.percentile(factor[known], FASTEST))
    scale = np.where(known, np.minimum(fastest / np.where(known, factor, 1.0), 1.0), 1.0)
    return [("host", "hosts as fast as the fastest", fleet.ms(dict.fromkeys(HOST, scale))), twice]


def _compiled(fleet: FleetResponse) -> Floats:
    """Chains of element-wise calls as one kernel each: less device time, fewer launches."""
    table = fleet.table
    codes, names = fleet.kernels.codes("family")
    fusible = np.isin(codes, [code for code, name in enumerate(names) if name in FUSED])
    was = np.bincount(fleet.kernels.row[fusible], fleet.kernels["ms"][fusible], table.num_rows)
    saved = np.minimum(table.column("fused_ms").to_numpy(), was)
    device = 1 - np.divide(saved, was, out=np.zeros(len(saved)), where=was > 0)
    launches = np.maximum(table.column("launches").to_numpy(), 1)
    host = 1 - np.minimum(table.column("fused_launches").to_numpy() / launches, 1.0)
    return fleet.ms({**dict.fromkeys(FUSED, device), **dict.fromkeys(HOST, host)})


def on_platform(fleet: FleetResponse, platform: Platform, notes: list[str] | None = None) -> Floats:
    """The step of each recording with its kernels on another device; its host and its fabric stay."""
    return fleet.ms(fleet.by_family(kernel_ms_on(fleet, platform, notes)))


def kernel_ms_on(fleet: FleetResponse, platform: Platform, notes: list[str] | None = None) -> Floats:
    """What each group of kernels takes on another device.

    It changes as the price of one of its calls does from its own device to the other; where no call
    was kept, as the rooflines do.
    """
    devices, names = text_codes(fleet.table.column("device"))
    kernels, ms = fleet.kernels, fleet.kernels["ms"]
    calls, texts = kernels.codes("call")
    ratio = np.full(len(ms), np.nan)
    unknown = 0
    for code, name in enumerate(names):
        own = Device.closest(name) if name else None
        here = devices[kernels.row] == code
        if own is None:
            ratio[here] = 1.0
            unknown += int((devices == code).sum())
            continue
        source = load_platform(own.name)
        used = np.unique(calls[here])
        before, after = (_prices([texts[one] for one in used.tolist()], one) for one in (source, platform))
        by_call = np.full(len(texts), np.nan)
        by_call[used] = after / before
        priced = by_call[calls[here]]
        start = device_models(source.models).fallback.start_us
        rooflines = _rooflines(kernels, here, own, platform.device, start)
        alike = _as_priced(kernels, here, priced)
        ratio[here] = np.where(np.isfinite(priced), priced, np.where(np.isfinite(alike), alike, rooflines))
    families, _ = kernels.codes("family")
    for family in np.unique(families).tolist():  # what has neither call nor sizes changes as the rest of its family
        of_family = families == family
        known = of_family & np.isfinite(ratio)
        typical = float((ms * ratio)[known].sum() / ms[known].sum()) if ms[known].sum() else 1.0
        ratio[of_family & ~np.isfinite(ratio)] = typical
    talk = np.array([name == COMMUNICATION for name in kernels.codes("family")[1]])[families]
    ratio[talk] = 1.0
    if notes is not None:
        _note(fleet, platform, unknown, bool(talk.any()), notes)
    return np.asarray(ms * ratio)


def _note(fleet: FleetResponse, platform: Platform, unknown: int, talks: bool, notes: list[str]) -> None:
    memory = fleet.table.column("memory_bytes").to_numpy()
    large = int((memory > platform.device.memory_gb * 1e9).sum())
    if large:
        notes.append(f"{large:,} recordings do not fit into the memory of {platform.name}")
    if unknown:
        notes.append(f"{unknown:,} recordings are of unknown devices: on {platform.name} they stay as they are")
    if talks:
        notes.append(f"on {platform.name}: hosts and collectives stay as they are")


def _prices(calls: Sequence[str], platform: Platform) -> Floats:
    """Microseconds of calls on a platform; NaN for those that are empty or can't be priced."""
    prices = np.full(len(calls), np.nan)
    ops = {place: unpacked_call(text) for place, text in enumerate(calls) if text}
    if not ops:
        return prices
    graph = Graph(OpTable.of(list(ops.values())), device=platform.device.matches)
    try:
        costs = price_kernels(graph, np.arange(len(ops), dtype=np.int32), platform)
    except ForetraceError:  # nothing of them runs on a device
        return prices
    sums = np.bincount(costs.op, costs.typical, len(ops))
    prices[list(ops)] = np.where(sums > 0, sums, np.nan)
    return prices


def _as_priced(kernels: Flat, here: np.ndarray, priced: Floats) -> Floats:
    """What groups of the same family and recording change by, where enough of their time is priced; NaN elsewhere."""
    codes, names = kernels.codes("family")
    place = (kernels.row * len(names) + codes)[here]
    ms, known = kernels["ms"][here], np.isfinite(priced)
    size = int(place.max(initial=-1)) + 1
    whole, part = np.bincount(place, ms, size), np.bincount(place[known], ms[known], size)
    changed = np.bincount(place[known], (ms * priced)[known], size)
    mean = np.divide(changed, part, out=np.full(size, np.nan), where=part > PRICED * whole)
    return np.asarray(mean[place])


def _rooflines(kernels: Flat, here: np.ndarray, own: Device, other: Device, start_us: float) -> Floats:
    """How much longer or shorter groups take by their arithmetic and bytes alone; NaN where these are unknown.

    The time that a kernel takes to start stays.
    """
    codes, dtypes = kernels.codes("dtype")
    gflop, mbytes = kernels["gflop"][here], kernels["mbytes"][here]
    times = []
    for device in (own, other):
        peak = np.array([device.peak(dtype) for dtype in dtypes])[codes[here]]
        times.append(np.maximum(gflop / peak, mbytes * 1e3 / device.memory_gbps))
    ratio = np.divide(times[1], times[0], out=np.full(len(gflop), np.nan), where=times[0] > 0)
    each_us = kernels["ms"][here] * 1e3 / np.maximum(kernels["count"][here], 1)
    starts = np.minimum(start_us / np.maximum(each_us, 1e-9), 1.0)
    return np.asarray(starts + (1 - starts) * ratio)
