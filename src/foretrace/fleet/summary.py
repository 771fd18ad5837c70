"""Where a fleet's GPU hours go: by job, team, family, op, shape, collective and idle cause; by week; outliers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace.analysis.compare import compare_steps
from foretrace.analysis.report import NotebookDocument, StepReport, TimeRow, plain
from foretrace.errors import unknown_name
from foretrace.fleet.labels import HOURS, NAMED
from foretrace.fleet.store import Flat, Store, hours_of, text_codes
from foretrace.graph.tables import Floats, distinct

if TYPE_CHECKING:
    import pyarrow as pa

SLOWER = 1.1
"""A job whose last step takes so many times as long as before counts as one that got slower…"""
DEVIATIONS = 3.0
"""…if that is also so many times as far off as its earlier steps lie apart."""
MIN_HISTORY, MAX_OUTLIERS = 2, 100
"""Earlier recordings that a job needs to be compared with, and jobs that are listed."""
TREE_JOBS, TREE_OPS, TREE_SHAPES = 40, 8, 4
"""Jobs, ops of each family and shapes of each op that the page's treemap shows."""
KEPT_ROWS = 1000
"""Rows of each table in the JSON."""
SCALARS = (
    "name", "made", "world", "dtype", "device", "bound", "measured", "clean", "step_ms", "active_ms", "idle_ms",
    "kernel_ms", "exposed_ms", "wait_ms", "memory_bytes", "mfu", "compiled", HOURS, *NAMED,
)  # fmt: skip
KERNELS = tuple(f"kernels.list.element.{name}" for name in ("phase", "family", "op", "shapes", "ms", "count"))
COLLECTIVES = tuple(f"collectives.list.element.{name}" for name in ("kind", "log2_bytes", "transfer_ms", "wait_ms"))
IDLE = ("idle.list.element.name", "idle.list.element.ms")


@dataclass(slots=True)
class HoursRow:
    """GPU hours under one name."""

    name: str
    hours: float
    share: float
    """Of the fleet's hours."""
    recordings: int


@dataclass(slots=True)
class Week:
    """GPU hours of a week, by kernel family; idle time is a family of its own."""

    week: str
    hours: float
    by_family: dict[str, float]


@dataclass(slots=True)
class Outlier:
    """A job whose last recording is slower than its earlier ones."""

    job: str
    recording: str
    before: str
    """The earlier recording that it is compared with: the one of median length."""
    step_ms: tuple[float, float]
    slower: float
    hours: float
    why: list[str]
    """What grew most, the largest first."""


@dataclass
class FleetSummary(NotebookDocument):
    """Where the hours of a fleet go."""

    store: str
    recordings: int
    hours: float
    active: float
    """Share of the hours in which the device works; the others below are shares as well."""
    idle: float
    exposed_communication: float
    compiled: float
    mfu: float
    by_job: list[HoursRow] = field(default_factory=list)
    by_team: list[HoursRow] = field(default_factory=list)
    by_model: list[HoursRow] = field(default_factory=list)
    by_cluster: list[HoursRow] = field(default_factory=list)
    by_device: list[HoursRow] = field(default_factory=list)
    by_bound: list[HoursRow] = field(default_factory=list)
    by_family: list[HoursRow] = field(default_factory=list)
    by_op: list[HoursRow] = field(default_factory=list)
    by_shape: list[HoursRow] = field(default_factory=list)
    by_collective: list[HoursRow] = field(default_factory=list)
    by_idle: list[HoursRow] = field(default_factory=list)
    weeks: list[Week] = field(default_factory=list)
    outliers: list[Outlier] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tree: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """Teams, jobs, families, ops and shapes inside each other, for the page's treemap; not part of the JSON."""

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``foretrace fleet show --json``."""
        found: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name != "tree":
                found[one.name] = plain(value[:KEPT_ROWS] if isinstance(value, list) else value)
        return found


def summarize(store: Store, where: Sequence[str] = ()) -> FleetSummary:
    """Where the hours of a fleet go, or of the recordings with some labels: ``team=ads``."""
    table = store.table([*SCALARS, *KERNELS, *COLLECTIVES, *IDLE])
    table = _filtered(table, where)
    if not table.num_rows:
        raise store.holds_nothing(" with these labels" if where else "")
    rows = _Rows(table)
    whole = float(rows.hours.sum())
    summary = FleetSummary(
        store=str(store.path),
        recordings=table.num_rows,
        hours=whole,
        active=float((rows.hours * rows.active).sum() / whole),
        idle=float((rows.hours * (1 - rows.active)).sum() / whole),
        exposed_communication=float((rows.hours * rows.share("exposed_ms")).sum() / whole),
        compiled=float((rows.hours * rows.active * rows["compiled"]).sum() / whole),
        mfu=float((rows.hours * rows["mfu"]).sum() / whole),
        by_job=rows.by("job", "name"),
        by_team=rows.by("team"),
        by_model=rows.by("model"),
        by_cluster=rows.by("cluster"),
        by_device=rows.by("device"),
        by_bound=rows.by("bound"),
        by_family=rows.by_kernels("family"),
        by_op=rows.by_kernels("op"),
        by_shape=rows.by_kernels("op", "shapes"),
        by_collective=rows.by_collective(),
        by_idle=rows.by_idle(),
        weeks=rows.weeks(),
        outliers=_outliers(table, rows),
        notes=rows.notes(),
    )
    summary.tree = rows.tree()
    return summary


def _filtered(table: pa.Table, where: Sequence[str]) -> pa.Table:
    import pyarrow.compute as pc

    known = (*NAMED, "device", "bound", "dtype", "name")
    for text in where:
        name, _, value = text.partition("=")
        if name not in known:
            raise unknown_name("label to choose recordings by", name, known)
        table = table.filter(pc.equal(table.column(name), value))
    return table


class _Rows:
    """The columns of a table of recordings, and sums of their hours."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.labelled = np.isfinite(table.column(HOURS).to_numpy().astype(np.float64))
        self.hours = hours_of(table)
        step = np.maximum(self["step_ms"], 1e-9)
        self.active: Floats = np.clip(self["active_ms"] / step, 0.0, 1.0)
        self.kernels = Flat(table, "kernels")
        kernel_ms = np.bincount(self.kernels.row, self.kernels["ms"], table.num_rows)
        # Kernels that overlap share the time in which the device works.
        share = np.divide(self.active, kernel_ms, out=np.zeros_like(step), where=kernel_ms > 0) * self.hours
        self.kernel_hours: Floats = self.kernels["ms"] * share[self.kernels.row]

    def __getitem__(self, name: str) -> Floats:
        return np.asarray(self.table.column(name).to_numpy(), np.float64)

    def share(self, name: str) -> Floats:
        """A time of each recording as a share of its step."""
        return np.asarray(np.clip(self[name] / np.maximum(self["step_ms"], 1e-9), 0.0, 1.0))

    def by(self, name: str, instead: str = "") -> list[HoursRow]:
        """Hours by a label; another column stands in where it is empty. Nothing where no recording has one."""
        codes, names = self.names(name, instead)
        if not any(names):
            return []
        return self._ranked(codes, [one or "(none)" for one in names], self.hours, np.arange(len(codes)))

    def names(self, name: str, instead: str = "") -> tuple[np.ndarray, list[str]]:
        """Codes and texts of a label, with another column where it is empty."""
        import pyarrow.compute as pc

        column = self.table.column(name)
        if instead:
            column = pc.if_else(pc.equal(column, ""), self.table.column(instead), column)
        return text_codes(column)

    def by_kernels(self, *names: str) -> list[HoursRow]:
        """Hours of device work by columns of the kernel groups."""
        codes, texts = self.kernels.codes(names[0])
        for name in names[1:]:
            more, other = self.kernels.codes(name)
            pairs, codes = np.unique(codes.astype(np.int64) * len(other) + more, return_inverse=True)
            texts = [f"{texts[pair // len(other)]} {other[pair % len(other)]}".strip() for pair in pairs.tolist()]
        return self._ranked(codes, texts, self.kernel_hours, self.kernels.row)

    def by_collective(self) -> list[HoursRow]:
        """Hours in collectives by kind and size, waits included."""
        flat = Flat(self.table, "collectives")
        if not len(flat.row):
            return []
        kinds, texts = flat.codes("kind")
        sizes = flat["log2_bytes"].astype(np.int64) + 1
        pairs, codes = np.unique(kinds.astype(np.int64) * 128 + sizes, return_inverse=True)
        names = [f"{texts[pair // 128]}, up to {_bytes(pair % 128 - 1)}" for pair in pairs.tolist()]
        ms = flat["transfer_ms"] + flat["wait_ms"]
        return self._ranked(codes, names, ms * (self.hours / np.maximum(self["step_ms"], 1e-9))[flat.row], flat.row)

    def by_idle(self) -> list[HoursRow]:
        """Hours in which devices idle, by cause."""
        flat = Flat(self.table, "idle")
        if not len(flat.row):
            return []
        codes, names = flat.codes("name")
        causes = np.bincount(flat.row, flat["ms"], self.table.num_rows)
        idle = self.hours * (1 - self.active)
        each = np.divide(idle, causes, out=np.zeros_like(idle), where=causes > 0)
        return self._ranked(codes, names, flat["ms"] * each[flat.row], flat.row)

    def _ranked(self, codes: np.ndarray, names: Sequence[str], hours: Floats, row: np.ndarray) -> list[HoursRow]:
        sums = np.bincount(codes, hours, len(names))
        once = distinct(codes.astype(np.int64) * self.table.num_rows + row) // max(self.table.num_rows, 1)
        counts = np.bincount(once, minlength=len(names))
        whole = float(self.hours.sum())
        return [
            HoursRow(names[code], float(sums[code]), float(sums[code]) / whole, int(counts[code]))
            for code in np.argsort(-sums, kind="stable").tolist()
            if sums[code] > 0
        ]

    def weeks(self) -> list[Week]:
        """Hours by week and kernel family, of the recordings that have a date."""
        weeks, names = text_codes(self.table.column("made"))
        when = {code: _week(name) for code, name in enumerate(names) if name}
        ordered = sorted(set(when.values()))
        if len(ordered) < 2:
            return []
        place = np.array([ordered.index(when[code]) if code in when else -1 for code in range(len(names))])[weeks]
        codes, families = self.kernels.codes("family")
        known = place[self.kernels.row] >= 0
        sums = np.zeros((len(ordered), len(families)))
        np.add.at(sums, (place[self.kernels.row][known], codes[known]), self.kernel_hours[known])
        hours = np.bincount(place[place >= 0], self.hours[place >= 0], len(ordered))
        return [
            Week(
                week,
                float(hours[row]),
                {name: float(ms) for name, ms in zip(families, sums[row]) if ms}
                | {"idle": float(max(hours[row] - sums[row].sum(), 0.0))},
            )
            for row, week in enumerate(ordered)
        ]

    def notes(self) -> list[str]:
        """What the hours rest on."""
        found, unclean = [], int((~self.table.column("clean").to_numpy().astype(bool)).sum())
        missing = int((~self.labelled).sum())
        if missing:
            found.append(f"{missing:,} of {len(self.hours):,} recordings have no gpu_hours: each counts as one hour")
        if unclean:
            found.append(
                f"{unclean:,} of {len(self.hours):,} recordings were only timed under a profiler: devices idle less"
            )
        predicted = int((~self.table.column("measured").to_numpy().astype(bool)).sum())
        if predicted:
            found.append(f"{predicted:,} recordings have no measured times: theirs are predicted")
        return found

    def tree(self) -> list[dict[str, Any]]:
        """Jobs, families, ops and shapes inside each other; idle time is a family."""
        jobs, names = self.names("job", "name")
        largest = np.argsort(-np.bincount(jobs, self.hours, len(names)), kind="stable")[:TREE_JOBS]
        labels = [self.kernels.codes(name) for name in ("family", "op", "shapes")]
        found = []
        for job in largest.tolist():
            of_job = jobs == job
            rows = np.flatnonzero(of_job[self.kernels.row])
            children = _branches(rows, self.kernel_hours, labels, (len(labels[0][1]), TREE_OPS, TREE_SHAPES))
            idle = float((self.hours * (1 - self.active))[of_job].sum())
            whole = float(self.hours[of_job].sum())
            if idle > 1e-3 * whole:
                children.append({"name": "idle", "value": idle})
            found.append({"name": names[job], "value": whole, "children": children})
        rest = float(self.hours.sum()) - sum(branch["value"] for branch in found)
        return [*found, {"name": "other jobs", "value": rest}] if rest > 1e-9 * float(self.hours.sum()) else found


def _branches(
    rows: np.ndarray, hours: Floats, labels: Sequence[tuple[np.ndarray, list[str]]], most: Sequence[int]
) -> list[dict[str, Any]]:
    """The largest names at one level of the tree, each with those inside it."""
    (codes, names), inner = labels[0], labels[1:]
    sums = np.bincount(codes[rows], hours[rows], len(names))
    found = []
    for code in np.argsort(-sums, kind="stable")[: most[0]].tolist():
        if sums[code] <= 0:
            break
        branch: dict[str, Any] = {"name": names[code] or "(unknown)", "value": float(sums[code])}
        if inner:
            branch["children"] = _branches(rows[codes[rows] == code], hours, inner, most[1:])
        found.append(branch)
    rest = float(sums.sum()) - sum(branch["value"] for branch in found)
    return [*found, {"name": "others", "value": rest}] if rest > 1e-9 and found else found


def _bytes(power: int) -> str:
    from math import ldexp

    size = ldexp(1.0, power) if power >= 0 else 0.0
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size /= 1024
    return f"{size:g} TiB"


def _week(day: str) -> str:
    year, week, _ = date.fromisoformat(day[:10]).isocalendar()
    return f"{year}-W{week:02d}"


def _outliers(table: pa.Table, rows: _Rows) -> list[Outlier]:
    """Jobs whose last recording is slower than their earlier ones, those that cost most hours first."""
    jobs, names = text_codes(table.column("job"))
    made, steps = np.asarray(table.column("made").to_pylist()), rows["step_ms"]
    history: dict[int, list[int]] = defaultdict(list)
    for row in np.lexsort((np.arange(len(made)), made)).tolist():
        if names[jobs[row]] and made[row]:
            history[int(jobs[row])].append(row)
    slow: list[tuple[int, int, int]] = []
    for job, own in history.items():
        *earlier, last = own
        if len(earlier) < MIN_HISTORY:
            continue
        middle = float(np.median(steps[earlier]))
        spread = 1.4826 * float(np.median(np.abs(steps[earlier] - middle)))
        if steps[last] > max(SLOWER * middle, middle + DEVIATIONS * spread):
            slow.append((job, min(earlier, key=lambda row: abs(steps[row] - middle)), last))
    if not slow:
        return []
    found = []
    for job, before, after in sorted(slow, key=lambda one: -rows.hours[one[2]])[:MAX_OUTLIERS]:
        old, new = (_report(table, row) for row in (before, after))
        change = compare_steps(old, new)
        grew = [(f"{row.name}: device", row.device_ms[1] - row.device_ms[0]) for row in change.by_family]
        grew += [(f"idle: {row.what}", row.change_ms) for row in change.idle]
        why = [f"{name} +{ms:.3g} ms" for name, ms in sorted(grew, key=lambda pair: -pair[1])[:3] if ms > 0]
        found.append(
            Outlier(
                names[job], new.source, old.source, (old.step_ms, new.step_ms),
                new.step_ms / old.step_ms - 1, float(rows.hours[after]), why,
            )
        )  # fmt: skip
    return sorted(found, key=lambda row: -(row.hours * row.slower))


def _report(table: pa.Table, row: int) -> StepReport:
    """What of a recording's report is needed to say what grew."""
    families: dict[str, TimeRow] = {}
    for group in table.column("kernels")[row].as_py():
        into = families.setdefault(group["family"], TimeRow(group["family"], 0.0, 0.0, 0, 0.0))
        into.device_ms, into.count = into.device_ms + group["ms"], into.count + group["count"]
    return StepReport(
        source=table.column("name")[row].as_py(),
        step_ms=table.column("step_ms")[row].as_py(),
        by_family=list(families.values()),
        idle_causes={idle["name"]: idle["ms"] for idle in table.column("idle")[row].as_py()},
    )
