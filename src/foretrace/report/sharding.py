"""A plan for embedding tables, in the terminal: the step first, then ranks, tables, and how heuristics compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.report.numbers import bytes_, ms, percent, plural, signed
from foretrace.report.tables import bar, lines, notes, table

Words = dict[str, Any]

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
    "sums": "parts of sums, by rows",
    "node sums": "parts of sums in nodes",
    "across nodes": "sums between nodes",
    "copies": "gradients of copies",
    "conversion": "conversion, there and back",
}
TAKES = {"lookups": "lookups take", "exchange": "the exchange takes", "dense": "the dense part takes"}
NOTHING = 1e-3
"""Share from which on one plan is shorter than another."""
HOW = {"fused": "one call for rows as long", "single": "a call for each table", "tbe": "FBGEMM's batched kernels"}


def sharding_blocks(words: Words, top: int) -> Iterator[RenderableType]:
    """What a plan takes, and why; at most ``top`` rows a table."""
    on = f"{plural(words['world'], 'rank')} of {words['platform']}"
    yield lines(f"{words['source']}: {plural(words['tables'], 'table')} on {on}", sharding_rows(words))
    yield _ranks(words, top)
    if words["exchange_ms"]:
        total = sum(words["exchange_ms"].values())
        rows = [[EXCHANGES[k], ms(v), percent(v / total)] for k, v in words["exchange_ms"].items()]
        yield table(f"Exchange on {words['fabric']}", ["<what", "ms", "share"], rows)
    yield _split(words, top)
    yield _alternatives(words, top)
    if words["notes"]:
        yield notes(words["notes"])


def sharding_rows(words: Words) -> Iterator[tuple[str, str, str]]:
    """What a reader wants to know first: a name, a figure, what it means."""
    limits = words["limits"]
    yield "step", f"{ms(words['step_ms'])} ms", f"({ms(words['low_ms'])} – {ms(words['high_ms'])}) {_limit(limits)}"
    if words["summed_ms"] != words["step_ms"]:
        yield "added up", f"{ms(words['summed_ms'])} ms", "lookups, exchange and dense part one after the other"
    slowest = f"on rank {limits['slowest_rank']}, the slowest; {HOW[words['kernels']]}"
    yield (
        "lookups",
        f"{ms(words['lookup_ms'])} ms",
        f"{slowest}; the mean rank takes {percent(limits['balance'])} of it",
    )
    yield "exchange", f"{ms(sum(words['exchange_ms'].values()))} ms", f"in {words['sent_as']}, on {words['fabric']}"
    if words["dense_ms"]:
        yield "dense", f"{ms(words['dense_ms'])} ms", "all that the step does besides"
    full = f"of the {bytes_(words['room_bytes'])} for tables, on rank {limits['fullest_rank']}, the fullest"
    yield "memory", percent(limits["memory_share"]), full
    ways = ", ".join(f"{count:,} {KINDS[kind]}" for kind, count in words["ways"].items())
    yield "plan", plural(words["tables"], "table"), ways
    yield "search", f"{words['seconds']:.1f} s", f"from {len(words['alternatives'])} heuristics{_proven(words['gap'])}"


def _limit(limits: Words) -> str:
    return f"{TAKES[limits['what']]} {percent(limits['share'])} of it"


def _proven(gap: float | None) -> str:
    """How near the plan is to the best one that was proven, which knows costs as plain sums only."""
    if gap is None:
        return ""
    shorter = gap / (1 + gap)
    best = "no plan is shorter" if shorter < NOTHING else f"the best plan there is would be {percent(shorter)} shorter"
    return f"; by plain sums of costs {best}"


def _ranks(words: Words, top: int) -> RenderableType:
    ranks = sorted(words["ranks"], key=lambda rank: -float(rank["lookup_ms"]))
    most = ranks[0]["lookup_ms"] or 1.0
    rows = [
        [str(r["rank"]), str(r["tables"]), ms(r["forward_ms"]), ms(r["backward_ms"]), ms(r["lookup_ms"]),
         bar(r["lookup_ms"] / most), bytes_(r["sent_bytes"]), bytes_(r["memory_bytes"])]
        for r in ranks
    ]  # fmt: skip
    columns = ["rank", "tables", "forward ms", "backward ms", "lookups ms", "<", "sends", "memory"]
    return table("Ranks, the slowest first", columns, rows, top)


def _split(words: Words, top: int) -> RenderableType:
    """Tables that are not whole; all of them where none is split."""
    split = {name: p for name, p in words["plan"].items() if p["kind"] != "table_wise"} or words["plan"]
    rows = [[name, KINDS[p["kind"]], ranks_in_words(p["ranks"])] for name, p in split.items()]
    title = "Tables that are split or copied" if len(split) < len(words["plan"]) else "Tables"
    return table(title, ["<table…", "<sharded", "<ranks…"], rows, top)


def ranks_in_words(ranks: list[int]) -> str:
    """Ranks in the order in which they hold the parts of a table.

    >>> ranks_in_words([0, 1, 2, 3]), ranks_in_words([3, 0])
    ('0-3', '3, 0')
    """
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def _alternatives(words: Words, top: int) -> RenderableType:
    most = max((row["step_ms"] for row in words["alternatives"]), default=1.0)
    ours = ["this plan", ms(words["step_ms"]), "", percent(words["limits"]["balance"]), bar(words["step_ms"] / most)]
    rows = [ours] + [
        [row["name"] if row["fits"] else f"{row['name']} (too large)", ms(row["step_ms"]), signed(row["slower"]),
         percent(row["balance"]), bar(row["step_ms"] / most)]
        for row in words["alternatives"]
    ]  # fmt: skip
    return table("Against the heuristics", ["<plan", "step ms", "longer", "balance", "<"], rows, top)
