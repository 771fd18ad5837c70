"""What is known of the ids and values in tensors, for tensors of another length."""

from __future__ import annotations

from dataclasses import replace
from math import expm1, log2
from typing import Any

from foretrace.graph.content import Content
from foretrace.graph.graph import Indices

COUNTS = {"ids": ("unique", "nones"), "even": ("total",), "bags": ("total", "bags"), "offsets": ("last",)}
"""Figures of a content that grow with its tensor."""
HISTOGRAMS = {"ids": "reuse", "offsets": "steps"}


def resized_content(content: Content, share: float) -> Content:
    """The content for a tensor that is so many times as long.

    >>> resized_content(Content("offsets", {"first": 0, "last": 100, "steps": [0, 10]}), 2.0).facts["last"]
    200
    """
    facts: dict[str, Any] = dict(content.facts)
    if content.kind == "values":
        whole = all(isinstance(value, int) for value in facts["values"])
        return Content("constant", {"value": facts["values"][0] if facts["values"] else 0}) if whole else _spread(facts)
    for word in COUNTS.get(content.kind, ()):
        if word in facts:
            facts[word] = round(facts[word] * share)
    if (word := HISTOGRAMS.get(content.kind, "")) in facts:
        facts[word] = [round(count * share) for count in facts[word]]
        if content.kind == "ids":
            facts["unique"] = sum(facts[word])
    return Content(content.kind, facts)


def _spread(facts: dict[str, Any]) -> Content:
    low, high = float(min(facts["values"])), float(max(facts["values"]))
    return Content("uniform", {"low": low, "high": high})


def resized_indices(indices: Indices, rows: int, count: int, bags: int) -> Indices:
    """The reuse of rows where a table, or the number of ids asked of it, is another.

    As many rows are hit as would be by ids drawn evenly from the rows that the recorded ids seem drawn from.

    >>> resized_indices(Indices(0, rows=1000, count=1000, unique=632, bags=10, reuse=(368, 264)), 1000, 2000, 20).unique
    864
    """
    share = count / max(indices.count, 1)
    pool = _pool(indices) * rows / max(indices.rows, 1)
    unique = min(rows, count, max(1, round(-pool * expm1(-count / pool)))) if count else 0
    spread = share * indices.unique / max(unique, 1)
    shift = log2(spread) if spread > 0 else 0.0
    reuse = _moved(indices.reuse, shift, unique)
    return replace(indices, rows=rows, count=count, unique=unique, bags=bags, reuse=reuse)


def _pool(indices: Indices) -> float:
    """Rows from which so many ids, drawn evenly, would hit as many different ones as they did."""
    if indices.unique >= indices.count:
        return float(max(indices.rows, indices.count))
    low, high = 1.0, float(max(indices.rows, 2))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if -middle * expm1(-indices.count / middle) < indices.unique else (low, middle)
    return high


def _moved(reuse: tuple[int, ...], shift: float, unique: int) -> tuple[int, ...]:
    """A histogram of so many rows, each hit 2^shift times as often."""
    total = sum(reuse)
    if not total or not unique:
        return ()
    bins = [0.0] * (len(reuse) + 64)
    for place, count in enumerate(reuse):
        at = max(place + shift, 0.0)
        low = int(at)
        bins[low] += count * (1 - (at - low))
        bins[low + 1] += count * (at - low)
    counts = [round(count * unique / total) for count in bins]
    while counts and not counts[-1]:
        counts.pop()
    if counts:
        counts[0] += unique - sum(counts)
    return tuple(counts)
