"""What a step will take and why: the words of ``foretrace predict --json``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from foretrace.forecast.observation import Rows, plain
from foretrace.graph import Graph


@dataclass
class Forecast:
    """A predicted step. All times are milliseconds.

    >>> Forecast(source="train.py", platform="h200", step_ms=5.61234).to_dict()["step_ms"]
    5.6123
    """

    source: str = ""
    platform: str = ""
    world: int = 1
    step_ms: float = 0.0
    """With a device sync at its end."""
    step_ms_back_to_back: float = 0.0
    """From the end of one step to the end of the next, where the host may run ahead."""
    low_ms: float = 0.0
    """10th percentile of the synced step, from the spread of the host and the errors of the kernel models."""
    high_ms: float = 0.0
    """90th percentile."""
    device_active_ms: float = 0.0
    """Time in which at least one kernel, copy or collective runs."""
    device_idle_ms: float = 0.0
    """The rest of the step."""
    idle_causes: dict[str, float] = field(default_factory=dict)
    """What the device stood still for: the host's T1 to T5 and sync; latency, where the host had done its part."""
    kernel_ms: float = 0.0
    """Sum of kernel times."""
    kernels: int = 0
    exposed_communication_ms: float = 0.0
    """Collectives with no other device work beside them."""
    hidden_communication_ms: float = 0.0
    peak_memory_bytes: int | None = None
    memory_bytes: int = 0
    """What the device has."""
    fits: bool | None = None
    tflops: float | None = None
    """Arithmetic of the step's matrix products, convolutions and attention, in 10^12 operations."""
    tflops_per_second: float | None = None
    """The same per second of the step."""
    mfu: float | None = None
    """Model FLOP utilisation: what the arithmetic would take at the device's peak rates, as a share of the step."""
    gigabytes: float | None = None
    """The fewest bytes that the step's kernels must move."""
    gbps: float | None = None
    """The same per second of the device's active time."""
    coverage: dict[str, float] = field(default_factory=dict)
    """Share of the device time that is measured, modelled (model), or a roofline (fallback)."""
    critical_path: Rows = field(default_factory=list)
    """what, name, rank, ms, share: largest first"""
    look_at: Rows = field(default_factory=list)
    """The ten ops that hold the step up most: name, phase, ms (on the critical path), share, calls, launches, host_ms,
    device_ms, mostly (host, device or sync)"""
    overheads: dict[str, dict[str, float]] = field(default_factory=dict)
    """T1 to T5: ms, count, mean_us, share"""
    by_op: Rows = field(default_factory=list)
    """name, device_ms, host_ms, count, share; so are the next three"""
    by_family: Rows = field(default_factory=list)
    by_phase: Rows = field(default_factory=list)
    by_module: Rows = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    timeline: Graph | None = field(default=None, repr=False)
    """The step at its predicted times; not part of the JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: times rounded to a tenth of a microsecond."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name != "timeline"}
