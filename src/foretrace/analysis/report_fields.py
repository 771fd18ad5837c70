"""The JSON fields of a step report: those of `foretrace predict --json` and of `foretrace show --json`."""

from __future__ import annotations

from typing import Any

from foretrace.analysis.report import StepReport, idle_by_cause

PREDICTED = (
    "source", "platform", "fabric", "stack", "world", "step_ms", "mark_ms", "step_ms_back_to_back", "span_ms",
    "profiling_ms", "iterations", "samples", "low_ms", "high_ms", "device_active_ms", "device_idle_ms",
    "device_span_ms", "idle_causes", "kernel_ms", "kernels", "exposed_communication_ms", "hidden_communication_ms",
    "peak_memory_bytes", "memory_bytes", "fits", "tflops", "reserved_memory_bytes", "memory_by_kind", "memory_verdict",
    "memory_margin_bytes", "to_fit", "carried", "bound", "limiting", "tflops_per_second", "mfu", "gigabytes", "gbps",
    "power_w", "sustained_ms", "energy_j", "energy_low_j", "energy_high_j", "price_of_1000", "coverage",
    "critical_path", "critical_path_ranks", "waits_for", "stragglers", "straggler_gain_ms", "look_at", "overheads",
    "by_op", "by_family", "by_phase", "by_module", "cautions", "notes",
)  # fmt: skip
"""Fields of a predicted step's JSON that are those of the report."""
MEASURED = (
    "source", "world", "missing", "step", "steps", "iterations", "device_span_ms", "transfer_ms", "collectives",
    "stragglers", "straggler_gain_ms",
    "critical_path_ms", "critical_path", "critical_path_ranks", "overheads", "by_op", "by_family", "by_phase",
    "by_module", "queue_depth", "attributed", "notes", "bound", "limiting", "idle", "idle_causes",
)  # fmt: skip
"""The same of a measured step's."""
PER_RANK = (
    "step_ms", "mark_ms", "device_active_ms", "device_idle_ms", "kernel_ms", "wait_ms", "peak_memory_bytes",
    "launched_before_ms",
)  # fmt: skip
"""Fields of a measured step's JSON that have a value for each rank."""


OF_A_PREDICTED_RANK = ("device_active_ms", "device_span_ms", "bubble_ms", "launched_before_ms")
OF_A_DEVICE = (
    "device_active_ms", "device_idle_ms", "device_span_ms", "kernel_ms", "kernels", "exposed_communication_ms",
    "hidden_communication_ms", "gbps",
)  # fmt: skip
"""Fields of a predicted step that are unknown where work was launched and the source has no kernel of it."""


def predicted_fields(report: StepReport) -> dict[str, Any]:
    """The fields of a predicted step's JSON."""
    unseen = dict.fromkeys(OF_A_DEVICE) if report.unrecorded_launches else {}
    return {
        **{name: getattr(report, name) for name in PREDICTED},
        **unseen,
        "wait_ms": report.by_rank("wait_ms"),
        "ranks": [
            {
                "rank": rank.rank, "stands_for": rank.stands_for, "start_ms": rank.start_ms, "step_ms": rank.step_ms,
                "device_span_ms": rank.device_span_ms, "device_active_ms": rank.device_active_ms,
                "wait_ms": rank.wait_ms,
                "communication_ms": rank.communication.communication_ms,
                "exposed_communication_ms": rank.communication.exposed_ms,
                "bubble_ms": rank.bubble_ms, "host_ms": rank.host_ms, "launched_before_ms": rank.launched_before_ms,
                **{name: None for name in OF_A_PREDICTED_RANK if rank.unrecorded_launches},
            }
            for rank in report.ranks
        ],
    }  # fmt: skip


OF_DEVICES = ("device_active_ms", "device_idle_ms", "kernel_ms", "wait_ms", "launched_before_ms", "communication")
"""Fields of a rank that are unknown where its device is not recorded."""


def measured_fields(report: StepReport) -> dict[str, Any]:
    """The fields of a measured step's JSON; null where the source tells nothing: of devices, or of any time."""
    unprofiled = report.unprofiled

    def by_rank(name: str) -> dict[int, Any]:
        if not report.timed and name != "peak_memory_bytes":
            return dict.fromkeys(rank.rank for rank in report.ranks)
        unseen = {rank.rank for rank in report.ranks if rank.unrecorded_launches and name in OF_DEVICES}
        return {rank: None if rank in unseen else value for rank, value in report.by_rank(name).items()}

    totals = {name: getattr(report, name) for name in MEASURED}
    if report.unrecorded_launches or not report.timed:
        totals |= {"device_span_ms": None, "attributed": None}
    if not report.timed:
        totals["critical_path_ms"] = None
    return {
        **totals,
        **{name: by_rank(name) for name in PER_RANK},
        "overlap": by_rank("communication"),
        "ranks": {
            rank.rank: {
                "overheads": rank.overheads,
                "queue_depth": rank.queue_depth,
                "bound": rank.bound,
                "idle_causes": idle_by_cause(rank.idle),
            }
            for rank in report.ranks
        },
        "plain": {} if unprofiled is None else unprofiled,
        "slowdown": report.profiling_overhead,
    }
