"""A platform of published tables: ratios to the calibrated GPU, fitted on times that others measured.

Rows are checked before anything is fitted: a time that the hardware can't reach is in other units, rows of one call
that disagree are of different things.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretrace._progress import OnProgress, Progress
from foretrace.calibration.published_tables import READERS, PublishedTime, read_published
from foretrace.cost_models.kernels.estimators.dataset import Dataset
from foretrace.cost_models.kernels.estimators.forests import boost
from foretrace.cost_models.kernels.families import CallContext, family_of
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.cost_models.kernels.ratios import KINDS, RatioModel, features_of
from foretrace.cost_models.kernels.reliability import ErrorRange
from foretrace.cost_models.kernels.roofline import Work
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Op, OpTable
from foretrace.graph.op import signature
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device
from foretrace.platform.hypothetical import RATIO_INDEX, RatioIndex, RatioTable
from foretrace.platform.platform import DEVICE, Platform
from foretrace.platform.registry import REFERENCE
from foretrace.platform.typed_json import write

MIN_ROWS = 100
"""Rows of a kind that ratios are fitted on at least."""
HELD_OUT = 0.3
"""Share of the layers that errors are learned on; the model is then fitted on all."""
TREES, LEAVES = 300, 47
MAX_ROWS = 9_000
"""Rows of a kind that are fitted at most, drawn at random: more of them tell little."""
MAX_SPEED = 1.25
"""Times the peak rate that a row may show: clocks of a short run are above those of the description."""
MAX_SLOWER = 300.0
"""Times the roofline that the median row may take, where that is long: more is another unit."""
LONG_US = 10.0
MAX_FAST = 0.01
"""Share of a table's rows that may be faster than the hardware: those are left out, more refuse the table."""
FLOOR = 0.01
"""Share of rows whose kernels have nothing to do but to start and end."""
DISAGREE = 1.5
"""Times by which two rows of one call may differ."""
MAX_APART = 30.0
"""Times by which a row's ratio to the calibrated GPU may differ from the median row's: one that is farther off is in
another unit, or of something else."""
NAMED = 20
"""Rows that a note names at most."""
SAME_HARNESS = 0.1
"""How far, in the median, a table of the calibrated GPU may be from its own models: where it is farther, the harness
times something else, and the ratio of two tables is taken."""


@dataclass
class Imported:
    """The result of importing published measurements."""

    kinds: dict[str, RatioTable] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def import_tables(
    folder: Path, source: str, gpu: str | None, out: Path, on_progress: OnProgress = lambda progress: None
) -> Imported:
    """Make a platform of the tables of a folder: ``device.json`` and ``ratios/``."""
    on_progress(Progress("reading tables"))
    wanted = None if gpu is None else {gpu, REFERENCE}
    rows = read_published(folder, source, wanted)
    found = sorted({row.gpu for row in rows})
    if gpu is None:
        others = [name for name in found if name != REFERENCE] or found
        if len(others) != 1:
            raise ForetraceError(f"{folder} has tables of {', '.join(found)}", f"Name one of them: --gpu {found[0]}.")
        gpu = others[0]
    if gpu not in found:
        here = sorted({row.gpu for row in read_published(folder, source)})
        raise ForetraceError(f"{folder} has no table of {gpu}", f"It has tables of {', '.join(here)}.")
    device = Device.named(gpu)
    imported = Imported()
    ratios = out / "ratios"
    ratios.mkdir(parents=True, exist_ok=True)
    fit_ratios(rows, source, device, Platform.named(REFERENCE), ratios, imported, on_progress)
    write(out / DEVICE, {**asdict(device)})
    write_import_about(out, gpu, f"{source}, imported {datetime.date.today().isoformat()}")
    return imported


def write_import_about(out: Path, gpu: str, provenance: str) -> None:
    """Write ``platform.json`` of an imported platform."""
    from foretrace.platform.platform import About, write_about

    said = f"fitted on published tables ({provenance}); the rest is scaled from {REFERENCE}"
    write_about(out, About(gpu, datetime.date.today().isoformat(), said, {}))


def fit_ratios(
    rows: Sequence[PublishedTime],
    source: str,
    device: Device,
    measured: Platform,
    out: Path,
    imported: Imported,
    on_progress: OnProgress = lambda progress: None,
) -> RatioIndex:
    """Fit the ratios of all kinds that a device's rows tell, and write them with their index."""
    on_device = [row for row in rows if row.gpu == device.name]
    on_source = [row for row in rows if row.gpu == measured.device.name]
    start = 1.0
    for kind in KINDS:
        table = _checked([row for row in on_device if row.kind == kind], device, imported.notes)
        if len(table) < MIN_ROWS:
            imported.notes += [f"{len(table)} rows of {kind} are too few to fit"] if table else []
            continue
        on_progress(Progress(f"fitting {kind}"))
        some = np.sort(np.random.default_rng(7).permutation(len(table))[:MAX_ROWS])
        table = [table[place] for place in some.tolist()]
        wanted = {signature(row.op) for row in table}
        other = [row for row in on_source if row.kind == kind and signature(row.op) in wanted]
        modelled = priced_us([row.op for row in table], measured)
        if kind == "bf16":
            start = _floor(table) / (_floor(other) if len(other) >= MIN_ROWS else float(np.quantile(modelled, FLOOR)))
        before, against = _baseline(table, other, modelled, measured.name)
        kept = _alike(table, before, imported.notes)
        table = [table[place] for place in kept.tolist()]
        us = np.array([row.us for row in table])
        model, gmae, p90, held = _fitted(table, us / before[kept], device)
        model.write(out, kind)
        harness = max(
            {row.harness.split()[0] for row in table}, key=lambda name: sum(r.harness.startswith(name) for r in table)
        )
        label = harness if harness in READERS else f"{source} ({harness})"
        imported.kinds[kind] = RatioTable(label, len(table), against, gmae, p90, held)
    if not imported.kinds:
        raise ForetraceError(
            f"no table of {device.name} has kernel times that a model can be fitted on: "
            + ("; ".join(imported.notes) or "none are there"),
            f"{MIN_ROWS} rows of a kind are needed; docs/calibrate.md has the tables that are read.",
        )
    index = RatioIndex(round(start, 3), imported.kinds)
    write(out / RATIO_INDEX, asdict(index))
    return index


def _checked(rows: Sequence[PublishedTime], device: Device, notes: list[str]) -> list[PublishedTime]:
    """Rows of the largest harness that the hardware can reach and that do not contradict each other."""
    if not rows:
        return []
    works = [_work(row.op, device) for row in rows]
    # What the cache holds may have been there before.
    roofs = np.array([each._replace(bytes=max(0.0, each.bytes - 1e6 * device.l2_mb)).us(device) for each in works])
    us = np.array([row.us for row in rows])
    fast = np.flatnonzero(us * MAX_SPEED < roofs)
    long = roofs > LONG_US
    if len(fast) > MAX_FAST * len(rows):
        first = rows[fast[0]]
        raise ForetraceError(
            f"{first.where}: {first.us:.4g} us is faster than {device.name} can "
            f"({roofs[fast[0]]:.4g} us at its peaks), and so are {len(fast)} of {len(rows)} rows",
            "Are the times in another unit, or of another GPU? Nothing was fitted.",
        )
    if long.any() and np.median(us[long] / roofs[long]) > MAX_SLOWER:
        first = rows[int(np.flatnonzero(long)[0])]
        raise ForetraceError(
            f"{first.where}: {first.us:.4g} us is {first.us / roofs[long][0]:,.0f} times what {device.name} needs at "
            "its peaks, and other rows are alike",
            "Are the times in another unit? Nothing was fitted.",
        )
    if len(fast):
        notes.append(f"{_lines([rows[place] for place in fast.tolist()])}: faster than {device.name} can, left out")
    good = [row for place, row in enumerate(rows) if us[place] * MAX_SPEED >= roofs[place]]
    return _agreeing(good, notes)


def _agreeing(rows: Sequence[PublishedTime], notes: list[str]) -> list[PublishedTime]:
    """One row for each call: the median of those of the largest harness; calls whose rows disagree are left out."""
    calls: defaultdict[Hashable, list[PublishedTime]] = defaultdict(list)
    for row in rows:
        calls[row.harness, row.layer, signature(row.op)].append(row)
    sizes: defaultdict[str, int] = defaultdict(int)
    for same in calls.values():
        sizes[same[0].harness.split()[0]] += 1
    largest = max(sizes, key=lambda name: sizes[name], default="")
    kept, apart = [], []
    for same in calls.values():
        if same[0].harness.split()[0] != largest:
            continue
        times = sorted(row.us for row in same)
        if times[-1] > DISAGREE * times[0]:
            apart.append(same)
        else:
            kept.append(same[0]._replace(us=float(np.median(times))))
    if apart:
        extremes = min(apart[0], key=lambda row: row.us), max(apart[0], key=lambda row: row.us)
        one, other = sorted(extremes, key=apart[0].index)
        notes.append(
            f"{one.where} and {other.where} tell {one.us:.4g} and {other.us:.4g} us for one call: "
            f"{len(apart)} such calls are left out"
            + (f", the others in {_lines([row for same in apart[1:] for row in same])}" if apart[1:] else "")
        )
    return kept


def _lines(rows: Sequence[PublishedTime]) -> str:
    """The files and lines of rows, for messages."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows[:NAMED]:
        file, _, line = row.where.partition(", line ")
        files[file].append(line)
    named = "; ".join(f"{file}, line{'s' * (len(lines) > 1)} {', '.join(lines)}" for file, lines in files.items())
    return named + (f" and {len(rows) - NAMED} more" if len(rows) > NAMED else "")


def _alike(rows: Sequence[PublishedTime], before: Floats, notes: list[str]) -> NDArray[np.intp]:
    """Rows with a baseline, and with ratios near those of the others."""
    logs = np.log(np.array([row.us for row in rows]) / before)
    apart = np.abs(logs - np.nanmedian(logs)) > np.log(MAX_APART)
    if apart.any():
        named = _lines([rows[place] for place in np.flatnonzero(apart).tolist()])
        notes.append(f"{named}: more than {MAX_APART:g} times off what the other rows say, in another unit? Left out")
    return np.flatnonzero(np.isfinite(before) & ~apart)


def _baseline(
    rows: Sequence[PublishedTime], others: Sequence[PublishedTime], modelled: Floats, name: str
) -> tuple[Floats, str]:
    """What each time is divided by, NaN where there is nothing, and what that is: times of the calibrated GPU."""
    table = {(row.harness, row.layer, signature(row.op)): row.us for row in others}
    source_us = np.array([table.get((row.harness, row.layer, signature(row.op)), np.nan) for row in rows])
    both = np.isfinite(source_us)
    if both.mean() < 0.5 and others:  # another version of the harness
        by_call: defaultdict[Hashable, list[float]] = defaultdict(list)
        for row in others:
            by_call[signature(row.op)].append(row.us)
        source_us = np.array([np.median(by_call.get(signature(row.op), [np.nan])) for row in rows])
        both = np.isfinite(source_us)
    if both.sum() < MIN_ROWS or rows[0].kind == "flash":
        return modelled, f"kernel models of {name}"
    off = float(np.median(np.abs(np.log(source_us[both] / modelled[both]))))
    if off <= SAME_HARNESS:
        return modelled, f"kernel models of {name}, which its table agrees with ({off:.0%})"
    ran, ran_there = ({row.kernels for row in some} for some in (rows, others))
    return source_us, f"the same harness on {name}{', where its kernels have other names' * ran.isdisjoint(ran_there)}"


def priced_us(ops: Sequence[Op], platform: Platform) -> Floats:
    """Microseconds of each call on a platform."""
    costs = price_kernels(Graph(OpTable.of(list(ops))), np.arange(len(ops), dtype=np.int32), platform)
    return np.bincount(costs.op, costs.typical, len(ops)).astype(np.float64)


def _work(op: Op, device: Device) -> Work:
    family = family_of(op)
    assert family is not None
    work = family.describe(op, CallContext(device)).work
    return work._replace(flops=0.0) if "attention" in op.name else work  # tiles that are skipped, or halved


def _fitted(rows: Sequence[PublishedTime], ratio: Floats, device: Device) -> tuple[RatioModel, float, float, float]:
    """The model of a kind; and on held-out layers the geometric mean and 90th percentile of the error, and the share of
    rows in their ranges."""
    features = np.array([features_of(row.op, device)[0] for row in rows], np.float64)
    target = np.log(ratio)
    layers = sorted({row.layer for row in rows}, key=str)
    chosen = np.random.default_rng(7).permutation(len(layers))[: max(1, round(HELD_OUT * len(layers)))]
    unseen = {layers[place] for place in chosen.tolist()}
    outside = np.array([row.layer in unseen for row in rows])
    tried = boost(features[~outside], target[~outside], TREES, LEAVES).predict(features[outside])
    us, none = np.exp(np.stack([tried, tried], axis=1)), np.zeros((len(tried), 0))
    times = np.stack([ratio[outside], ratio[outside]], axis=1)
    calls = Dataset(features[outside], tried, tried, times, [[] for _ in tried])
    errors = ErrorRange.of(calls, us, none)
    model = RatioModel(boost(features, target, TREES, LEAVES), errors)
    low, high, _ = errors.around(features[outside], us, none)
    off = target[outside] - tried
    wrong = np.abs(np.exp(-off) - 1)
    gmae = float(np.exp(np.log(np.maximum(wrong, 1e-3)).mean()))
    held = float(np.mean((low <= off) & (off <= high)))
    return model, round(gmae, 4), round(float(np.quantile(wrong, 0.9)), 4), round(held, 3)


def _floor(rows: Sequence[PublishedTime]) -> float:
    """The time of the shortest kernels."""
    return float(np.quantile([row.us for row in rows], FLOOR))
