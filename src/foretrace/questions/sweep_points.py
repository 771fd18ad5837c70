"""The points of a sweep: which are best, and how they are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from foretrace.forecast.in_notebooks import InNotebooks
from foretrace.graph import ForetraceError

Joined = tuple[str | None, int | None]
"""What was asked for between ranks: the fabric, and the GPUs of a node."""
MOST_NOTES = 4
"""Notes of points that are told of a sweep: large ones have many that differ in a number."""


@dataclass
class Point:
    """A step or a job with some changes on a platform: its forecast, or why there is none."""

    changes: list[str]
    platform: str
    ranks: int = 1
    """Of the job; each has a device."""
    fabric: str | None = None
    """What joins them."""
    step_ms: float | None = None
    next_ms: float | None = None
    device_ms: float | None = None
    memory_bytes: int | None = None
    """Of the fullest device."""
    fits: bool | None = None
    samples: int | None = None
    """In a step of all ranks."""
    sample_us: float | None = None
    """From step to step, for each sample."""
    cost: float | None = None
    """Dollars for a million samples, all devices counted."""
    front: bool = False
    """Whether no other point is better in time, memory and cost."""
    error: str | None = None
    """Why it is left out."""
    notes: list[str] = field(default_factory=list)
    """What its figures rest on."""

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from others of its sweep."""
        return (*self.changes, self.platform)


@dataclass
class Sweep(InNotebooks):
    """The points of a sweep, fastest for a sample first."""

    source: str
    points: list[Point] = field(default_factory=list)
    memory_limit: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Point | None:
        """The fastest for a sample that fits."""
        return next((point for point in self.points if _fits(point, self.memory_limit)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "best": asdict(self.best) if self.best else None}


def judged(found: Sweep, prices: Mapping[str, float]) -> Sweep:
    """The sweep with costs, its front, its order, and what joins the ranks of its jobs.

    >>> slow, fast = (Point([f"batch={n}"], "h200", next_ms=2.0, memory_bytes=9, samples=n) for n in (4, 8))
    >>> found = judged(Sweep("train.py", [slow, fast]), {"h200": 3.6})
    >>> [(point.changes, point.sample_us, point.cost, point.front) for point in found.points]
    [(['batch=8'], 250.0, 0.25, True), (['batch=4'], 500.0, 0.5, False)]
    """
    if joined := sorted({point.fabric for point in found.points if point.fabric}):
        found.notes.append(f"ranks are joined by {', '.join(joined)}; --fabric names another")
    said = list(dict.fromkeys(note for point in found.points for note in point.notes))
    found.notes += [
        *said[:MOST_NOTES],
        *([f"… and {len(said) - MOST_NOTES} more like these"] * (len(said) > MOST_NOTES)),
    ]
    for point in found.points:
        if point.next_ms is not None and point.samples:
            # Rounded, so that sums of the same numbers in another order are equal.
            point.sample_us = round(point.next_ms * 1e3 / point.samples, 9)
            if point.platform in prices:
                point.cost = prices[point.platform] * point.ranks * point.sample_us / 3600
    found.points.sort(key=_order)
    least: list[tuple[float, ...]] = []
    for point in found.points:
        mine = _goals(point, bool(prices))
        point.front = point.error is None and not any(_beats(other, mine) for other in least)
        if point.front:
            least.append(mine)
    return found


def _order(point: Point) -> tuple[Any, ...]:
    """Fastest for a sample first; of equally fast ones that which needs least memory."""
    return (point.sample_us is None, point.sample_us or 0.0, point.memory_bytes or 0, point.step_ms or 0.0, point.key)


def _goals(point: Point, priced: bool) -> tuple[float, ...]:
    """Time, memory and money.

    Where no price is known, the time of all devices together stands for money: more of them have to be worth it.
    """
    time = point.sample_us if point.sample_us is not None else point.step_ms or 0.0
    return (time, float(point.memory_bytes or 0), (point.cost or 0.0) if priced else time * point.ranks)


def _beats(other: tuple[float, ...], mine: tuple[float, ...]) -> bool:
    """Whether another is nowhere worse; of equal ones the first stands for all."""
    return all(theirs <= ours for theirs, ours in zip(other, mine))


def _fits(point: Point, limit: int | None) -> bool:
    if point.error is not None:
        return False
    return point.fits is not False if limit is None else point.memory_bytes is not None and point.memory_bytes <= limit


def read_kept(out: Path, source: str, joined: Joined) -> dict[tuple[str, ...], Point]:
    """Points that a file holds; what a process that was killed left half-written is left out."""
    if not out.exists():
        return {}
    try:
        text = out.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ForetraceError(f"{out} can't be read ({error.strerror})", "Choose another file.") from None
    if text and not text.startswith("{"):
        raise ForetraceError(f"{out} holds no sweep", "Choose another file: points would be added to this one.")
    found: dict[tuple[str, ...], Point] = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            point, was_joined = msgspec.convert(entry["point"], Point), tuple(entry.get("joined", (None, None)))
        except json.JSONDecodeError:
            continue
        except (ValueError, TypeError, KeyError):
            raise ForetraceError(
                f"{out} holds something else than points: {line[:60]}", "Choose another file."
            ) from None
        if entry.get("source") != source:
            raise ForetraceError(f"{out} holds a sweep of {entry.get('source')}", "Choose another file.")
        if was_joined != joined:
            raise ForetraceError(f"{out} holds a sweep of ranks that are joined otherwise", "Choose another file.")
        found[point.key] = point
    return found


def keep(out: Path, source: str, points: Iterable[Point], joined: Joined) -> None:
    """Add points to a file, those that are left out apart: each on a line of its own."""
    told = {"source": source, "joined": joined}
    lines = [json.dumps({**told, "point": asdict(point)}) + "\n" for point in points if point.error is None]
    try:
        ended = not out.exists() or not out.stat().st_size or out.read_bytes().endswith(b"\n")
        with out.open("a", encoding="utf-8") as file:
            file.write(("" if ended else "\n") + "".join(lines))
    except OSError as error:
        raise ForetraceError(f"{out} can't be written ({error.strerror})", "Choose another file.") from None
