"""What driver and system report of a device, stored with its measurements; and the description made from both.

A device that is shipped with Foretrace is described by its maker; any other by its driver, with the best measured rates
as its peaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from foretrace.errors import ForetraceError
from foretrace.graph import Op, Tensor
from foretrace.graph.operators import GEMMS
from foretrace.platform.device import Device, Measured
from foretrace.platform.measurements.kernels import Measurement
from foretrace.platform.typed_json import Positive, PositiveInt, read_as, write

DEVICE_FILE = "device.json"
CEILINGS = "ceilings"
"""The file of calls that come close to a device's peaks, next to those of the families."""
LARGE_BYTES = 2**28
"""A copy of this many bytes fits into no cache."""


@dataclass(frozen=True)
class DeviceFacts:
    """A device as its driver or system describes it, and how its streams work."""

    kind: str
    matches: str
    sms: PositiveInt
    clock_mhz: Positive
    memory_clock_mhz: Positive
    memory_gb: Positive
    l2_mb: Positive
    machine: dict[str, str] = field(default_factory=dict)
    """Versions and the date, from `foretrace.calibration.timing.device.machine_facts`."""
    kernel_gap_us: float = 0.0
    launch_latency_us: float = 0.0
    queue_depth: PositiveInt | None = None
    provenance: str = ""
    """How the three figures before were measured."""

    @classmethod
    def read(cls, raw: Path) -> DeviceFacts:
        """Read them from a folder of measurements."""
        return read_as(cls, raw / DEVICE_FILE, "Measure the device again, with the same --out.")

    def write(self, raw: Path) -> None:
        """Write them to a folder of measurements."""
        write(raw / DEVICE_FILE, asdict(self))


def describe_device(facts: DeviceFacts, found: Iterable[Measurement], name: str) -> Device:
    """The description of a device: its maker's where it is shipped, else its driver's with the best measured rates.

    ``found`` are measurements of GEMMs and copies, those of `CEILINGS` among them; the name is of a device whose
    description is not shipped.
    """
    found = list(found)
    tflops, gbps = best_tflops(found), best_gbps(found)
    if facts.kind == "cpu":
        tflops.pop("tf32", None)  # a CPU has no Tensor Cores: it is float32 there
    rates = f"rates: the best of the GEMMs and copies measured up to {facts.machine.get('made', '?')[:10]}"
    measured = Measured(
        kernel_gap_us=facts.kernel_gap_us,
        launch_latency_us=facts.launch_latency_us,
        queue_depth=facts.queue_depth,
        memory_gbps=gbps,
        tflops=tflops,
        provenance="; ".join(filter(None, (rates, facts.provenance))),
    )
    known = Device.matching(facts.matches)
    if known:
        return replace(known, measured=measured)
    if "float32" not in tflops or gbps is None:
        raise ForetraceError(
            f"the measurements hold no float32 GEMM or no large copy on {facts.matches}, which has no description",
            "Measure its ceilings: `foretrace calibrate device` with the same --out.",
        )
    return Device(
        name=name,
        matches=facts.matches,
        sms=facts.sms,
        clock_mhz=facts.clock_mhz,
        memory_clock_mhz=facts.memory_clock_mhz,
        memory_gb=round(facts.memory_gb, 3),
        memory_gbps=gbps,
        l2_mb=facts.l2_mb,
        peak_tflops=tflops,
        provenance="as the system describes it; the rates are the best that were measured",
        kind=facts.kind,
        measured=measured,
    )


def best_tflops(found: Iterable[Measurement]) -> dict[str, float]:
    """The best rate of GEMMs by dtype, ``tf32`` apart from float32."""
    best: dict[str, float] = {}
    for one in found:
        if one.case.op.name in GEMMS and not one.error and one.warm:
            dtype = _factors(one.case.op)[0].dtype
            if dtype == "float32" and one.case.tf32:
                dtype = "tf32"
            best[dtype] = max(best.get(dtype, 0.0), gemm_flops(one.case.op) / one.us("warm") / 1e6)
    return {dtype: _rounded(rate) for dtype, rate in sorted(best.items())}


def gemm_flops(op: Op) -> float:
    """Floating-point operations of a GEMM.

    >>> gemm_flops(Op("aten::mm", (Tensor((2, 3), "float32"), Tensor((3, 4), "float32"))))
    48.0
    """
    first, second = _factors(op)
    return 2.0 * math.prod(first.shape) * second.shape[-1]


def _factors(op: Op) -> list[Tensor]:
    """The two matrices of a GEMM: the last two tensors by position, after a bias."""
    return [value for value in op.args if isinstance(value, Tensor)][-2:]


def best_gbps(found: Iterable[Measurement]) -> float | None:
    """The best rate of a copy within device memory, bytes read and written; None where no copy was large enough."""
    rates = [
        sum(tensor.nbytes for tensor in one.case.op.tensors) / one.us("cold") / 1e3
        for one in found
        if one.case.op.name == "aten::copy_" and not one.error and one.cold and _is_large(one.case.op)
    ]
    return _rounded(max(rates)) if rates else None


def _is_large(op: Op) -> bool:
    dense = all(tensor.stride is None and not tensor.device for tensor in op.tensors)
    return dense and sum(tensor.nbytes for tensor in op.tensors) >= LARGE_BYTES


def _rounded(rate: float) -> float:
    """Four figures: repeats agree on no more."""
    return float(f"{rate:.4g}")
