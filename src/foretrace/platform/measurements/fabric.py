"""What collectives were seen to take, kept as it was measured.

``{"run": ...}`` opens a run: on what and when. A line per collective follows: its kind, the ranks and nodes it was
among, its bytes, and its microseconds, once for every time it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from foretrace.graph import ForetraceError
from foretrace.graph.codec import DAMAGE
from foretrace.platform.journal import append, lines

FABRIC_FILE = "fabric.jsonl.gz"
WORK = "work"
"""So many ranks do the same work at once, and each says what it took: while they exchange nothing, or sum up so many
bytes meanwhile."""
BESIDE = "beside work"
"""What this sum took, alone and beside that work."""


class Exchange(NamedTuple):
    """One collective among so many ranks on so many nodes, and how long it was seen to take."""

    kind: str
    """As in `foretrace.graph.Collective`, and so are the bytes."""
    ranks: int
    nodes: int
    nbytes: int
    us: tuple[float, ...]


@dataclass
class FabricRun:
    """All that was measured at once."""

    machine: dict[str, Any]
    """On what, when, and under ``provenance`` in words how."""
    exchanges: list[Exchange] = field(default_factory=list)


def open_run(path: Path, machine: dict[str, Any]) -> None:
    """Say on what the exchanges that follow are measured."""
    append(path, [{"run": machine}])


def add_exchanges(path: Path, exchanges: Iterable[Exchange]) -> None:
    """Add what was measured to the run that was opened last."""
    append(path, [exchange._asdict() for exchange in exchanges])


def read_runs(path: Path) -> list[FabricRun]:
    """The runs of a file, in order.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / FABRIC_FILE
    >>> open_run(path, {"backend": "gloo"}); add_exchanges(path, [Exchange("all_reduce", 2, 1, 1024, (80.0, 90.0))])
    >>> run, = read_runs(path)
    >>> run.machine, run.exchanges
    ({'backend': 'gloo'}, [Exchange(kind='all_reduce', ranks=2, nodes=1, nbytes=1024, us=(80.0, 90.0))])
    """
    runs: list[FabricRun] = []
    for number, text in enumerate(lines(path), 1):
        try:
            line = json.loads(text)
            if "run" in line:
                runs.append(FabricRun(dict(line["run"])))
            else:
                runs[-1].exchanges.append(_exchange(**line))
        except DAMAGE as error:
            raise ForetraceError(
                f"{path}: line {number} is no measurement of a fabric ({error})", "Restore the file, or measure again."
            ) from None
    return runs


def _exchange(kind: Any, ranks: Any, nodes: Any, nbytes: Any, us: Any) -> Exchange:
    return Exchange(str(kind), int(ranks), int(nodes), int(nbytes), tuple(float(one) for one in us))
