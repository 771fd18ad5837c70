"""Raw measurements of collectives, in ``raw/fabric.jsonl.gz``.

``{"run": ...}`` begins a run, and says on what machine and when. A line for each collective follows: its kind, the
ranks and nodes that took part, its bytes, and its microseconds, once for each repeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from foretrace.platform.measurements.journal import append, read_entries

FABRIC_FILE = "fabric.jsonl.gz"
WORK = "work"
"""A kind that is no collective: time of the same work on each of so many ranks at once. Its bytes are those of an
all_reduce that goes on meanwhile, 0 where there is none."""
OVERLAPPED = "beside work"
"""A kind that is no collective: time of that all_reduce, without the work and during it."""


class TimedCollective(NamedTuple):
    """One collective among some ranks on some nodes, and its times."""

    kind: str
    """As in `foretrace.graph.Collective`, and so are the bytes; or `WORK`, or `OVERLAPPED`."""
    ranks: int
    nodes: int
    nbytes: int
    us: tuple[float, ...]


@dataclass
class FabricRun:
    """The collectives of one calibration or of one log."""

    machine: dict[str, Any]
    """On what machine, when, and as ``provenance`` how they were measured."""
    collectives: list[TimedCollective] = field(default_factory=list)


def begin_run(path: Path, machine: dict[str, Any]) -> None:
    """Write on what machine the collectives that follow are measured."""
    append(path, [{"run": machine}])


def add_collectives(path: Path, collectives: Iterable[TimedCollective]) -> None:
    """Append collectives to the latest run."""
    append(path, [collective._asdict() for collective in collectives])


def read_fabric_runs(path: Path) -> list[FabricRun]:
    """The runs of a file, in order."""
    runs: list[FabricRun] = []

    def add(line: dict[str, Any]) -> None:
        if "run" in line:
            runs.append(FabricRun(dict(line["run"])))
        else:
            runs[-1].collectives.append(_collective(**line))

    read_entries(path, "no measurement of a fabric", add)
    return runs


def _collective(kind: Any, ranks: Any, nodes: Any, nbytes: Any, us: Any) -> TimedCollective:
    return TimedCollective(str(kind), int(ranks), int(nodes), int(nbytes), tuple(float(one) for one in us))
