"""Row ids that follow a spread, and what can be said of them afterwards."""

from __future__ import annotations

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


def _by_histogram(spread: Ids, rows: int, device: Any) -> torch.Tensor:
    """Distinct rows, each as often as its hits say; where the table has too few rows, all are hit more often."""
    shares = torch.tensor(spread.reuse, dtype=torch.float64, device=device)
    middle = 1.5 * 2.0 ** torch.arange(len(shares), device=device) - 0.5
    typical = float((shares * middle).sum() / shares.sum())
    distinct = min(rows, round(1.1 * spread.count / typical) + 1)
    exponent = torch.multinomial(shares, distinct, replacement=True)
    hits = (2.0**exponent * (1 + torch.rand(distinct, device=device))).long()
    # In a large table rows drawn twice are rare, and a permutation of all of them takes long.
    large = rows > 2**22
    places = (
        torch.randint(rows, (distinct,), device=device) if large else torch.randperm(rows, device=device)[:distinct]
    )
    ids = places.repeat_interleave(hits)
    if len(ids) < spread.count:
        ids = ids.repeat(-(-spread.count // len(ids)))
    return ids[: spread.count][torch.randperm(spread.count, device=device)]


def statistics(ids: torch.Tensor, rows: int, bags: int) -> Indices:
    """Counts and the reuse histogram of ids.

    >>> statistics(torch.tensor([3, 3, 5]), rows=10, bags=3).reuse
    (1, 1)
    """
    hits = torch.unique(ids, return_counts=True)[1]
    reuse = torch.bincount(torch.frexp(hits.double())[1].long() - 1)
    return Indices(op=-1, rows=rows, count=ids.numel(), unique=len(hits), bags=bags, reuse=tuple(reuse.tolist()))
