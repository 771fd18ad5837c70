"""What calls that look up many tables take on a device that was measured: a sum of what they move, at fitted rates.

A call for many tables moves much and waits for little. So its time is close to a sum of straight lines: over the rows
that it looks up, the distinct ones among them, and the embeddings that it makes. Fitted on a few hundred such calls,
this is closer than the models of single lookups are, and sums can be searched fast. A law is a file in ``laws/``, named
after its device; `benchmarks.sharding_law` fits them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretrace.platform.device import Device
from foretrace.platform.files import Positive, read_as
from foretrace.sharding.hits import Floats
from foretrace.sharding.memory import OUTPUT
from foretrace.sharding.pieces import DTYPES, OPTIMIZERS, Pieces

LAWS = Path(__file__).parent / "laws"
WIDE = 2**31
"""Elements of a tensor from which on PyTorch updates its rows with wider, slower arithmetic for their places."""
TERMS = ("call", "pooled", "bags", "looked_up", "ids", "distinct", "wide_looked_up", "wide_ids", "wide_distinct")
"""What a call has: itself, kilobytes of pooled embeddings, bags, kilobytes and number of ids, kilobytes of distinct
rows; the last three apart for tensors of so many elements."""


@dataclass(frozen=True)
class Law:
    """Microseconds for each unit of each of `TERMS`."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    spread: Positive
    """How far calls that were not fitted lay off, as a share, in nine of ten."""
    provenance: str

    @classmethod
    def of(cls, device: Device) -> Law | None:
        """The one of a device, where there is one.

        >>> Law.of(Device.named("a100")) is None
        True
        """
        path = LAWS / f"{device.name}.json"
        return read_as(cls, path) if path.is_file() else None

    def us(self, pieces: Pieces) -> Floats:
        """Forward and backward of each call."""
        return np.asarray(terms(pieces) @ np.array([self.forward, self.backward]).T)

    def call_us(self) -> Floats:
        """What of that a call takes however little it looks up."""
        return np.array([self.forward[0], self.backward[0]])


def holds(pieces: Pieces) -> NDArray[np.bool_]:
    """Whether laws hold for pieces: sums of float32 rows, updated by SGD, each on one rank."""
    plain = (pieces.dtype == DTYPES.index("float32")) & (pieces.optimizer == OPTIMIZERS.index("sgd"))
    return np.asarray(plain & ~pieces.everywhere & ~pieces.sequence)


def terms(pieces: Pieces) -> Floats:
    """What each call has of each of `TERMS`."""
    row, pooled = pieces.dim * pieces.itemsize / 1e3, pieces.bags * pieces.dim * OUTPUT / 1e3
    wide = pieces.rows * pieces.dim > WIDE
    moved = np.stack([pieces.count * row, pieces.count, pieces.unique * row], axis=1)
    apart = [np.where(which[:, None], moved, 0.0) for which in (~wide, wide)]
    return np.column_stack([np.ones(len(pieces)), pooled, pieces.bags, *apart])
