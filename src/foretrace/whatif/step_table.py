"""Tables of step times, published or of one's own, against forecasts; and the software stack that fits them best."""

from __future__ import annotations

import csv
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from foretrace.analysis.report import StepReport
from foretrace.api import read
from foretrace.errors import ForetraceError
from foretrace.files import read_bounded, read_error
from foretrace.graph import Job
from foretrace.platform.platform import Platform
from foretrace.platform.power import with_power_limit
from foretrace.platform.registry import load_platform
from foretrace.platform.stack import FACTORS, NONE, P90, Stack, named_stack
from foretrace.prediction.predict import step_figures
from foretrace.prediction.target import PredictionOptions, predict_on, with_fabric
from foretrace.whatif.changes import EditedJob, JobChanges
from foretrace.whatif.grammar import Change, read_changes, read_parallel

NEEDED = ("model", "gpu", "ms")
OPTIONAL = ("parallel", "set", "fabric", "gpus_per_node", "power_limit")
MAX_TABLE_BYTES = 16 << 20
"""No table of step times that someone measured is larger."""
PROBE = 0.8
"""Factor by which each constant is changed to see what a step depends on."""
PULL = 0.1
"""Weight of a constant's logarithm beside the errors: what a table does not show stays at one."""
LIMITS = 0.25, 2.0
"""Constants beyond these are no stack."""
ROUNDS = 2
"""Steps of the fit: the second corrects what the first took for straight."""
DEGREES = ("tensor", "pipeline", "context", "data", "experts")


@dataclass(frozen=True)
class TableRow:
    """A row of a table: a model as `foretrace predict` takes it, how ranks share it, where, and the measured step."""

    model: str
    gpu: str
    ms: float
    parallel: str = ""
    set: str = ""
    """Changes of the step, as of `foretrace whatif --set`, separated by semicolons."""
    fabric: str = ""
    gpus_per_node: int | None = None
    power_limit: float | None = None

    @property
    def configuration(self) -> str:
        """GPU and degrees of parallelism, by which errors are summed up."""
        options = dict(word.partition("=")[::2] for word in self.parallel.split(",") if word)
        degrees = [f"{name}={options[name]}" for name in DEGREES if name in options and name != "data"]
        return " ".join([self.gpu, *degrees]) if degrees else f"{self.gpu} data"

    def changes(self) -> list[Change]:
        """Those of the step, and how ranks share it; raises where they contradict each other."""
        found = read_changes(text.strip() for text in self.set.split(";") if text.strip())
        found += read_parallel(self.parallel) if self.parallel else []
        JobChanges.of(found)
        return found

    def platform(self) -> Platform:
        """Where it was measured."""
        found = load_platform(self.gpu, fabric=self.fabric or None)
        return found if self.power_limit is None else with_power_limit(found, self.power_limit)


@dataclass(frozen=True)
class CheckedRow:
    """A row with its forecast."""

    row: TableRow
    predicted_ms: float
    low_ms: float
    high_ms: float
    fitted: bool
    """Whether the stack was fitted on it."""
    stack: str | None = None
    """The stack that its forecast was made with."""
    memory_bytes: int | None = None
    """Allocated on the fullest rank, as predicted."""
    reserved_bytes: int | None = None
    """Reserved there by PyTorch's allocator."""

    @property
    def off(self) -> float:
        """Error of the forecast, as a share of the measured time."""
        return self.predicted_ms / self.row.ms - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the range."""
        return self.low_ms <= self.row.ms <= self.high_ms


@dataclass
class TableCheck:
    """Forecasts of a table's rows, and the stack that they were made with."""

    source: str
    rows: list[CheckedRow]
    stack: Stack | None = None
    """The fitted one, or the one that was named; None where each row has that of its GPU."""
    notes: list[str] = field(default_factory=list)

    @property
    def scored(self) -> list[CheckedRow]:
        """The rows that count: those that nothing was fitted on, where there are some."""
        return [one for one in self.rows if not one.fitted] or self.rows

    def summary(self, rows: Sequence[CheckedRow]) -> dict[str, float]:
        """Errors of some rows."""
        off = [one.off for one in rows]
        return {
            "rows": len(rows),
            "mean_error": sum(map(abs, off)) / len(off),
            "bias": math.exp(sum(map(math.log1p, off)) / len(off)) - 1,
            "worst": max(off, key=abs),
            "inside": sum(one.inside for one in rows) / len(rows),
        }

    def by_configuration(self) -> dict[str, dict[str, float]]:
        """Errors by GPU and degrees of parallelism."""
        names = dict.fromkeys(one.row.configuration for one in self.scored)
        return {name: self.summary([one for one in self.scored if one.row.configuration == name]) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """The fields of its JSON."""
        return {
            "source": self.source,
            "stack": asdict(self.stack) if self.stack else None,
            "summary": self.summary(self.scored),
            "by_configuration": self.by_configuration(),
            "rows": [
                {**asdict(one.row), **{k: v for k, v in asdict(one).items() if k != "row"}, "off": one.off,
                 "inside": one.inside}
                for one in self.rows
            ],
            "notes": self.notes,
        }  # fmt: skip


def read_table(path: Path) -> list[TableRow]:
    """The rows of a CSV file; an error names the line that is wrong."""
    try:
        text = read_bounded(path, MAX_TABLE_BYTES, "a table of step times").decode("utf-8-sig")
        lines = list(csv.DictReader(io.StringIO(text, newline="")))
    except OSError as error:
        raise read_error(path, error) from None
    except (EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise ForetraceError(f"{path} can't be read ({error})", "Give a CSV file.") from None
    known = {*NEEDED, *OPTIONAL}
    found = [name for name in (lines[0] if lines else {}) if name]
    lacking = [name for name in NEEDED if name not in found]
    if not lines or lacking or not known.issuperset(found):
        odd = ", ".join(name for name in found if name not in known)
        what = f"lacks {', '.join(lacking)}" if lacking else f"has columns that mean nothing: {odd}"
        raise ForetraceError(
            f"{path} {what if lines else 'has no rows'}",
            f"Its columns are {', '.join(NEEDED)}, and may be {', '.join(OPTIONAL)}.",
        )
    return [_row(path, number, line) for number, line in enumerate(lines, 2)]


def _row(path: Path, number: int, line: dict[str, str | None]) -> TableRow:
    if None in line:
        raise ForetraceError(
            f"{path}, line {number} has more cells than there are columns",
            'Quote texts with commas: "tensor=4,data=2".',
        )
    texts = {name: (value or "").strip() for name, value in line.items()}
    try:
        ms = float(texts.pop("ms"))
        nodes, watts = (texts.pop(name, "") for name in ("gpus_per_node", "power_limit"))
        row = TableRow(
            ms=ms,
            gpus_per_node=int(nodes) if nodes else None,
            power_limit=float(watts) if watts else None,
            **texts,
        )
    except ValueError as error:
        raise ForetraceError(f"{path}, line {number}: {error}", "Write numbers.") from None
    if not (row.model and row.gpu):
        raise ForetraceError(f"{path}, line {number} has no model or no GPU", "Fill them in.")
    if not 0 < row.ms < math.inf:
        raise ForetraceError(f"{path}, line {number}: no step takes {row.ms:g} ms", "Write the measured milliseconds.")
    return row


@contextmanager
def _row_named(path: str | Path, place: int, row: TableRow) -> Iterator[None]:
    """An error of a row says which one it is."""
    try:
        yield
    except ForetraceError as error:
        where = f"{path}, row {place + 1} ({' '.join(filter(None, [row.model, row.parallel, row.gpu]))})"
        raise ForetraceError(f"{where}: {error.what}", error.advice) from None


class TableStep:
    """A row's job on its platform: read or sketched once, and predicted with one stack after the other."""

    def __init__(self, row: TableRow) -> None:
        self.row = row
        changes, platform = row.changes(), row.platform()  # what contradicts itself is refused before it is sketched
        self.job: Job = EditedJob(read(row.model, platform.device.kind)).by(changes)
        self.platform, _ = with_fabric(platform, self.job, row.gpus_per_node)

    def ms(self, stack: Stack | None) -> float:
        """The step by itself: frameworks read the loss or the norm of the gradients, and so wait for its end."""
        platform = stack.applied(self.platform) if stack else self.platform
        return step_figures(self.job, platform, self.row.gpus_per_node)[0].step_ms

    def report(self, stack: Stack | str | Path | None) -> StepReport:
        """The forecast with a stack, as `foretrace.predict` makes it."""
        options = PredictionOptions(kernels="model", gpus_per_node=self.row.gpus_per_node, stack=stack or NONE)
        return predict_on(self.job, self.platform, options)

    def checked(self, stack: Stack | str | Path | None, fitted: bool) -> CheckedRow:
        """The row with its forecast."""
        report = self.report(stack)
        return CheckedRow(
            self.row,
            report.step_ms,
            report.low_ms,
            report.high_ms,
            fitted,
            report.stack,
            report.peak_memory_bytes,
            report.reserved_memory_bytes,
        )


def check_table(
    path: str | Path,
    stack: Stack | str | Path = "auto",
    fit: float = 0.0,
    name: str = "fitted",
    on_row: Callable[[str], None] = lambda what: None,
) -> TableCheck:
    """Hold a table of step times against forecasts; and fit a stack on a share of its rows, where that is asked for.

    Parameters
    ----------
    path
        A CSV file with the columns ``model`` (what `foretrace predict` takes: a script, a command, a recording),
        ``gpu`` and ``ms``; and perhaps ``parallel``, ``set``, ``fabric`` and ``gpus_per_node``.
    stack
        As in `foretrace.predict`. A fit starts from ``"none"``.
    fit
        The share of the rows that a stack is fitted on, every so-manyth row; the others are scored. 1 fits on all.
    name
        Of the fitted stack.
    on_row
        Called with what is done.
    """
    if not 0.0 <= fit <= 1.0:
        raise ForetraceError(f"{fit} is no share of the rows", "Give a number from 0 to 1, for instance --fit 0.33.")
    rows = read_table(Path(path))
    chosen = {int(place / fit) for place in range(math.ceil(len(rows) * fit))} if fit else set()
    for place, row in enumerate(rows):
        with _row_named(path, place, row):
            row.changes()  # a mistake in the last row shows before the first one is sketched
            row.platform()
    steps = []
    for place, row in enumerate(rows):
        on_row(f"row {place + 1} of {len(rows)}: {row.model} {row.parallel}")
        with _row_named(path, place, row):
            steps.append(TableStep(row))
    given = [step for place, step in enumerate(steps) if place in chosen]
    found = (
        fit_stack(given, name, f"fitted on {len(given)} of {len(rows)} rows of {Path(path).name}", on_row)
        if given
        else None
    )
    own = found or named_stack(stack)
    checked = []
    for place, step in enumerate(steps):
        on_row(f"forecast {place + 1} of {len(rows)}")
        checked.append(step.checked(own, place in chosen))
    return TableCheck(str(path), checked, own if isinstance(own, Stack) else None)


def fit_stack(
    steps: Sequence[TableStep],
    name: str,
    provenance: str,
    on_row: Callable[[str], None] = lambda what: None,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> Stack:
    """The factors that bring forecasts closest to measured steps, in logarithms, with a weak pull to one.

    What a step depends on is seen by changing one factor after the other; factors are few, so that few rows will do.
    Where there are pipeline stages, whether hosts wait for what these receive is tried both ways. ``known`` are fields
    of the stack that are not fitted.
    """
    on_row(f"fitting on {len(steps)} rows")
    staged = any(one.kind == "recv" for step in steps for graph in step.job.graphs for one in graph.collectives)
    devices = tuple(dict.fromkeys(step.platform.device.name for step in steps))
    start = replace(Stack(name, provenance, devices=devices), **known)
    starts = [replace(start, blocking_stages=on) for on in ((False, True) if staged else (False,))]
    return min((_fitted(steps, start) for start in starts), key=lambda stack: stack.spread)


def _fitted(steps: Sequence[TableStep], start: Stack) -> Stack:
    """The stack with its factors fitted."""
    measured = np.log([step.row.ms for step in steps])
    base = np.log([step.ms(start) for step in steps])
    probes: list[dict[str, Any]] = [{factor: PROBE} for factor in FACTORS]
    slopes = np.stack([
        (np.log([step.ms(replace(start, **probe)) for step in steps]) - base) / math.log(PROBE)
        for probe in probes
    ], axis=1)  # fmt: skip
    pull = PULL * math.sqrt(len(steps))
    logs, current, stack = np.zeros(len(FACTORS)), base, start
    for _ in range(ROUNDS):
        left = np.concatenate([slopes, pull * np.eye(len(FACTORS))])
        right = np.concatenate([measured - current, -pull * logs])
        logs = np.clip(logs + np.linalg.lstsq(left, right, rcond=None)[0], *np.log(LIMITS))
        values: dict[str, Any] = {factor: float(round(math.exp(one), 4)) for factor, one in zip(FACTORS, logs)}
        stack = replace(start, **values)
        current = np.log([step.ms(stack) for step in steps])
    residual = measured - current
    freedom = max(1, len(steps) - len(FACTORS))
    spread = max(math.sqrt(float(residual @ residual) / freedom), float(np.abs(residual).max()) / P90 / 2)
    return replace(stack, spread=round(spread, 4))
