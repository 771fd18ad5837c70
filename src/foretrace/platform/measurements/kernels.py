"""Raw measurements of kernels: a file ``raw/NAME.jsonl.gz`` for each kernel family, appended to batch by batch.

``{"from": 0, "to": 256, ...}`` opens a batch: the numbers of its cases, on what machine and when. Once it is measured,
``{"kernels": [...], "reference_us": ...}`` names its kernels, and a line per case follows: the op as
`foretrace.graph.codec` writes it, with ``cold`` and ``warm``, each a list of repeats, each a list of [kernel,
microseconds].
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretrace.files import gc_paused
from foretrace.graph import Indices, Names
from foretrace.graph.codec import op_of, to_lines
from foretrace.platform.measurements.cases import Case, Ids
from foretrace.platform.measurements.journal import append, read_entries, read_lines

SUFFIX = ".jsonl.gz"

Repeat = list[tuple[str, float]]
"""One run of a case: the names of its kernels, in order, with their microseconds."""
CALL = "call"
"""Stands for the name of a kernel where a CPU did the whole call."""


@dataclass(slots=True)
class Measurement:
    """A case and the times of its kernels: cold, with other data in the L2 cache, and warm, right after a run of it.

    >>> from foretrace.graph import Op
    >>> both = Measurement(Case(Op("aten::relu")), cold=[[("k", 4.0)], [("k", 4.4)]], warm=[[("k", 3.0)]])
    >>> both.us("cold"), round(both.spread("cold"), 3), both.us("warm")
    (4.2, 0.095, 3.0)
    """

    case: Case
    cold: list[Repeat] = field(default_factory=list)
    warm: list[Repeat] = field(default_factory=list)
    indices: Indices | None = None
    """Statistics of the ids that were drawn."""
    error: str = ""
    """Why it could not be measured, where it could not."""

    @property
    def on_processor(self) -> bool:
        """Whether it was measured on a CPU, where the whole call is timed."""
        return bool(self.cold) and [name for name, _ in self.cold[0]] == [CALL]

    def us(self, state: str) -> float:
        """Median over repeats of the sum of its kernels, in the state ``cold`` or ``warm``."""
        return _median(self._totals(state))

    def spread(self, state: str) -> float:
        """Range of the repeats as a share of their median; of many, a tenth at either end is left out."""
        totals = sorted(self._totals(state))
        few = len(totals) // 10
        middle = _median(totals)
        return (totals[-1 - few] - totals[few]) / middle if middle else 0.0

    def _totals(self, state: str) -> list[float]:
        repeats: list[Repeat] = self.cold if state == "cold" else self.warm
        return [sum(us for _, us in repeat) for repeat in repeats]


def _median(times: list[float]) -> float:
    from statistics import median  # here, since it loads slowly: pricing needs no measurements

    return median(times)


@dataclass(slots=True)
class Batch:
    """Cases of a family that were measured in a row: which ones, on what machine, when."""

    first: int
    last: int
    machine: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    reference_us: float = 0.0
    """Time of the reference GEMM in this batch: it shows a device that slows down."""


def open_batch(path: Path, batch: Batch) -> None:
    """Write which cases are about to be measured: a batch that crashes the machine is not tried again."""
    append(path, [{"from": batch.first, "to": batch.last, **batch.machine}])


def close_batch(path: Path, batch: Batch) -> None:
    """Write the measurements of a batch."""
    names = Names()
    measured = [_line(measurement, names) for measurement in batch.measurements]
    append(path, [{"kernels": names.items, "reference_us": batch.reference_us}, *measured])


def read_batches(path: Path) -> list[Batch]:
    """The batches of a file, in order."""
    batches: list[Batch] = []
    names: list[str] = []

    def add(line: dict[str, Any]) -> None:
        if "op" in line:
            batches[-1].measurements.append(_measurement(line, names))
        elif "kernels" in line:
            names[:], batches[-1].reference_us = line["kernels"], line["reference_us"]
        else:
            batches.append(Batch(line.pop("from"), line.pop("to"), line))

    with gc_paused():
        read_entries(path, "not a measurement", add)
    return batches


def read_all(folder: Path, *families: str) -> list[Measurement]:
    """All measurements of some families in a folder ``raw/``."""
    return [
        one for family in families for batch in read_batches(folder / f"{family}{SUFFIX}") for one in batch.measurements
    ]


def read_openings(path: Path) -> list[Batch]:
    """The batches of a file without their measurements, much faster: all that a later run needs to go on."""
    openings = (json.loads(text) for text in read_lines(path) if text.startswith('{"from"'))
    return [Batch(opening.pop("from"), opening.pop("to"), opening) for opening in openings]


def _line(measurement: Measurement, names: Names) -> dict[str, Any]:
    case = measurement.case
    line: dict[str, Any] = json.loads(next(to_lines([case.op])))
    if case.ids:
        line["ids"] = [case.ids.count, case.ids.skew, case.ids.reuse, case.ids.distinct, case.ids.tables]
    for name in ("tf32", "pinned"):
        if getattr(case, name):
            line[name] = True
    if measurement.indices:
        found = measurement.indices
        line["indices"] = [found.rows, found.count, found.unique, found.bags, found.reuse]
    if measurement.error:
        line["error"] = measurement.error
    for state, repeats in (("cold", measurement.cold), ("warm", measurement.warm)):
        line[state] = [[[names.code(name), round(us, 3)] for name, us in repeat] for repeat in repeats]
    return line


def _measurement(line: dict[str, Any], names: list[str]) -> Measurement:
    ids = line.get("ids")
    found = line.get("indices")
    case = Case(
        op_of(line, []),
        Ids(ids[0], ids[1], tuple(ids[2]), *ids[3:]) if ids else None,
        line.get("tf32", False),
        line.get("pinned", False),
    )
    cold, warm = (
        [[(names[kernel], us) for kernel, us in repeat] for repeat in line[state]] for state in ("cold", "warm")
    )
    indices = None
    if found:
        rows, count, unique, bags, reuse = found
        indices = Indices(op=-1, rows=rows, count=count, unique=unique, bags=bags, reuse=tuple(reuse))
    return Measurement(case, cold, warm, indices, line.get("error", ""))
