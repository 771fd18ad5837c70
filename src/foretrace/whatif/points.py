"""The points of a sweep: costs, order and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from foretrace.analysis.report import NotebookDocument
from foretrace.graph.graph import cautions

REPEATED = (
    "times are those of a short burst: where the power limit makes repeated steps longer, money and joules are those "
    "of repeated steps, of sustained_ms each"
)
MAX_NOTES = 4
"""Notes of points that a sweep shows: large ones have many that differ in a number."""


@dataclass
class Point:
    """A step or a job with some changes on a platform: its prediction, or why there is none."""

    changes: list[str]
    platform: str
    ranks: int = 1
    """Of the job; each has a device."""
    fabric: str | None = None
    """What joins them."""
    step_ms: float | None = None
    next_ms: float | None = None
    device_active_ms: float | None = None
    """Time in which at least one kernel, copy or collective runs; the mean over the ranks."""
    memory_bytes: int | None = None
    """Allocated on the fullest device."""
    reserved_bytes: int | None = None
    """Reserved there by PyTorch's allocator."""
    fits: bool | None = None
    samples: int | None = None
    """In a step of all ranks."""
    sample_us: float | None = None
    """From step to step, for each sample."""
    cost: float | None = None
    """Dollars for a million samples, all devices counted."""
    sustained_ms: float | None = None
    """From step to step while many are repeated, within the power limit; as `next_ms` where it is not known."""
    energy_j: float | None = None
    """Joules of a step of all devices, while steps are repeated."""
    sample_j: float | None = None
    """Joules for each sample."""
    front: bool = False
    """Whether no other point is better in time, memory, cost and energy."""
    error: str | None = None
    """Why it is left out."""
    notes: list[str] = field(default_factory=list)
    """What its figures rest on."""

    @property
    def repeated_us(self) -> float | None:
        """Microseconds for a sample while steps are repeated, within the power limit: what money is paid for.

        >>> Point([], "h200", next_ms=2.0, sustained_ms=2.5, samples=10).repeated_us
        250.0
        """
        if self.next_ms is None or not self.samples:
            return None
        return round(max(self.sustained_ms or 0.0, self.next_ms) * 1e3 / self.samples, 9)

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from others of its sweep."""
        return (*self.changes, self.platform)


@dataclass
class Sweep(NotebookDocument):
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


def with_pareto_front(found: Sweep, prices: Mapping[str, float]) -> Sweep:
    """The sweep with costs, its front, its order, and what joins the ranks of its jobs.

    >>> slow, fast = (Point([f"batch={n}"], "h200", next_ms=2.0, memory_bytes=9, samples=n) for n in (4, 8))
    >>> found = with_pareto_front(Sweep("train.py", [slow, fast]), {"h200": 3.6})
    >>> [(point.changes, point.sample_us, point.cost, point.front) for point in found.points]
    [(['batch=8'], 250.0, 0.25, True), (['batch=4'], 500.0, 0.5, False)]
    """
    if joined := sorted({point.fabric for point in found.points if point.fabric}):
        found.notes.append(f"ranks are connected by {', '.join(joined)}; --fabric names another")
    every = list(dict.fromkeys(note for point in found.points for note in point.notes if note not in found.notes))
    warned = cautions(every)
    said = [note for note in every if note not in warned]
    found.notes += [
        *warned,
        *said[:MAX_NOTES],
        *([f"… and {len(said) - MAX_NOTES} more like these"] * (len(said) > MAX_NOTES)),
    ]
    for point in found.points:
        if found.memory_limit is not None and point.memory_bytes is not None:
            point.fits = point.memory_bytes <= found.memory_limit
        if point.next_ms is not None and point.samples:
            # Rounded, so that sums of the same numbers in another order are equal.
            point.sample_us = round(point.next_ms * 1e3 / point.samples, 9)
            point.sample_j = None if point.energy_j is None else round(point.energy_j / point.samples, 9)
            if point.platform in prices and point.repeated_us is not None:
                point.cost = prices[point.platform] * point.ranks * point.repeated_us / 3600
    if any((point.sustained_ms or 0.0) > (point.next_ms or inf) for point in found.points):
        found.notes.append(REPEATED)
    found.points.sort(key=_order)
    least: list[tuple[float, ...]] = []
    drawn = all(point.energy_j is not None for point in found.points if point.error is None)
    for point in found.points:
        mine = _goals(point, bool(prices), drawn)
        beaten = any(all(theirs <= ours for theirs, ours in zip(other, mine)) for other in least)
        point.front = point.error is None and not beaten  # of equal ones the first stands for all
        if point.front:
            least.append(mine)
    return found


def _order(point: Point) -> tuple[Any, ...]:
    """Fastest for a sample first; of equally fast ones that which needs least memory."""
    return (point.sample_us is None, point.sample_us or 0.0, point.memory_bytes or 0, point.step_ms or 0.0, point.key)


def _goals(point: Point, priced: bool, drawn: bool) -> tuple[float, ...]:
    """Time, memory, money, and energy where that is known of all points.

    Where no price is known, the time of all devices together stands for money: more of them have to be worth it.
    """
    time = point.sample_us if point.sample_us is not None else point.step_ms or 0.0
    money = (point.cost or 0.0) if priced else time * point.ranks
    energy = (point.energy_j or 0.0) / (point.samples or 1) if drawn else 0.0
    return (time, float(point.memory_bytes or 0), money, energy)


def _fits(point: Point, limit: int | None) -> bool:
    if point.error is not None:
        return False
    return point.fits is not False if limit is None else point.memory_bytes is not None and point.memory_bytes <= limit
