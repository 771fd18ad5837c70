"""The page of a sweep: every point by the time of a sample, against its memory and its cost."""

from __future__ import annotations

from typing import Any

from foretrace.report.numbers import bytes_, dollars, plural
from foretrace.report.pages.sheet import Chart, Sheet
from foretrace.report.sweep import made_and_left, named, reasons

Words = dict[str, Any]

ROWS = 1000
"""Points that the page lists."""
DRAWN = 2000
"""Points that the plot holds, the fastest."""
ROOM = 1.15
"""By how much the axis goes on beyond the first and the last point."""


def sweep_page(words: Words) -> Sheet:
    """The page of what `foretrace sweep --json` says.

    >>> figures = dict.fromkeys(("next_ms", "device_ms", "memory_bytes", "sample_us", "cost", "fits", "error"))
    >>> point = {**figures, "changes": ["batch=64"], "platform": "h200", "step_ms": 4.0, "front": True}
    >>> words = {"source": "train.py", "points": [point], "best": point, "memory_limit": None, "notes": []}
    >>> "batch=64 on h200" in sweep_page(words).html()
    True
    """
    points, best = words["points"], words["best"]
    made, left = made_and_left(words)
    limit = f"in {bytes_(words['memory_limit'])}" if words["memory_limit"] else "in its device's memory"
    return Sheet(
        "sweep.html",
        f"{words['source'] or 'the step'}: {plural(len(made), 'point')}",
        {"points": _plot(words)},
        {
            "words": words,
            "count": plural(len(made), "point"),
            "best": best and named(best),
            "limit": limit,
            "settings": [change.rpartition("=")[0] for change in points[0]["changes"]] if points else [],
            "rows": [_row(point) for point in made],
            "ranks": any(point.get("ranks", 1) > 1 for point in points),
            "priced": _priced(points),
            "listed": ROWS,
            "left": plural(len(left), "point"),
            "reasons": list(reasons(left)),
        },
    )


def _row(point: Words) -> Words:
    values = [change.rpartition("=")[2] for change in point["changes"]]
    return {**point, "values": values, "dollars": dollars(point["cost"])}


def _priced(points: list[Words]) -> bool:
    return any(point["cost"] is not None for point in points)


def _plot(words: Words) -> Chart | None:
    """Points by time: that of a sample where batches are known, else that of a step."""
    known = [point for point in words["points"] if point["step_ms"] and point["memory_bytes"] is not None][:DRAWN]
    if len(known) < 2:
        return None
    by_sample = all(point["sample_us"] for point in known)
    across = "sample_us" if by_sample else "step_ms"
    views = [{"title": "memory", "word": "memory_bytes", "unit": "bytes"}]
    if _priced(known):
        views.append({"title": "cost of a million samples", "word": "cost", "unit": "dollars"})
    drawn = ("platform", "step_ms", "sample_us", "memory_bytes", "cost", "fits")
    return {
        "kind": "sweep",
        "points": [
            {**{word: point[word] for word in drawn}, "name": named(point), "best": point == words["best"]}
            for point in known
        ],
        "views": views,
        "across": across,
        "across_name": "time of a sample" if by_sample else "time of a step",
        "across_unit": "µs" if by_sample else "ms",
        "from": min(point[across] for point in known) / ROOM,
        "to": max(point[across] for point in known) * ROOM,
        "limit": words["memory_limit"],
        "left_out": max(len(words["points"]) - DRAWN, 0),
    }
