"""A measured step with something in every field, a predicted one, and a predicted job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrace.analysis.report import (
    CollectiveRow,
    Communication,
    HostOverhead,
    HotOp,
    PairWait,
    PathRow,
    QueueDepth,
    RankReport,
    StepReport,
    Straggler,
    TimeRow,
)

ADD = "void at::native::foo<4, at::native::AddFunctor<float>>(int)"


def measured_step() -> StepReport:
    return StepReport(
        source="traces/small",
        world=4,
        missing=[3],
        step="ProfilerStep#3",
        steps=2,
        step_ms=12.75,
        device_active_ms=5.5,
        device_idle_ms=4.5,
        device_span_ms=10.0,
        ranks=[
            measured_rank(0, 12.5, 5.0, 0.25, peak=2**30),
            measured_rank(1, 12.75, 5.5, 2.0, peak=2**30, launched_before_ms=0.125),
            measured_rank(2, 12.5, 6.0, 2.5),
        ],
        transfer_ms={"all_reduce": 1.5},
        collectives=[CollectiveRow("all_reduce", 2**26, 2, 0.75, 1.5, 4.75)],
        stragglers=[Straggler(0, 4.5, "its host launches late")],
        critical_path_ms=10.0,
        critical_path=[PathRow("T2", "aten::linear", 0, 6.0, 0.6), PathRow("kernel", ADD, 1, 4.0, 0.4)],
        critical_path_ranks={0: 6.0, 1: 4.0},
        overheads={f"T{i}": HostOverhead(1.0 * i, 10 * i, 100.0, 0.06 * i) for i in range(1, 6)},
        by_op=[TimeRow(f"aten::op_{i}", 5.0 / (i + 1), 1.0, 3, 0.5 / (i + 1)) for i in range(12)],
        by_family=[TimeRow("matrix product", 5.0, 2.0, 6, 1.0)],
        by_phase=[TimeRow("backward", 3.0, 1.0, 6, 0.6), TimeRow("forward", 2.0, 1.0, 6, 0.4)],
        by_module=[TimeRow("bottom.0", 3.0, 1.0, 6, 0.6), TimeRow("", 2.0, 1.0, 6, 0.4)],
        queue_depth=QueueDepth(3.5, 9),
        peak_memory_bytes=2**30,
        attributed=0.998,
        notes=["no trace of rank 3"],
    )


def measured_rank(
    rank: int, step_ms: float, active_ms: float, wait_ms: float, peak: int | None = None, **more: Any
) -> RankReport:
    return RankReport(
        rank, step_ms, device_active_ms=active_ms, device_idle_ms=10.0 - active_ms, wait_ms=wait_ms,
        communication=Communication(2.0, 0.5, 1.5, wait_ms=wait_ms), peak_memory_bytes=peak, **more,
    )  # fmt: skip


def time_row(name: str, share: float) -> TimeRow:
    return TimeRow(name, share, 0.5, 3, share)


def predicted_step() -> StepReport:
    return StepReport(
        source="train.py",
        platform="h200",
        step_ms=5.6,
        step_ms_back_to_back=5.5,
        low_ms=5.2,
        high_ms=6.1,
        device_active_ms=1.6,
        device_idle_ms=4.0,
        idle_causes={"T1": 1.0, "T2": 2.5, "T3": 0.0, "T4": 0.4, "T5": 0.0, "sync": 0.0, "latency": 0.1},
        kernel_ms=1.6,
        kernels=185,
        peak_memory_bytes=18 * 2**30,
        memory_bytes=141_000_000_000,
        fits=True,
        tflops=0.2,
        tflops_per_second=35.7,
        mfu=0.036,
        gigabytes=2.0,
        gbps=1250.0,
        coverage={"measured": 0.0, "model": 0.971, "fallback": 0.029},
        critical_path=[PathRow("T2", "aten::mm", 0, 3.0, 0.54)],
        look_at=[HotOp("aten::index_put_", "backward", 0.9, 0.16, 1, 3, 0.9, 0.1, "host")],
        ranks=[RankReport(0)],
        by_op=[time_row("aten::mm", 0.6), time_row("aten::add", 0.4)],
        by_family=[
            time_row("matrix product", 0.41), time_row("lookup", 0.22), time_row("copy", 0.14), time_row("norm", 0.1),
        ],
        by_phase=[time_row("forward", 0.3), time_row("backward", 0.7)],
        notes=["1 value read on the host"],
    )  # fmt: skip


def predicted_rank(number: int, wait_ms: float, **more: Any) -> RankReport:
    fields = {"device_span_ms": 5.0, "device_active_ms": 1.6, "bubble_ms": 2.5, **more}
    return RankReport(
        number, 5.6, wait_ms=wait_ms, communication=Communication(1.0, exposed_ms=0.7), host_ms=3.1, **fields
    )


def predicted_job() -> StepReport:
    return StepReport(
        source="train.py",
        platform="h200",
        world=2,
        step_ms=5.0,
        kernels=7,
        device_active_ms=1.6,
        ranks=[predicted_rank(0, 1.2), predicted_rank(1, 0.0)],
        waits_for=[PairWait(0, 1, 1.2, 3)],
        stragglers=[Straggler(1, 1.2, "slow host")],
        critical_path=[PathRow("T2", "aten::mm", 1, 4.0, 0.8), PathRow("transfer", "all_reduce", None, 1.0, 0.2)],
        critical_path_ranks={1: 4.0},
        overheads={"T2": HostOverhead(1.0, 1, 1.0, 1.0)},
    )


@dataclass
class Document:
    """A result with these JSON fields."""

    fields: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.fields
