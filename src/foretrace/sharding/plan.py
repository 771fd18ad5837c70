"""A plan: how each table is sharded, and which ranks hold its parts."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from foretrace.files import read_bounded
from foretrace.forecast.in_notebooks import InNotebooks
from foretrace.formats.output import PLAN, replaced
from foretrace.graph import ForetraceError
from foretrace.graph.codec import DAMAGE
from foretrace.sharding.options import KINDS, Ranks, Way, ways
from foretrace.sharding.tables import Table

if TYPE_CHECKING:
    from foretrace.sharding.costing import Estimate

VERSION = 1
MAX_PLAN_BYTES = 512 << 20
"""A million tables, each on a hundred ranks, take less."""


class Placement(NamedTuple):
    """How one table is sharded.

    >>> Placement("column_wise", (0, 3)).way
    Way(kind='column_wise', parts=2)
    """

    kind: str
    ranks: tuple[int, ...]
    """Those that hold its parts, in order."""

    @property
    def way(self) -> Way:
        """Without the ranks."""
        return Way(self.kind, len(self.ranks))


Plan = tuple[Placement, ...]
"""A placement for each table, in the order of the tables."""


def to_dict(plan: Plan, tables: Sequence[Table]) -> dict[str, Any]:
    """A plan in JSON's words, by the names of its tables."""
    return {table.name: {"kind": p.kind, "ranks": list(p.ranks)} for table, p in zip(tables, plan)}


def write_plan(plan: Plan, tables: Sequence[Table], ranks: Ranks, path: Path) -> None:
    """Write it to a file; a file that is there and holds no plan is left alone."""
    words = {"version": VERSION, "world": ranks.world, "batch": ranks.batch, "plan": to_dict(plan, tables)}
    with replaced(path, PLAN) as file:
        file.write((json.dumps(words, indent=1) + "\n").encode())


def read_plan(path: str | Path, tables: Sequence[Table], ranks: Ranks) -> Plan:
    """What `write_plan` wrote, for these tables and ranks.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "plan.json"
    >>> tables, plan = [Table("t", 9, 16)], (Placement("table_wise", (1,)),)
    >>> write_plan(plan, tables, Ranks(2), path); read_plan(path, tables, Ranks(2)) == plan
    True
    """
    try:
        words = json.loads(read_bounded(Path(path), MAX_PLAN_BYTES, "a plan"))["plan"]
        found = {name: Placement(str(p["kind"]), tuple(map(int, p["ranks"]))) for name, p in words.items()}
    except (OSError, EOFError, zlib.error, *DAMAGE) as error:
        raise ForetraceError(f"{path} is no plan ({error})", "`foretrace shard --out` writes one.") from None
    absent = [table.name for table in tables if table.name not in found]
    if absent:
        raise ForetraceError(f"{path} says nothing of table {absent[0]}", "It was made for other tables.")
    plan = tuple(found[table.name] for table in tables)
    for table, placement in zip(tables, plan):
        check_placement(table, placement, ranks)
    return plan


def check_placement(table: Table, placement: Placement, ranks: Ranks) -> None:
    """Refuse one that can't be."""
    if placement.kind not in KINDS:
        raise ForetraceError(f"table {table.name} is sharded {placement.kind!r}", f"Known are: {', '.join(KINDS)}.")
    outside = [rank for rank in placement.ranks if not 0 <= rank < ranks.world]
    if outside or not placement.ranks:
        raise ForetraceError(
            f"table {table.name} lies on rank {outside[0] if outside else 'none'}", f"There are {ranks.world} ranks."
        )
    free = KINDS[placement.kind].anywhere
    if placement.way not in ways(table, ranks) or not (free or placement.ranks in KINDS[placement.kind].where(ranks)):
        raise ForetraceError(
            f"table {table.name} can't be sharded {placement.kind} on {len(placement.ranks)} of {ranks.world} ranks",
            "Row-wise and data-parallel tables lie on all ranks, table-row-wise ones on a node, columns on 2, 4 or 8.",
        )


# --- was sharding.answer: What `foretrace shard` answers: the plan, what it takes and why, and how others compare.


class Simulated(NamedTuple):
    """Milliseconds of the whole step, one after the other: about, 10th and 90th percentile."""

    step_ms: float
    low_ms: float
    high_ms: float


@dataclass
class Sharding(InNotebooks):
    """A plan for tables on a platform. Words and units of `to_dict` are documented in docs/shard.md."""

    source: str
    platform: str
    fabric: str
    kernels: str
    tables: Sequence[Table]
    ranks: Ranks
    room: float
    """Bytes that each rank has for tables."""
    plan: Plan
    estimate: Estimate
    others: dict[str, Estimate]
    """What the classic heuristics' plans take."""
    dense_ms: float = 0.0
    seconds: float = 0.0
    gap: float | None = None
    """By how much the plan is longer than the shortest there is, by the sums that the search goes by; of few tables."""
    simulated: Simulated | None = None
    """The whole job, where the model is known."""
    notes: list[str] = field(default_factory=list)

    @property
    def step(self) -> Simulated:
        """The whole job's where there is one; else what was added up."""
        sums = self.estimate.step, self.estimate.low, self.estimate.high
        return self.simulated or Simulated(*(us / 1e3 for us in sums))

    @property
    def step_ms(self) -> float:
        """The step, about."""
        return self.step.step_ms

    def write(self, path: str | Path) -> None:
        """Write the plan to a file."""
        write_plan(self.plan, self.tables, self.ranks, Path(path))

    def to_dict(self) -> dict[str, Any]:
        """All of it, in words."""
        return {
            "source": self.source,
            "platform": self.platform,
            "fabric": self.fabric,
            "kernels": self.kernels,
            "world": self.ranks.world,
            "ranks_per_node": self.ranks.per_node,
            "batch": self.ranks.batch,
            "sent_as": self.ranks.sent_as,
            "tables": len(self.tables),
            "table_bytes": sum(table.nbytes for table in self.tables),
            "room_bytes": self.room,
            "step_ms": self.step.step_ms,
            "low_ms": self.step.low_ms,
            "high_ms": self.step.high_ms,
            "summed_ms": self.estimate.step / 1e3,
            "lookup_ms": self.estimate.slowest / 1e3,
            "exchange_ms": {what: us / 1e3 for what, us in self.estimate.exchanged.items()},
            "dense_ms": self.dense_ms,
            "limits": self.limits(),
            "plan": to_dict(self.plan, self.tables),
            "ways": dict(Counter(placement.kind for placement in self.plan)),
            "ranks": [self._rank(rank) for rank in range(self.ranks.world)],
            "alternatives": self._alternatives(),
            "seconds": self.seconds,
            "gap": self.gap,
            "notes": self.notes,
        }

    def limits(self) -> dict[str, Any]:
        """What holds the step up most, how even the ranks' lookups are, and how full the fullest rank is."""
        lookups, exchange = self.estimate.slowest, sum(self.estimate.exchanged.values())
        parts = {"lookups": lookups, "exchange": exchange, "dense": self.dense_ms * 1e3}
        what = max(parts, key=lambda name: parts[name])
        return {
            "what": what,
            "share": min(1.0, parts[what] / (self.step_ms * 1e3)) if self.step_ms else 0.0,
            "slowest_rank": int(self.estimate.lookups.argmax()),
            "balance": float(self.estimate.lookups.mean()) / lookups if lookups else 1.0,
            "fullest_rank": int(self.estimate.memory.argmax()),
            "memory_share": float(self.estimate.memory.max()) / self.room,
        }

    def _rank(self, rank: int) -> dict[str, Any]:
        return {
            "rank": rank,
            "tables": sum(rank in placement.ranks for placement in self.plan),
            "forward_ms": float(self.estimate.forward[rank]) / 1e3,
            "backward_ms": float(self.estimate.backward[rank]) / 1e3,
            "lookup_ms": float(self.estimate.lookups[rank]) / 1e3,
            "sent_bytes": float(self.estimate.sent[rank]),
            "memory_bytes": float(self.estimate.memory[rank]),
        }

    def _alternatives(self) -> list[dict[str, Any]]:
        """How much longer the heuristics' plans take, added up; that much longer than this plan they are."""
        longer = {name: (other.step - self.estimate.step) / 1e3 for name, other in self.others.items()}
        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "step_ms": self.step_ms + longer[name],
                "slower": longer[name] / self.step_ms if self.step_ms else 0.0,
                "balance": float(other.lookups.mean() / max(other.lookups.max(), 1e-9)),
                "fits": bool(np.all(other.memory <= self.room)),
            }
            for name, other in self.others.items()
        ]
        return sorted(rows, key=lambda row: row["step_ms"])
