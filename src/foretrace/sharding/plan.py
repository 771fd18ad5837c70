"""Sharding plans: the placement of each table, plan files, and the result of `foretrace shard`."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from foretrace.errors import ForetraceError
from foretrace.files import read_bounded
from foretrace.sharding.options import SHARDING_TYPES, Ranks, ShardingOption, sharding_options
from foretrace.sharding.tables import Table

if TYPE_CHECKING:
    from foretrace.sharding.costing import Estimate

VERSION = 1
MAX_PLAN_BYTES = 512 << 20
"""A million tables, each on a hundred ranks, take less."""
SAME = 1e-3
"""Share below which two times of plans count as equal."""


class Placement(NamedTuple):
    """The sharding type of one table, and the ranks of its shards.

    >>> Placement("column_wise", (0, 3)).option
    ShardingOption(sharding_type='column_wise', shards=2)
    """

    kind: str
    """The sharding type."""
    ranks: tuple[int, ...]
    """The rank of each shard, in order."""

    @property
    def option(self) -> ShardingOption:
        """The placement without its ranks."""
        return ShardingOption(self.kind, len(self.ranks))


Plan = tuple[Placement, ...]
"""A placement for each table, in the order of the tables."""


def plan_fields(plan: Plan, tables: Sequence[Table]) -> dict[str, Any]:
    """A plan as JSON fields, by the names of its tables."""
    return {table.name: {"kind": p.kind, "ranks": list(p.ranks)} for table, p in zip(tables, plan)}


def write_plan(plan: Plan, tables: Sequence[Table], ranks: Ranks, path: Path) -> None:
    """Write a plan file; refused if the path holds a file that is no plan."""
    from foretrace.output import PLAN, open_output

    fields = {"version": VERSION, "world": ranks.world, "batch": ranks.batch, "plan": plan_fields(plan, tables)}
    with open_output(path, PLAN) as file:
        file.write((json.dumps(fields, indent=1) + "\n").encode())


def read_plan(path: str | Path, tables: Sequence[Table], ranks: Ranks) -> Plan:
    """Read a plan file of `write_plan`, for these tables and ranks.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "plan.json"
    >>> tables, plan = [Table("t", 9, 16)], (Placement("table_wise", (1,)),)
    >>> write_plan(plan, tables, Ranks(2), path); read_plan(path, tables, Ranks(2)) == plan
    True
    """
    from foretrace.graph.codec import DAMAGE

    try:
        fields = json.loads(read_bounded(Path(path), MAX_PLAN_BYTES, "a plan"))["plan"]
        found = {name: Placement(str(p["kind"]), tuple(map(int, p["ranks"]))) for name, p in fields.items()}
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
    """Raise unless a table can be placed so."""
    kind, on = placement
    if kind not in SHARDING_TYPES:
        raise ForetraceError(f"table {table.name} is sharded {kind!r}", f"Known are: {', '.join(SHARDING_TYPES)}.")
    outside = [rank for rank in on if not 0 <= rank < ranks.world]
    if outside or not on:
        raise ForetraceError(
            f"table {table.name} lies on rank {outside[0] if outside else 'none'}", f"There are {ranks.world} ranks."
        )
    of_type = SHARDING_TYPES[kind]
    possible = of_type.on_any_rank or on in of_type.rank_groups(ranks)
    if placement.option not in sharding_options(table, ranks) or not possible:
        raise ForetraceError(
            f"table {table.name} can't be sharded {kind} on {len(on)} of {ranks.world} ranks",
            "Row-wise and data-parallel tables lie on all ranks, table-row-wise ones on a node, columns on 2, 4 or 8.",
        )


class StepTime(NamedTuple):
    """Milliseconds of the step: typical, 10th and 90th percentile."""

    step_ms: float
    low_ms: float
    high_ms: float


@dataclass(slots=True)
class RankLoad:
    """Lookups, traffic and memory of one rank."""

    rank: int
    tables: int
    forward_ms: float
    backward_ms: float
    lookup_ms: float
    sent_bytes: float
    memory_bytes: float


@dataclass(slots=True)
class Alternative:
    """The plan of a heuristic."""

    name: str
    step_ms: float
    slower: float
    balance: float
    fits: bool


@dataclass(slots=True)
class PlanLimits:
    """What limits a plan: the largest part of the step, and how even the ranks are."""

    what: str
    share: float
    slowest_rank: int
    balance: float
    fullest_rank: int
    memory_share: float


@dataclass(slots=True)
class PlacedTable:
    """How a table is sharded, and which ranks hold its shards."""

    kind: str
    ranks: list[int]


@dataclass(slots=True)
class TableCost:
    """How large a table is, and what it adds to the lookups of each rank that holds a shard of it."""

    rows: int
    dim: int
    bytes: int
    lookup_ms: float


@dataclass
class PlanReport:
    """The documented fields of ``foretrace shard --json`` (docs/shard.md); old files lack those with defaults."""

    source: str
    platform: str
    fabric: str | None
    kernels: str
    world: int
    sent_as: str
    tables: int
    room_bytes: float
    step_ms: float
    low_ms: float
    high_ms: float
    summed_ms: float
    lookup_ms: float
    exchange_ms: dict[str, float]
    dense_ms: float
    limits: PlanLimits
    plan: dict[str, PlacedTable]
    ways: dict[str, int]
    ranks: list[RankLoad]
    alternatives: list[Alternative]
    seconds: float
    gap: float | None = None
    notes: list[str] = field(default_factory=list)
    hot_rows_ms: float = 0.0
    """Part of ``lookup_ms`` that no rank shows: hot rows of row-wise tables, on a rank that is not known."""
    table_costs: dict[str, TableCost] = field(default_factory=dict)
    ranks_per_node: int = 0
    batch: int = 0
    table_bytes: int = 0

    @property
    def has_hot_rows(self) -> bool:
        """Whether they take a share of the lookups that shows."""
        return self.hot_rows_ms >= SAME * self.lookup_ms > 0


@dataclass
class Sharding:
    """A plan for tables on a platform, and what the search knows of it."""

    source: str
    platform: str
    fabric: str
    kernels: str
    tables: Sequence[Table]
    ranks: Ranks
    hbm_budget: float
    """Bytes that each rank has for tables."""
    plan: Plan
    estimate: Estimate
    heuristics: dict[str, Estimate]
    """The estimates of the plans of greedy heuristics, by name."""
    dense_ms: float = 0.0
    seconds: float = 0.0
    """Duration of the search."""
    gap: float | None = None
    """How much longer the plan is than the proven optimum, by the sums of the search; only for few tables."""
    simulated: StepTime | None = None
    """The step of the whole job, if the model is known."""
    shard_us: Sequence[float] = ()
    """What the shards of each table add to the lookups of each of their ranks; empty where it is not known."""
    notes: list[str] = field(default_factory=list)

    @property
    def step(self) -> StepTime:
        """The simulated step if there is one; else the sum of its parts."""
        sums = self.estimate.step, self.estimate.low, self.estimate.high
        return self.simulated or StepTime(*(us / 1e3 for us in sums))

    @property
    def step_ms(self) -> float:
        """Typical time of the step."""
        return self.step.step_ms

    def write(self, path: str | Path) -> None:
        """Write the plan to a file."""
        write_plan(self.plan, self.tables, self.ranks, Path(path))

    def _repr_html_(self) -> str:
        import foretrace as ft

        return ft.as_html(self)

    def to_dict(self) -> dict[str, Any]:
        """The fields of its JSON."""
        return asdict(self.report())

    def report(self) -> PlanReport:
        """The plan with what it takes, in the units of the documented fields."""
        estimate, step = self.estimate, self.step
        return PlanReport(
            source=self.source,
            platform=self.platform,
            fabric=self.fabric,
            kernels=self.kernels,
            world=self.ranks.world,
            ranks_per_node=self.ranks.per_node,
            batch=self.ranks.batch,
            sent_as=self.ranks.sent_as,
            tables=len(self.tables),
            table_bytes=sum(table.nbytes for table in self.tables),
            room_bytes=self.hbm_budget,
            step_ms=step.step_ms,
            low_ms=step.low_ms,
            high_ms=step.high_ms,
            summed_ms=estimate.step / 1e3,
            lookup_ms=estimate.slowest / 1e3,
            hot_rows_ms=estimate.hot_rows / 1e3,
            exchange_ms={what: us / 1e3 for what, us in estimate.communication.items()},
            dense_ms=self.dense_ms,
            limits=self.limits(),
            plan={t.name: PlacedTable(p.kind, list(p.ranks)) for t, p in zip(self.tables, self.plan)},
            table_costs={
                table.name: TableCost(table.rows, table.dim, table.nbytes, float(us) / 1e3)
                for table, us in zip(self.tables, self.shard_us)
            },
            ways=dict(Counter(placement.kind for placement in self.plan)),
            ranks=[self._rank_load(rank) for rank in range(self.ranks.world)],
            alternatives=self._alternatives(),
            seconds=self.seconds,
            gap=self.gap,
            notes=self.notes,
        )

    def limits(self) -> PlanLimits:
        """The largest part of the step, the balance of the ranks' lookups, and the fullest rank."""
        communication = sum(self.estimate.communication.values())
        parts = {"lookups": self.estimate.slowest, "exchange": communication, "dense": self.dense_ms * 1e3}
        what = max(parts, key=lambda name: parts[name])
        return PlanLimits(
            what=what,
            share=min(1.0, parts[what] / (self.step_ms * 1e3)) if self.step_ms else 0.0,
            slowest_rank=int(self.estimate.lookups.argmax()),
            balance=self.estimate.balance,
            fullest_rank=int(self.estimate.memory.argmax()),
            memory_share=float(self.estimate.memory.max()) / self.hbm_budget,
        )

    def _rank_load(self, rank: int) -> RankLoad:
        return RankLoad(
            rank=rank,
            tables=sum(rank in placement.ranks for placement in self.plan),
            forward_ms=float(self.estimate.forward[rank]) / 1e3,
            backward_ms=float(self.estimate.backward[rank]) / 1e3,
            lookup_ms=float(self.estimate.lookups[rank]) / 1e3,
            sent_bytes=float(self.estimate.sent[rank]),
            memory_bytes=float(self.estimate.memory[rank]),
        )

    def _alternatives(self) -> list[Alternative]:
        """The heuristics' plans, longer than this plan by the difference of both sums."""
        longer = {name: (other.step - self.estimate.step) / 1e3 for name, other in self.heuristics.items()}
        rows = [
            Alternative(
                name=name,
                step_ms=self.step_ms + longer[name],
                slower=longer[name] / self.step_ms if self.step_ms else 0.0,
                balance=other.balance,
                fits=bool(np.all(other.memory <= self.hbm_budget)),
            )
            for name, other in self.heuristics.items()
        ]
        return sorted(rows, key=lambda row: row.step_ms)
