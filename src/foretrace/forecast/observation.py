"""What a measured step took and why: the words of ``foretrace show --json``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from foretrace.forecast.in_notebooks import InNotebooks
from foretrace.forecast.workings import Workings

PerRank = dict[int, float]
Rows = list[dict[str, Any]]


@dataclass
class Observation(InNotebooks):
    """A measured step of a job. All times are milliseconds; ``{rank: ...}`` says that there is one for each rank.

    >>> seen = Observation(source="trace.json", world=1, step_ms={0: 12.34567})
    >>> seen.to_dict()["step_ms"]
    {'0': 12.3457}
    """

    source: str = ""
    world: int = 1
    missing: list[int] = field(default_factory=list)
    """Ranks of the job without a trace."""
    step: str | None = None
    """Name of the step shown; None where the source marks no steps, and all of it is shown."""
    steps: int = 0
    """How many steps the source holds."""
    step_ms: PerRank = field(default_factory=dict)
    device_active_ms: PerRank = field(default_factory=dict)
    """Time in which at least one kernel, copy or collective ran."""
    device_idle_ms: PerRank = field(default_factory=dict)
    """The rest of the time from the rank's first kernel to its last."""
    kernel_ms: PerRank = field(default_factory=dict)
    """Sum of kernel times."""
    device_span_ms: float = 0.0
    """First kernel start to last kernel end over all ranks."""
    wait_ms: PerRank = field(default_factory=dict)
    """Time in collectives before the last rank's kernel started."""
    transfer_ms: dict[str, float] = field(default_factory=dict)
    """For each kind of collective, total time from last start to last end."""
    collectives: Rows = field(default_factory=list)
    """kind, nbytes, count, transfer_ms (median), total_transfer_ms, wait_ms (sum over ranks)"""
    stragglers: Rows = field(default_factory=list)
    """rank, held_ms (how long each of the others waited for it), why"""
    overlap: dict[int, dict[str, float]] = field(default_factory=dict)
    """communication_ms, hidden_ms (behind compute), exposed_ms, exposed_wait_ms (the part of it that waits)"""
    critical_path_ms: float = 0.0
    critical_path: Rows = field(default_factory=list)
    """what, name, rank (None for a transfer, which is of all ranks), ms, share"""
    critical_path_ranks: PerRank = field(default_factory=dict)
    overheads: dict[str, dict[str, float]] = field(default_factory=dict)
    """T1 to T5, mean over ranks: ms, count, mean_us, share (of the host time of all five)"""
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The same and queue_depth for each rank."""
    by_op: Rows = field(default_factory=list)
    """name, device_ms, host_ms, count, share; so are the next three"""
    by_family: Rows = field(default_factory=list)
    by_phase: Rows = field(default_factory=list)
    by_module: Rows = field(default_factory=list)
    queue_depth: dict[str, float] = field(default_factory=dict)
    """Kernels launched and not yet done: mean over time and ranks, and max."""
    peak_memory_bytes: dict[int, int | None] = field(default_factory=dict)
    attributed: float = 1.0
    """Share of the device time launched in the trace that has an owner."""
    launched_before_ms: PerRank = field(default_factory=dict)
    """Device time whose launch came before the trace began."""
    notes: list[str] = field(default_factory=list)
    plain: dict[str, float | None] = field(default_factory=dict)
    """For recordings, wall time of steps with nothing attached: synced_ms, back_to_back_ms, medians."""
    slowdown: float = 1.0
    workings: Workings | None = field(default=None, repr=False)
    """What it was made of, for who draws it; not part of the JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: ranks as text, times rounded to a tenth of a microsecond."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name != "workings"}


def plain(value: Any) -> Any:
    """The value with keys as text and numbers rounded to four places.

    >>> plain({0: (12.34567, None)})
    {'0': [12.3457, None]}
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value
