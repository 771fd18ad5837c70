"""Row ids that follow a spread, and what can be said of them afterwards."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from foretrace.graph import Indices
from foretrace.platform.cases import Ids

SCATTER = 2654435761
"""Multiplied with a rank to place it somewhere in the table: popular rows do not lie side by side."""


def draw_ids(spread: Ids, rows: int, device: Any) -> torch.Tensor:
    """As many row ids as the spread says, in random order.

    >>> _ = torch.manual_seed(0)
    >>> ids = draw_ids(Ids(count=1000, skew=1.2), rows=50, device="cpu")
    >>> len(ids), int(ids.max()) < 50, int(torch.bincount(ids).max()) > 200
    (1000, True, True)
    """
    if spread.tables > 1:
        return _of_many_tables(spread, rows, device)
    if spread.reuse:
        return _by_histogram(spread, rows, device)
    if spread.skew == 0:
        return torch.randint(rows, (spread.count,), device=device)
    uniform = torch.rand(spread.count, device=device, dtype=torch.float64)
    flat = 1 - spread.skew
    if abs(flat) < 1e-3:
        flat = 1e-3  # the power law's own formula has no value at 1
    ranks = (uniform * (rows**flat - 1) + 1) ** (1 / flat) - 1
    return ranks.clamp(0, rows - 1).long() * SCATTER % rows


def _of_many_tables(spread: Ids, rows: int, device: Any) -> torch.Tensor:
    """The ids of each table after those of the table before, and so their rows."""
    each = rows // spread.tables
    bounds = [spread.count * number // spread.tables for number in range(spread.tables + 1)]
    counts = [last - first for first, last in pairwise(bounds)]
    parts = [draw_ids(replace(spread, count=count, tables=1), each, device) for count in counts if count]
    starts = torch.arange(spread.tables, device=device).repeat_interleave(torch.tensor(counts, device=device)) * each
    return torch.cat(parts) + starts


def _by_histogram(spread: Ids, rows: int, device: Any) -> torch.Tensor:
    """Distinct rows, each as often as its hits say; where the table has too few rows, all are hit more often."""
    shares = torch.tensor(spread.reuse, dtype=torch.float64, device=device)
    shares /= shares.sum()
    least = 2.0 ** torch.arange(len(shares), dtype=torch.float64, device=device)
    typical = float((shares * (1.5 * least - 0.5)).sum())
    distinct = max(1, min(rows, spread.count, spread.distinct or round(spread.count / typical)))
    # As many rows of each doubling as its share: drawing them would leave the rare ones, hit most, to luck.
    bounds = (shares.cumsum(0) * distinct).round().long()
    exponent = torch.bucketize(torch.arange(distinct, device=device), bounds, right=True).clamp(max=len(shares) - 1)
    low = least[exponent]
    room = low - 1
    # Within a doubling hits are spread evenly about a mean that makes all of them together as many as asked for.
    mean = float(((spread.count - low.sum()) / room.sum().clamp(min=1)).clamp(0, 1))
    place = torch.rand(distinct, dtype=torch.float64, device=device)
    place = place * 2 * mean if mean <= 0.5 else 1 - place * 2 * (1 - mean)
    hits = (low + room * place + torch.rand(distinct, device=device)).long().clamp(min=1)
    ids = _places(rows, distinct, device).repeat_interleave(hits)
    if len(ids) < spread.count:
        ids = torch.cat([ids, ids[torch.randint(len(ids), (spread.count - len(ids),), device=device)]])
    return ids[torch.randperm(len(ids), device=device)[: spread.count]]


def _places(rows: int, distinct: int, device: Any) -> torch.Tensor:
    """Some rows of a table."""
    if rows > 2**22 and distinct < rows // 64:
        # Rows drawn twice are rare there, and a permutation of all of them takes long.
        return torch.randint(rows, (distinct,), device=device)
    return torch.randperm(rows, device=device)[:distinct]


def statistics(ids: torch.Tensor, rows: int, bags: int) -> Indices:
    """Counts and the reuse histogram of ids.

    >>> statistics(torch.tensor([3, 3, 5]), rows=10, bags=3).reuse
    (1, 1)
    """
    hits = torch.unique(ids, return_counts=True)[1]
    reuse = torch.bincount(torch.frexp(hits.double())[1].long() - 1)
    return Indices(op=-1, rows=rows, count=ids.numel(), unique=len(hits), bags=bags, reuse=tuple(reuse.tolist()))
