"""A sharding plan of embedding tables (`shard`), in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from foretrace.report.formatting import UNKNOWN, bytes_, ms, percent, plural, signed
from foretrace.report.terminal import Blocks, Fact, bar, fact_lines, note_lines, table
from foretrace.sharding.plan import SAME

if TYPE_CHECKING:
    from foretrace.report.pages.page import Chart, Page
    from foretrace.sharding.plan import PlanReport, Sharding

KINDS = {
    "table_wise": "whole",
    "column_wise": "by columns",
    "row_wise": "by rows",
    "table_row_wise": "by rows in a node",
    "data_parallel": "copied to all",
}
EXCHANGES = {
    "ids": "ids to the tables",
    "pooled": "embeddings and gradients",
    "sums": "partial sums of tables by rows",
    "node sums": "partial sums inside nodes",
    "across nodes": "sums between nodes",
    "copies": "gradients of copies",
    "conversion": "conversion, there and back",
}
LIMITS = {"lookups": "lookups take", "exchange": "communication takes", "dense": "the dense part takes"}
KERNELS = {
    "fused": "one call for all tables of the same dimension",
    "single": "a call for each table",
    "tbe": "FBGEMM's batched kernels",
}
TABLES_LISTED = 3000
"""Tables that the page lists."""
RANKS_NAMED = 12
"""Ranks of a table that are named one by one; more are counted, unless they follow each other."""
NEAR_BUDGET = 0.4
"""Share of its memory budget from which on a rank's memory is drawn with the budget."""


def sharding_blocks(sharding: Sharding, top: int | None) -> Blocks:
    """What a plan takes, its ranks and tables, and how the heuristics compare."""
    return plan_blocks(sharding.report(), top)


def plan_blocks(plan: PlanReport, top: int | None) -> Blocks:
    """What the plan of a report takes, its ranks and tables, and how the heuristics compare."""
    yield fact_lines(plan_title(plan), plan_facts(plan))
    yield _ranks(plan, top)
    if plan.exchange_ms:
        total = sum(plan.exchange_ms.values())
        rows = [[EXCHANGES[what], ms(spent), percent(spent / total)] for what, spent in plan.exchange_ms.items()]
        yield table(f"Communication on {plan.fabric}", ["<what", "ms", "share"], rows)
    yield _split(plan, top)
    yield _alternatives(plan, top)
    yield from note_lines(plan.notes)


def plan_title(plan: PlanReport) -> str:
    """Which tables, on which ranks."""
    return f"{plan.source}: {plural(plan.tables, 'table')} on {plural(plan.world, 'rank')} of {plan.platform}"


def plan_facts(plan: PlanReport) -> Iterator[Fact]:
    """The most important figures, the step first."""
    limits = plan.limits
    limit = f"{LIMITS[limits.what]} {percent(limits.share)} of it"
    yield "step", f"{ms(plan.step_ms)} ms", f"(80 %: {ms(plan.low_ms)} – {ms(plan.high_ms)}) {limit}"
    if plan.summed_ms != plan.step_ms:
        yield "added up", f"{ms(plan.summed_ms)} ms", "lookups, communication and dense part, one after the other"
    slowest = f"on rank {limits.slowest_rank}, the slowest"
    if plan.has_hot_rows:
        placed = ms(plan.lookup_ms - plan.hot_rows_ms)
        slowest = f"{placed} ms {slowest}, and {ms(plan.hot_rows_ms)} ms for hot rows, on a rank that is not known"
    balance = f"the mean rank takes {percent(limits.balance)} of it"
    yield "lookups", f"{ms(plan.lookup_ms)} ms", f"{slowest}; {KERNELS[plan.kernels]}; {balance}"
    yield "communication", f"{ms(sum(plan.exchange_ms.values()))} ms", f"in {plan.sent_as}, on {plan.fabric}"
    if plan.dense_ms:
        yield "dense", f"{ms(plan.dense_ms)} ms", "the rest of the step"
    room = f"{bytes_(plan.room_bytes)} ({plan.room_bytes / 1e9:.1f} GB)"  # --memory is in GB
    full = f"of the {room} for tables, on rank {limits.fullest_rank}, the fullest"
    yield "memory", percent(limits.memory_share), full
    yield "plan", plural(plan.tables, "table"), ", ".join(f"{n:,} {KINDS[kind]}" for kind, n in plan.ways.items())
    searched = f"from {len(plan.alternatives)} heuristics"
    if plan.gap is not None:  # to the proven optimum of the search's cost model, which adds costs up
        shorter = plan.gap / (1 + plan.gap)
        best = "no plan is shorter" if shorter < SAME else f"the best plan would be {percent(shorter)} shorter"
        searched += f"; by sums of costs, {best}"
    yield "search", f"{plan.seconds:.1f} s", searched


def _ranks(plan: PlanReport, top: int | None) -> RenderableType:
    ranks = sorted(plan.ranks, key=lambda rank: -rank.lookup_ms)
    most = plan.lookup_ms or 1.0
    hot = ["any", "", "", "hot rows", f"+{ms(plan.hot_rows_ms)}", bar(plan.hot_rows_ms / most), "", ""]
    rows = [hot] * plan.has_hot_rows + [
        [str(r.rank), str(r.tables), ms(r.forward_ms), ms(r.backward_ms), ms(r.lookup_ms),
         bar(r.lookup_ms / most), bytes_(r.sent_bytes), bytes_(r.memory_bytes)]
        for r in ranks
    ]  # fmt: skip
    columns = ["rank", "tables", "forward ms", "backward ms", "lookups ms", "<", "sends", "memory"]
    return table("Ranks, the slowest first", columns, rows, top)


def _split(plan: PlanReport, top: int | None) -> RenderableType:
    """All tables, those that are split or copied first; without costs where an older version wrote the plan."""
    order = sorted(plan.plan.items(), key=lambda item: item[1].kind == "table_wise")
    rows = [[name, KINDS[placed.kind], rank_list(placed.ranks), *_costs(plan, name)] for name, placed in order]
    return table("Tables", ["<table…", "<sharded", "<ranks…", "rows", "dim", "size", "lookups ms"], rows, top)


def _costs(plan: PlanReport, name: str) -> list[str]:
    one = plan.table_costs.get(name)
    return [f"{one.rows:,}", str(one.dim), bytes_(one.bytes), ms(one.lookup_ms)] if one else [UNKNOWN] * 4


def rank_list(ranks: Sequence[int]) -> str:
    """Ranks in the order in which they hold the shards of a table.

    >>> rank_list([0, 1, 2, 3]), rank_list([3, 0])
    ('0-3', '3, 0')
    """
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def _alternatives(plan: PlanReport, top: int | None) -> RenderableType:
    most = max((row.step_ms for row in plan.alternatives), default=1.0)
    this_plan = ["this plan", ms(plan.step_ms), "", percent(plan.limits.balance), bar(plan.step_ms / most)]
    rows = [this_plan] + [
        [row.name if row.fits else f"{row.name} (too large)", ms(row.step_ms), signed(row.slower),
         percent(row.balance), bar(row.step_ms / most)]
        for row in plan.alternatives
    ]  # fmt: skip
    return table("Against the heuristics", ["<plan", "step ms", "longer", "balance", "<"], rows, top)


def sharding_page(plan: PlanReport) -> Page:
    """The page of a plan: the load of each rank, how other plans compare, and where each table is."""
    from foretrace.report.pages.page import Page

    (_, step, meaning), *facts = plan_facts(plan)
    listed = {name: rank_list(one.ranks) for name, one in plan.plan.items()}
    shown = {
        name: plural(len(plan.plan[name].ranks), "rank") if ranks.count(",") >= RANKS_NAMED else ranks
        for name, ranks in listed.items()
    }
    return Page(
        "sharding.html",
        plan_title(plan),
        {"loads": _loads_chart(plan), "alternatives": _alternatives_chart(plan)},
        {
            "plan": plan,
            "of": plan_title(plan).removeprefix(f"{plan.source}: "),
            "step": step.removesuffix(" ms"),
            "meaning": meaning,
            "facts": facts,
            "exchanges": [(EXCHANGES[what], spent) for what, spent in plan.exchange_ms.items() if spent],
            "tables": [
                (name, KINDS[one.kind], shown[name], plan.table_costs.get(name)) for name, one in plan.plan.items()
            ],
            "sized": plan.plan.keys() <= plan.table_costs.keys(),
            "rows": TABLES_LISTED,
        },
    )


def _loads_chart(plan: PlanReport) -> Chart:
    return {
        "kind": "loads",
        "ranks": [rank.rank for rank in plan.ranks],
        "forward": [rank.forward_ms for rank in plan.ranks],
        "backward": [rank.backward_ms for rank in plan.ranks],
        "bytes": [rank.memory_bytes for rank in plan.ranks],
        "sent": [rank.sent_bytes for rank in plan.ranks],
        "tables": [rank.tables for rank in plan.ranks],
        "slowest": plan.lookup_ms if plan.has_hot_rows else None,
        "budget": plan.room_bytes,
        "near": max((rank.memory_bytes for rank in plan.ranks), default=0) > NEAR_BUDGET * plan.room_bytes,
    }


def _alternatives_chart(plan: PlanReport) -> Chart | None:
    """Step times of this plan and of the heuristics' plans."""
    if not plan.alternatives:
        return None
    return {
        "kind": "stacked",
        "rows": ["this plan", *(other.name for other in plan.alternatives)],
        "parts": ["step"],
        "ms": [[plan.step_ms, *(other.step_ms for other in plan.alternatives)]],
        "about": ["", *("" if one.fits else "does not fit into the ranks' memory" for one in plan.alternatives)],
    }
