"""A plan: how each table is sharded, and which ranks hold its parts."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foretrace.files import read_bounded
from foretrace.formats.output import PLAN, replaced
from foretrace.graph import ForetraceError
from foretrace.graph.codec import DAMAGE
from foretrace.sharding.kinds import KINDS, Way, ways
from foretrace.sharding.ranks import Ranks
from foretrace.sharding.tables import Table

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
