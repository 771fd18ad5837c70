"""A performance gate: the predicted step of a script against figures that a file in its repository holds.

Nothing runs and nothing is timed, so that the same script gives the same figures on every machine: a commit that makes
the step slower fails, and no other.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import foretrace
from foretrace._progress import OnProgress
from foretrace.analysis.compare import exact
from foretrace.analysis.report import NotebookDocument, StepReport, plain
from foretrace.api import predict, script_of
from foretrace.errors import ForetraceError
from foretrace.graph.op import COMPILED_REGION
from foretrace.graph.operators import SYNCHRONIZE, waits_for_device
from foretrace.output import BASELINE, open_output

FORMAT, VERSION = "foretrace baseline", 1
FIGURES = (
    "step_ms", "step_ms_back_to_back", "device_active_ms", "kernels", "launches", "syncs", "compiled_programs",
    "peak_memory_bytes", "reserved_memory_bytes",
)  # fmt: skip
"""What is compared; less is better. Each graph break makes one more compiled program."""
DIGITS = 6
"""Significant digits that are kept: the last ones of a sum may depend on the processor."""
MAX_NUMBER = 1e18
"""No count of bytes or kernels is larger: a file with such a number is damaged."""
NOTHING_US = 0.05
"""A change of a call's time below this is none."""


@dataclass
class CallRow:
    """Calls of one op, from one line of the script, in one kind of module."""

    op: str
    phase: str
    module: str
    """With * for numbers: blocks that repeat are one."""
    code: str
    """The text of the line, by which it is known when other lines are added above it; empty where unknown."""
    count: int
    device_us: float
    host_us: float
    line: str = ""
    """File and number."""

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from others of its step."""
        return self.op, self.phase, self.module, self.code


@dataclass
class Baseline:
    """Figures of a step, and its calls, as the file holds them."""

    format: str = FORMAT
    version: int = VERSION
    source: str = ""
    platform: str = ""
    foretrace: str = foretrace.__version__
    torch: str = ""
    figures: dict[str, int | float] = field(default_factory=dict)
    calls: list[CallRow] = field(default_factory=list)

    @classmethod
    def of(
        cls, report: StepReport, source: str, platform: str, folder: Path | None = None, torch: str = ""
    ) -> Baseline:
        """The figures of a predicted step, whose script lies in a folder."""
        return cls(
            source=source, platform=platform, torch=torch, figures=figures_of(report), calls=calls_of(report, folder)
        )

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read the file; one of another kind or version is refused."""
        if not path.is_file():
            raise ForetraceError(f"there is no baseline {path}", "Write it: the same command with --update.")
        try:
            text = path.read_text(encoding="utf-8")
            data = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_number)
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise ForetraceError(f"{path} is no baseline", "Write one to another file with --update.")
            if data.get("version") != VERSION:
                raise ForetraceError(
                    f"{path} is a baseline of version {data.get('version')}, this Foretrace reads {VERSION}",
                    "Write it anew with --update.",
                )
            return msgspec.convert(data, cls)
        except (OSError, ValueError, RecursionError) as error:
            raise ForetraceError(f"{path} can't be read ({error})", "Write it anew with --update.") from None

    def write(self, path: Path) -> None:
        """Write the file; the same step gives the same bytes."""
        with open_output(path, BASELINE) as file:
            file.write((json.dumps(exact(self), indent=1) + "\n").encode())

    def check(self, path: Path, now: Baseline) -> None:
        """Refuse to compare with another script, platform or version of Foretrace."""
        for what, before, after in (
            ("of the script", self.source, now.source),
            ("for the platform", self.platform, now.platform),
            ("by Foretrace", self.foretrace, now.foretrace),
        ):
            if before != after:
                raise ForetraceError(
                    f"{path} was made {what} {before}, not {after}: their figures can't be compared",
                    "Name the baseline that belongs to it, or write it anew with --update.",
                )
        if missing := [name for name in FIGURES if name in now.figures and name not in self.figures]:
            raise ForetraceError(f"{path} has no {', '.join(missing)} to compare with", "Write it anew with --update.")


@dataclass
class FigureChange:
    """One figure before and after."""

    name: str
    before: float
    after: float
    worse: bool
    """Whether it grew by more than is allowed."""

    @property
    def change(self) -> float | None:
        """By how much it grew, as a share; None where it was zero."""
        return self.after / self.before - 1 if self.before else None


@dataclass
class CallChange:
    """Calls that changed, from the baseline to now."""

    op: str
    phase: str
    module: str
    line: str
    """Where they come from now; where they came from, if they are gone."""
    code: str
    count: tuple[int, int]
    device_us: tuple[float, float]
    host_us: tuple[float, float]

    @property
    def change_us(self) -> float:
        """Device and host time added up, after less before."""
        return self.device_us[1] - self.device_us[0] + self.host_us[1] - self.host_us[0]


@dataclass
class Gate(NotebookDocument):
    """A step against its baseline."""

    source: str
    platform: str
    fail_over: float
    figures: list[FigureChange]
    calls: list[CallChange] = field(default_factory=list)
    """Those that changed, the largest slow-down first."""
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing got worse by more than is allowed."""
        return not any(figure.worse for figure in self.figures)

    @property
    def modules(self) -> dict[str, float]:
        """Microseconds that were added, device and host, by module, the largest first."""
        added: dict[str, float] = defaultdict(float)
        for call in self.calls:
            added[call.module] += call.change_us
        return dict(sorted(added.items(), key=lambda item: (-abs(item[1]), item[0])))

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``foretrace gate --json``."""
        fields: dict[str, Any] = plain(
            {name: getattr(self, name) for name in ("source", "platform", "fail_over", "figures", "calls", "notes")}
        )
        return {**fields, "passed": self.passed, "modules": plain(self.modules)}


def predicted_baseline(
    what: str,
    on: str,
    world: int | None = None,
    fabric: str | None = None,
    gpus_per_node: int | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> Baseline:
    """The figures of a script as it is now."""
    script = script_of(what)
    report = predict(
        what, on, kernels="model", world=world, fabric=fabric, gpus_per_node=gpus_per_node, on_progress=on_progress
    )
    folder = script.path.parent if script else None
    ranks = [f"{world} ranks"] if world else []
    joined = [*ranks, *([fabric] if fabric else []), *([f"{gpus_per_node} GPUs per node"] if gpus_per_node else [])]
    platform = ", ".join([on, *joined])
    return Baseline.of(report, name_of(what), platform, folder, version("torch") if script else "")


def figures_of(report: StepReport) -> dict[str, float]:
    """What a gate compares of a predicted step; what is not known is left out."""
    workings = report.workings
    assert workings is not None  # a prediction has them
    graphs = workings.job.graphs if workings.job else workings.graphs
    programs = sum(op.name == COMPILED_REGION for op in graphs[0].ops)
    launch = report.overheads.get("T4")
    found: dict[str, float | None] = {
        "step_ms": report.step_ms,
        "step_ms_back_to_back": report.step_ms_back_to_back,
        "device_active_ms": report.device_active_ms,
        "kernels": report.kernels,
        "launches": launch.count if launch else 0,
        "syncs": sum(op.name in SYNCHRONIZE or waits_for_device(op) for op in graphs[0].ops),
        "compiled_programs": programs,
        "peak_memory_bytes": report.peak_memory_bytes,
        "reserved_memory_bytes": report.reserved_memory_bytes,
    }
    return {name: _rounded(value) for name, value in found.items() if value is not None}


def calls_of(report: StepReport, folder: Path | None = None) -> list[CallRow]:
    """Calls of a predicted step by op, phase, module and line of the script, with their times."""
    workings = report.workings
    assert workings is not None
    texts = _Lines(folder)
    rows: dict[tuple[str, ...], CallRow] = {}
    for graph in workings.graphs[:1]:
        device = np.zeros(len(graph.ops) + 1)
        np.add.at(device, graph.kernels.op, graph.kernels.end - graph.kernels.start)
        for place, op in enumerate(graph.ops):
            host = op.end_us - op.start_us if np.isfinite(op.end_us) else 0.0
            module = re.sub(r"\d+", "*", op.module)
            row = CallRow(op.name, op.phase, module, texts[op.line], 1, device[place], host, op.line)
            if (known := rows.get(row.key)) is None:
                rows[row.key] = row
            else:
                known.count += 1
                known.device_us += row.device_us
                known.host_us += row.host_us
    for row in rows.values():
        row.device_us, row.host_us = _rounded(row.device_us), _rounded(row.host_us)
    return sorted(rows.values(), key=lambda row: row.key)


def compare(before: Baseline, now: Baseline, fail_over: float) -> Gate:
    """A step against its baseline: figures that grew by more than a share fail, and the calls say why.

    >>> def step(ms): return Baseline(source="train.py", platform="h200", figures={"step_ms": ms})
    >>> compare(step(10.0), step(10.3), 0.02).passed, compare(step(10.0), step(10.1), 0.02).passed
    (False, True)
    """
    figures = [
        FigureChange(name, before.figures[name], now.figures[name], _is_worse(name, before, now, fail_over))
        for name in FIGURES
        if name in before.figures and name in now.figures
    ]
    notes = []
    if before.torch != now.torch:
        notes.append(f"the baseline was made with PyTorch {before.torch}, this is {now.torch}: its calls may differ")
    same = all(figure.before == figure.after for figure in figures)
    calls = [] if same else _changed(before.calls, now.calls)
    return Gate(now.source, now.platform, fail_over, figures, calls, notes)


def _number(text: str) -> int | float:
    """A number of a baseline: finite, and no larger than a count of bytes can be."""
    value = float(text)
    if not abs(value) < MAX_NUMBER:
        raise ValueError(f"{text[:20]} is no figure of a step")
    return int(text) if text.lstrip("-").isdecimal() else value


def _is_worse(name: str, before: Baseline, now: Baseline, fail_over: float) -> bool:
    return now.figures[name] > before.figures[name] * (1 + fail_over)


def _changed(before: Iterable[CallRow], now: Iterable[CallRow]) -> list[CallChange]:
    """Calls whose number or time changed, by op, phase and module; with the lines that they come from.

    Lines are compared by their text, and only to say where something comes from: renaming a variable changes nothing.
    """
    had, has = _grouped(before), _grouped(now)
    found = []
    for key in [*has, *(key for key in had if key not in has)]:
        old, new = had.get(key, []), has.get(key, [])
        shown = _cause(old, new)
        change = CallChange(
            *key,
            line=shown.line,
            code=shown.code,
            count=(sum(row.count for row in old), sum(row.count for row in new)),
            device_us=(sum(row.device_us for row in old), sum(row.device_us for row in new)),
            host_us=(sum(row.host_us for row in old), sum(row.host_us for row in new)),
        )
        if change.count[0] != change.count[1] or abs(change.change_us) > NOTHING_US:
            found.append(change)
    return sorted(found, key=lambda change: (-change.change_us, change.op, change.line, change.module))


def _grouped(rows: Iterable[CallRow]) -> dict[tuple[str, str, str], list[CallRow]]:
    found: dict[tuple[str, str, str], list[CallRow]] = {}
    for row in rows:
        found.setdefault((row.op, row.phase, row.module), []).append(row)
    return found


def _cause(old: list[CallRow], new: list[CallRow]) -> CallRow:
    """The row of some calls whose line explains most of their change: one that is new, or made more of them."""
    counts = {row.code: row.count for row in old}
    return max(new or old, key=lambda row: (row.count - counts.get(row.code, 0), row.device_us + row.host_us))


class _Lines:
    """Texts of lines, ``train.py:42``, of the files in a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: dict[str, list[str]] = {}

    def __getitem__(self, line: str) -> str:
        name, _, number = line.rpartition(":")
        if self._folder is None or not name or not number.isdecimal():
            return ""
        if name not in self._files:
            path = self._folder / Path(name).name
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            self._files[name] = text.splitlines()
        lines = self._files[name]
        return lines[int(number) - 1].partition("#")[0].strip() if 0 < int(number) <= len(lines) else ""


def _rounded(value: float) -> float:
    """A figure to the digits that are kept; a whole number as it is."""
    return int(value) if isinstance(value, (int, np.integer)) else float(f"{float(value):.{DIGITS}g}")


def parse_share(text: str) -> float:
    """A share as ``2%`` or ``0.02``.

    >>> parse_share("2%"), parse_share("0.005")
    (0.02, 0.005)
    """
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if rest or not 0 <= share < 10:
        raise ForetraceError(f"{text!r} is no share", "Write it as 2%, or as 0.02.")
    return share


def name_of(what: str) -> str:
    """A script or command without the folders that differ between machines.

    >>> name_of("/home/me/train.py:build"), name_of("python ./train.py --batch 8")
    ('train.py:build', 'python train.py --batch 8')
    """
    return " ".join(word.rpartition("/")[2] if ".py" in word else word for word in what.split(" "))
