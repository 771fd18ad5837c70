"""A sweep in the terminal: the best point first, then the front, then all points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.report.numbers import UNKNOWN, bytes_, ms, plural
from foretrace.report.tables import lines, notes, table

Words = dict[str, Any]


def sweep_blocks(words: Words, top: int) -> Iterator[RenderableType]:
    """The best point, the points that no other beats in everything, and all of them; at most ``top`` rows each."""
    yield lines(f"{words['source'] or 'the step'}: {plural(len(words['points']), 'point')}", _headline(words))
    front = [point for point in words["points"] if point["front"]]
    if front:
        best = "time, memory and cost" if any(point["cost"] is not None for point in front) else "time and memory"
        yield _table(f"Front: no other point is better in {best}", front, top)
    yield _table("All points, fastest for a sample first", words["points"], top)
    failed = [f"{_named(point)}: {point['error']}" for point in words["points"] if point["error"]]
    if failed or words["notes"]:
        yield notes([*words["notes"], *failed[:top]])


def _headline(words: Words) -> Iterator[tuple[str, str, str]]:
    best = words["best"]
    if best is None:
        yield "best", "none", f"no point fits in {bytes_(words['memory_limit'])}"
        return
    limit = f"in {bytes_(words['memory_limit'])}" if words["memory_limit"] else "in its device's memory"
    yield "best", f"{ms(best['step_ms'])} ms", f"{_named(best)}: the fastest for a sample that fits {limit}"


def _named(point: Words) -> str:
    return f"{', '.join(point['changes']) or 'as it is'} on {point['platform']}"


def _table(title: str, points: list[Words], top: int) -> RenderableType:
    """A column for each setting: points that differ in one look different, however narrow the terminal."""
    settings = [change.rpartition("=")[0] for change in points[0]["changes"]] if points else []
    priced = any(point["cost"] is not None for point in points)
    figures = ["step\nms", "next\nms", "device\nms", "us a\nsample", "\nmemory", "<\nfits"]
    columns = [*(f"\n{name}" for name in settings), "<\nplatform…", *figures, *(["$ a\nmillion"] if priced else [])]
    return table(title, columns, [_row(point, priced) for point in points], top)


def _row(point: Words, priced: bool) -> list[str]:
    return [
        *(change.rpartition("=")[2] for change in point["changes"]),
        point["platform"],
        *(ms(point[word]) for word in ("step_ms", "next_ms", "device_ms", "sample_us")),
        bytes_(point["memory_bytes"]),
        {True: "yes", False: "NO", None: UNKNOWN}[point["fits"]],
        *([UNKNOWN if point["cost"] is None else f"{point['cost']:.3g}"] if priced else []),
    ]
