"""What a step will take and why: the words of ``foretrace predict --json``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from foretrace.forecast.in_notebooks import InNotebooks
from foretrace.forecast.observation import PerRank, Rows, plain
from foretrace.forecast.workings import Workings

UNTOLD = ("workings",)
"""What is for programs, and too much for JSON."""


@dataclass
class Forecast(InNotebooks):
    """A predicted step. All times are milliseconds.

    >>> Forecast(source="train.py", platform="h200", step_ms=5.61234).to_dict()["step_ms"]
    5.6123
    """

    source: str = ""
    platform: str = ""
    fabric: str | None = None
    """What joins the ranks of a job; None for one rank alone on a platform without."""
    world: int = 1
    step_ms: float = 0.0
    """With a device sync at its end; of a job, from the first thing that a rank does to the last."""
    step_ms_back_to_back: float | None = None
    """From the end of one step to the end of the next, where the host may run ahead."""
    samples: int | None = None
    """In a step of all ranks, where somebody asked for that."""
    low_ms: float = 0.0
    """10th percentile of the synced step, from the spread of the host and the errors of the kernel models."""
    high_ms: float = 0.0
    """90th percentile."""
    device_active_ms: float = 0.0
    """Time in which at least one kernel, copy or collective runs; of a job the mean over its ranks, as all below."""
    device_idle_ms: float = 0.0
    """The rest of the step."""
    device_span_ms: float = 0.0
    """From the first kernel's start to the last one's end, over all ranks."""
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
    critical_path_ranks: PerRank = field(default_factory=dict)
    """Milliseconds of it on each rank that it touches."""
    ranks: Rows = field(default_factory=list)
    """rank, stands_for (how many ranks do the same), start_ms, step_ms, device_span_ms, device_active_ms, wait_ms,
    communication_ms, exposed_communication_ms, bubble_ms, host_ms"""
    wait_ms: PerRank = field(default_factory=dict)
    """For each rank, time in collectives before the last of their ranks has arrived."""
    waits_for: Rows = field(default_factory=list)
    """rank, waits_for, ms, count: who waits for whom, the longest first"""
    stragglers: Rows = field(default_factory=list)
    """rank, held_ms (how long each of the others waits for it), why"""
    look_at: Rows = field(default_factory=list)
    """The ten ops that hold the step up most: name, phase, ms (on the critical path), share, calls, launches, host_ms,
    device_ms, mostly (host, device, sync or exchange)"""
    overheads: dict[str, dict[str, float]] = field(default_factory=dict)
    """T1 to T5: ms, count, mean_us, share"""
    by_op: Rows = field(default_factory=list)
    """name, device_ms, host_ms, count, share; so are the next three"""
    by_family: Rows = field(default_factory=list)
    by_phase: Rows = field(default_factory=list)
    by_module: Rows = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    workings: Workings | None = field(default=None, repr=False)
    """The ranks at their predicted times, and what else it was made of; not part of the JSON."""

    @property
    def sample_us(self) -> float | None:
        """Microseconds for each sample, from step to step.

        >>> Forecast(step_ms=8.0, step_ms_back_to_back=6.0, samples=4).sample_us
        1500.0
        """
        return (self.step_ms_back_to_back or self.step_ms) * 1e3 / self.samples if self.samples else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: times rounded to a tenth of a microsecond."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in UNTOLD}
