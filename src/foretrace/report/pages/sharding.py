"""The page of a sharding plan: what each rank has to do and to hold, and how other plans compare."""

from __future__ import annotations

from typing import Any

from foretrace.report.numbers import plural
from foretrace.report.pages.sheet import Chart, Sheet
from foretrace.report.sharding import EXCHANGES, KINDS, ranks_in_words, sharding_rows

Words = dict[str, Any]

ROWS = 3000
"""Tables that the page lists."""
SCATTERED = 12
"""Ranks that are counted, where they do not follow each other, and no longer named."""
NEAR = 0.4
"""Share of its room from which on what a rank holds is drawn beside it."""


def sharding_page(words: Words) -> Sheet:
    """The page of what `foretrace shard --json` says."""
    (_, step, meaning), *facts = sharding_rows(words)
    of = f"{plural(words['tables'], 'table')} on {plural(words['world'], 'rank')} of {words['platform']}"
    return Sheet(
        "sharding.html",
        f"{words['source']}: {of}",
        {"loads": _loads(words), "alternatives": _alternatives(words)},
        {
            "words": words,
            "of": of,
            "step": step.removesuffix(" ms"),
            "meaning": meaning,
            "facts": facts,
            "exchanges": [(EXCHANGES[what], spent) for what, spent in words["exchange_ms"].items() if spent],
            "tables": [
                (name, KINDS[placed["kind"]], _where(placed["ranks"])) for name, placed in words["plan"].items()
            ],
            "rows": ROWS,
        },
    )


def _where(ranks: list[int]) -> str:
    told = ranks_in_words(ranks)
    return plural(len(ranks), "rank") if told.count(",") >= SCATTERED else told


def _loads(words: Words) -> Chart:
    ranks = words["ranks"]
    return {
        "kind": "loads",
        "ranks": [rank["rank"] for rank in ranks],
        "forward": [rank["forward_ms"] for rank in ranks],
        "backward": [rank["backward_ms"] for rank in ranks],
        "bytes": [rank["memory_bytes"] for rank in ranks],
        "sent": [rank["sent_bytes"] for rank in ranks],
        "tables": [rank["tables"] for rank in ranks],
        "room": words["room_bytes"],
        "near": max((rank["memory_bytes"] for rank in ranks), default=0) > NEAR * words["room_bytes"],
    }


def _alternatives(words: Words) -> Chart | None:
    """The plan and what the heuristics found, the fastest first."""
    rows = [(other["name"], other["step_ms"], other["fits"]) for other in words["alternatives"]]
    if not rows:
        return None
    found = [("this plan", words["step_ms"], True), *rows]
    return {
        "kind": "stacked",
        "rows": [name for name, _, _ in found],
        "parts": ["step"],
        "ms": [[step for _, step, _ in found]],
        "about": ["" if fits else "does not fit into the ranks' memory" for *_, fits in found],
    }
