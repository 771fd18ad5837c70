"""A time for calls of no family: the roofline of their tensors, slowed as measured calls are against theirs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from foretrace.cost_models.kernels.estimators.dataset import Rows
from foretrace.cost_models.kernels.families import Work
from foretrace.graph import Op
from foretrace.platform.device import Device
from foretrace.platform.files import read_as

FILE = "fallback.json"


@dataclass(frozen=True)
class Fallback:
    """Start-up time, and the factor by which the roofline is missed."""

    start_us: float
    slower: float
    low: float
    """10th percentile of measured over predicted."""
    high: float
    """90th percentile."""

    @classmethod
    def of(cls, rows: Rows) -> Fallback:
        """From calls of all families: the fastest call is the start, the median of what is left the factor.

        >>> us = np.array([[2.0, 2.0]] * 20 + [[22.0, 22.0]])
        >>> found = Fallback.of(Rows(np.zeros((21, 0)), np.zeros(21), np.array([0.0] * 20 + [10.0]), us, []))
        >>> found.start_us, found.slower
        (2.0, 2.0)
        """
        if not len(rows):
            return cls(0.0, 1.0, 1.0, 10.0)  # nobody knows: the roofline itself, and much worse
        cold, roof = rows.us[:, 0], rows.roof_us
        start = float(np.quantile(cold, 0.05))
        large = roof > start / 2
        slower = float(np.median((cold[large] - start).clip(0.1) / roof[large])) if large.any() else 1.0
        ratio = cold / (start + slower * roof)
        return cls(round(start, 3), round(slower, 3), *(round(float(np.quantile(ratio, q)), 3) for q in (0.1, 0.9)))

    def us(self, work: Work, device: Device) -> float:
        """Microseconds of a call that has so much to do."""
        return self.start_us + self.slower * work.us(device)

    def write(self, folder: Path) -> None:
        """Into a file of the models' folder."""
        (folder / FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Fallback:
        """What `write` wrote."""
        return read_as(cls, folder / FILE)


def work_of(op: Op) -> Work:
    """Everything it is given is read once, everything it makes is written, and each element made is computed.

    >>> from foretrace.graph import Tensor
    >>> work_of(Op("aten::some", (Tensor((8,), "float32"),), outputs=(Tensor((8,), "float32"),))).bytes
    64.0
    """
    made = op.produced
    moved = sum(t.nbytes for t in op.tensors) + sum(t.nbytes for t in made)
    return Work(flops=float(sum(t.numel for t in made)), bytes=float(moved))
