"""What got slower from one observation to another, op by op."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foretrace.forecast.observation import Observation


@dataclass
class Difference:
    """Two observations compared: in each list the largest slow-down comes first.

    A row has name, device_ms, host_ms and count as [before, after], and change_ms: device and host time added.
    """

    before: str
    after: str
    step_ms: tuple[float, float]
    """Of the slowest rank."""
    device_active_ms: tuple[float, float]
    """Of the busiest rank."""
    by_op: list[dict[str, Any]] = field(default_factory=list)
    by_family: list[dict[str, Any]] = field(default_factory=list)
    by_phase: list[dict[str, Any]] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    """Ops that only the second one has."""
    gone: list[str] = field(default_factory=list)
    """Ops that only the first one has."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(vars(self))


def difference(a: Observation, b: Observation) -> Difference:
    """Compare two observations, the older one first.

    >>> def seen(ms: float) -> Observation:
    ...     mm = {"name": "aten::mm", "device_ms": ms, "host_ms": 0.1, "count": 1, "share": 1.0}
    ...     return Observation(step_ms={0: ms + 1}, by_op=[mm])
    >>> slower = difference(seen(2.0), seen(5.0))
    >>> slower.step_ms, slower.by_op[0]["name"], slower.by_op[0]["change_ms"]
    ((3.0, 6.0), 'aten::mm', 3.0)
    """
    had, has = ({row["name"] for row in seen.by_op} for seen in (a, b))
    return Difference(
        before=a.source,
        after=b.source,
        step_ms=(max(a.step_ms.values(), default=0.0), max(b.step_ms.values(), default=0.0)),
        device_active_ms=(max(a.device_active_ms.values(), default=0.0), max(b.device_active_ms.values(), default=0.0)),
        by_op=compared(a.by_op, b.by_op),
        by_family=compared(a.by_family, b.by_family),
        by_phase=compared(a.by_phase, b.by_phase),
        new=sorted(has - had),
        gone=sorted(had - has),
    )


def compared(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of two tables by name: device_ms, host_ms and count of both, change_ms; the largest slow-down first.

    >>> compared([], [{"name": "aten::mm", "device_ms": 2.0, "host_ms": 1.0, "count": 1}])[0]["change_ms"]
    3.0
    """
    nothing = {"device_ms": 0.0, "host_ms": 0.0, "count": 0}
    old, new = ({row["name"]: row for row in rows} for rows in (before, after))
    rows = []
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name, nothing), new.get(name, nothing)
        row: dict[str, Any] = {"name": name, **{word: [a[word], b[word]] for word in nothing}}
        row["change_ms"] = b["device_ms"] - a["device_ms"] + b["host_ms"] - a["host_ms"]
        rows.append(row)
    return sorted(rows, key=lambda row: -row["change_ms"])
