"""What calls that look up many tables take on a device that was measured: a sum of what they move, at fitted rates.

A call for many tables moves much and waits for little. So its time is close to a sum of straight lines: over the rows
that it looks up, the distinct ones among them, and the embeddings that it makes. Fitted on a few hundred such calls,
this is closer than the models of single lookups are, and sums can be searched fast. A law is a file in ``laws/``, named
after its device; `benchmarks.sharding_law` fits them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretrace.platform.device import Device
from foretrace.platform.files import Positive, read_as
from foretrace.sharding.shards import DTYPES, ID, OPTIMIZERS, OUTPUT, Floats, Pieces, Priced
from foretrace.sharding.tables import STATE

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


# --- was sharding.tbe: FBGEMM's table-batched embeddings: one kernel forward, and one that sorts, adds up gradients and updates the rows.

CONSTANTS = Path(__file__).with_name("tbe.json")


@dataclass(frozen=True)
class Shares:
    """Parts of the memory's rate that FBGEMM's kernels reach."""

    looked_up_share: Positive
    gradient_share: Positive
    updated_share: Positive
    spread: Positive
    """How far times on other GPUs may be off, as a share."""
    provenance: str

    @classmethod
    @cache
    def shipped(cls) -> Shares:
        """Those that come with Foretrace."""
        return read_as(cls, CONSTANTS)


def traffic(pieces: Pieces) -> tuple[Floats, Floats, Floats]:
    """Bytes that are looked up and pooled; of gradients, and ids to sort; and of distinct rows, to update them."""
    row = pieces.dim * pieces.itemsize
    pooled = pieces.dim * OUTPUT
    element, per_row = np.array([STATE[name] for name in OPTIMIZERS], np.float64)[pieces.optimizer].T
    looked_up = pieces.count * (row + ID) + pieces.bags * pooled
    gradients = pieces.count * (pooled + ID)
    updated = pieces.unique * 2 * (row + pieces.dim * element + per_row)
    return np.asarray(looked_up), np.asarray(gradients), np.asarray(updated)


def price_tbe(pieces: Pieces, device: Device) -> Priced:
    """Each piece, as a part of a kernel that looks up many."""
    known = Shares.shipped()
    looked_up, gradients, updated = traffic(pieces)
    rate = device.memory_gbps * 1e3
    forward = looked_up / known.looked_up_share / rate
    backward = (gradients / known.gradient_share + updated / known.updated_share) / rate
    typical = np.stack([forward, backward], axis=1)
    return Priced(typical / (1 + known.spread), typical, typical * (1 + known.spread))
