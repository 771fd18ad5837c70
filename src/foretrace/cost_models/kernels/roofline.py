"""Rooflines: the least time that a call's arithmetic and memory traffic take, and the estimate for calls without a
model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device
from foretrace.platform.typed_json import read_as

if TYPE_CHECKING:
    from foretrace.cost_models.kernels.estimators.dataset import Dataset

MEASURED, MODEL, FALLBACK, EXTRAPOLATED, ASSUMED = range(5)
"""Sources of a kernel's time; the third is a roofline, the fourth a model asked about a call unlike those that it was
fitted on, or like those of which it often is far off; the last has a size that a sketch assumed."""
FILE = "fallback.json"
LATENCY_US = 0.6
"""Latency of a load from device memory, about the same on all GPUs of these years."""

INDEX_BYTES = 8


class Work(NamedTuple):
    """Arithmetic, the fewest bytes that must move, and dependent loads: what a roofline is made of.

    >>> Work(flops=2e9, bytes=4e6).us(Device.named("h200")) > 0
    True
    """

    flops: float = 0.0
    bytes: float = 0.0
    rate: str = "float32"
    """The peak rate that applies: a dtype, or ``tf32``."""
    round_trips: float = 0.0
    """Memory round trips on the longest chain of loads that depend on each other."""
    link_bytes: float = 0.0
    """Bytes over the link to the host."""

    def us(self, device: Device) -> float:
        """Microseconds that hardly any kernel on the device can beat."""
        return max(
            self.flops / (device.peak(self.rate) * 1e6),
            self.bytes / (device.memory_gbps * 1e3),
            self.round_trips * LATENCY_US,
            self.link_us(device),
        )

    def link_us(self, device: Device) -> float:
        """Microseconds that the link to the host is busy; none where its bandwidth is not known."""
        return self.link_bytes / (device.host_gbps * 1e3) if device.host_gbps else 0.0


def work_of(op: Op) -> Work:
    """The work of a call of no family: every input read once, every output written once and computed by one operation.

    >>> from foretrace.graph import Tensor
    >>> work_of(Op("aten::some", (Tensor((8,), "float32"),), outputs=(Tensor((8,), "float32"),))).bytes
    64.0

    Each element that a sparse matrix stores is read with its place, and multiplied with a row of the other matrix.

    >>> sparse = Tensor((1000, 1000), "float32", layout="sparse_csr", stored=5000)
    >>> work_of(Op("aten::mm", (sparse, Tensor((1000, 8), "float32")), outputs=(Tensor((1000, 8), "float32"),)))
    Work(flops=80000.0, bytes=124000.0, rate='float32', round_trips=0.0, link_bytes=0.0)
    """
    made = op.produced
    moved = sum(map(_bytes_of, op.tensors)) + sum(map(_bytes_of, made))
    flops = sum(t.numel if t.stored < 0 else t.stored for t in made)
    stored = max((t.stored for t in op.tensors), default=-1)
    if stored >= 0 and made:
        flops = max(flops, 2 * stored * made[0].shape[-1] if len(made[0].shape) > 1 else 2 * stored)
    return Work(flops=float(flops), bytes=float(moved))


def _bytes_of(tensor: Tensor) -> int:
    return tensor.nbytes if tensor.stored < 0 else tensor.stored * (tensor.itemsize + INDEX_BYTES)


@dataclass(frozen=True)
class RooflineFallback:
    """The estimate for calls without a model: their roofline, slowed down as measured calls are against theirs."""

    start_us: float
    """Start-up time of a kernel."""
    slower: float
    """Factor on the roofline."""
    low: float
    """10th percentile of measured over predicted."""
    high: float
    """90th percentile."""

    @classmethod
    def fit(cls, calls: Dataset) -> RooflineFallback:
        """From calls of all families: the fastest calls give the start-up time, the median of the rest the factor."""
        if not len(calls):
            return cls(0.0, 1.0, 1.0, 10.0)  # nothing measured: the roofline itself, and up to ten times as long
        cold, roof = calls.us[:, 0], calls.roof_us
        start = float(np.quantile(cold, 0.05))
        large = roof > start / 2
        slower = float(np.median((cold[large] - start).clip(0.1) / roof[large])) if large.any() else 1.0
        ratio = cold / (start + slower * roof)
        return cls(round(start, 3), round(slower, 3), *(round(float(np.quantile(ratio, q)), 3) for q in (0.1, 0.9)))

    def us(self, work: Work, device: Device) -> float:
        """Estimated microseconds of a call."""
        return self.start_us + self.slower * work.us(device)

    def write(self, folder: Path) -> None:
        """Write it to its file in the models' folder."""
        (folder / FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> RooflineFallback:
        """Read what `write` wrote."""
        return read_as(cls, folder / FILE)
