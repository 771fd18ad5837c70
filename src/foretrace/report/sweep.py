"""A sweep in the terminal: the best point first, then the front, all points, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.report.numbers import UNKNOWN, bytes_, dollars, ms, plural
from foretrace.report.tables import lines, notes, table

Words = dict[str, Any]


def sweep_blocks(words: Words, top: int) -> Iterator[RenderableType]:
    """The best point, the points that no other beats in everything, and all of them; at most ``top`` rows each."""
    made, left = made_and_left(words)
    always = _always(words["points"])
    title = f"{words['source'] or 'the step'}{', with ' if always else ''}{', '.join(always)}"
    yield lines(f"{title}: {plural(len(made), 'point')}", sweep_rows(words))
    front = [point for point in made if point["front"]]
    if front:
        yield _table(f"Front: no other point is better in {_goals(front)}", front, always, top)
    if made:
        yield _table("All points, fastest for a sample first", made, always, top)
    if left:
        rows = [(f"{count}", "", f"{reason} ({example})") for count, reason, example in reasons(left)]
        yield lines(f"Left out: {plural(len(left), 'point')}", rows[:top])
    if words["notes"]:
        yield notes(words["notes"])


def _always(points: list[Words]) -> list[str]:
    """Changes that all points have in common, where they are several: no table needs them in every row."""
    first = points[0]["changes"] if len(points) > 1 else []
    return [change for change in first if all(change in point["changes"] for point in points)]


def _goals(front: list[Words]) -> str:
    if any(point["cost"] is not None for point in front):
        return "time, memory and cost"
    return "time, memory and time of all ranks" if _is_job(front) else "time and memory"


def _is_job(points: list[Words]) -> bool:
    return any(point["ranks"] > 1 for point in points)


def made_and_left(words: Words) -> tuple[list[Words], list[Words]]:
    """The points, and the combinations of which there is no forecast."""
    points = words["points"]
    return [point for point in points if not point["error"]], [point for point in points if point["error"]]


def reasons(left: list[Words]) -> Iterator[tuple[int, str, str]]:
    """Why points were left out: of how many, the reason, and one of them. One reason often holds for many."""
    alike: dict[str, list[Words]] = {}
    for point in left:
        alike.setdefault(point["error"], []).append(point)
    for reason, some in alike.items():
        yield len(some), reason, named(some[0])


def sweep_rows(words: Words) -> Iterator[tuple[str, str, str]]:
    """What a reader wants to know first: a name, a figure, what it means."""
    best = words["best"]
    if best is None:
        limit = bytes_(words["memory_limit"]) if words["memory_limit"] else "its device's memory"
        made = any(point["error"] is None for point in words["points"])
        yield "best", "none", f"no point fits in {limit}" if made else "no point can be made"
        return
    limit = f"in {bytes_(words['memory_limit'])}" if words["memory_limit"] else "in its device's memory"
    many = f" of {best['ranks']:,} ranks" if best["ranks"] > 1 else ""
    yield "best", f"{ms(best['step_ms'])} ms{many}", f"{named(best)}: the fastest for a sample that fits {limit}"


def named(point: Words) -> str:
    """What tells a point from others, in words.

    >>> named({"changes": ["batch=8", "dtype=bf16"], "platform": "h200"})
    'batch=8, dtype=bf16 on h200'
    """
    return f"{', '.join(point['changes']) or 'as it is'} on {point['platform']}"


def _table(title: str, points: list[Words], always: list[str], top: int) -> RenderableType:
    """A column for each setting: points that differ in one look different, however narrow the terminal."""
    settings = [change.rpartition("=")[0] for change in points[0]["changes"] if change not in always]
    priced = any(point["cost"] is not None for point in points)
    ranks = len({point["ranks"] for point in points}) > 1 and "world" not in settings
    figures = ["step\nms", "next\nms", "device\nms", "us a\nsample", "\nmemory", "<\nfits"]
    figures = [*(["\nranks"] if ranks else []), *figures, *(["$ a\nmillion"] if priced else [])]
    columns = [*(f"\n{name}" for name in settings), "<\nplatform…", *figures]
    return table(title, columns, [_row(point, always, priced, ranks) for point in points], top)


def _row(point: Words, always: list[str], priced: bool, ranks: bool) -> list[str]:
    return [
        *(change.rpartition("=")[2] for change in point["changes"] if change not in always),
        point["platform"],
        *([f"{point['ranks']:,}"] if ranks else []),
        *(ms(point[word]) for word in ("step_ms", "next_ms", "device_ms", "sample_us")),
        bytes_(point["memory_bytes"]),
        {True: "yes", False: "NO", None: UNKNOWN}[point["fits"]],
        *([dollars(point["cost"])] if priced else []),
    ]
