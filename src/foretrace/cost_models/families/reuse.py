"""How often the rows of a table are hit, as columns: what decides how much of a lookup the caches serve."""

from __future__ import annotations

import math

from foretrace.cost_models.families.values import log
from foretrace.graph import Indices

COLUMNS = ("unique", "unique_share", "hottest", "hits", "often", "rows_hit")
FLAT = 64
"""Hits of the mean row from which on all rows are hit about as often as it."""


def reuse(found: Indices) -> tuple[float, ...]:
    """Columns from what is known of the ids.

    >>> [round(x, 2) for x in reuse(evenly(rows=1000, count=1000))]
    [9.3, 0.63, 3.0, 1.58, 0.0, 0.63]
    """
    unique = max(1, found.unique)
    hits = [n * 1.5 * 2**k for k, n in enumerate(found.reuse)]
    often = sum(hits[5:]) / (sum(hits) or 1.0)  # of rows that are hit at least 32 times
    return (log(unique), unique / max(1, found.count), float(len(found.reuse)), found.count / unique, often,
            unique / max(1, found.rows))  # fmt: skip


def hottest(found: Indices) -> float:
    """Hits of the row that is hit most, by the doubling that it lies in.

    >>> hottest(Indices(op=-1, rows=9, count=12, unique=3, bags=12, reuse=(0, 0, 3)))
    6.0
    """
    return 1.5 * 2 ** (len(found.reuse) - 1) if len(found.reuse) > 1 else 1.0


def most_hits(found: Indices) -> float:
    """The same more closely: what the other rows leave of all hits to those in the last doubling.

    >>> most_hits(Indices(op=-1, rows=9, count=107, unique=3, bags=107, reuse=(2, 0, 0, 0, 0, 0, 1)))
    105.0
    """
    last = len(found.reuse) - 1
    if last < 1 or not found.reuse[last]:
        return 1.0
    others = sum(rows * 1.5 * 2**k if k else rows for k, rows in enumerate(found.reuse[:last]))
    return float(min(max((found.count - others) / found.reuse[last], 2**last), 2 ** (last + 1) - 1))


def evenly(rows: int, count: int) -> Indices:
    """Ids drawn evenly over the rows: how often each is hit follows Poisson's law.

    >>> evenly(10, 0).unique
    0
    """
    rows = max(1, rows)
    mean = count / rows
    if mean >= FLAT:
        histogram = [0] * int(math.log2(mean)) + [rows]
    else:
        histogram = [round(rows * share) for share in _shares(mean)]
        while histogram and not histogram[-1]:
            histogram.pop()
    unique = round(rows * -math.expm1(-mean))
    return Indices(op=-1, rows=rows, count=count, unique=unique, bags=count, reuse=tuple(histogram))


def _shares(mean: float) -> list[float]:
    """Share of the rows that are hit once, two or three times, four to seven times, and so on."""
    term, hits = math.exp(-mean), 0
    shares: list[float] = []
    while 2 ** len(shares) <= mean + 6 * math.sqrt(mean) + 8:
        share = 0.0
        for _ in range(2 ** len(shares)):
            hits += 1
            term *= mean / hits
            share += term
        shares.append(share)
    return shares
