"""FBGEMM's table-batched embeddings: one kernel forward, and one that sorts, adds up gradients and updates the rows.

Where FBGEMM can't be run, its time is taken to be bytes at a share of the memory's rate. Forward these are all rows
that are looked up; backward, the gradients of those, and what is read and written of each distinct row. The shares are
fitted on published measurements of one GPU and carried over to others by the rate of their memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from foretrace.platform.device import Device
from foretrace.platform.files import Positive, read_as
from foretrace.sharding.hits import Floats
from foretrace.sharding.lookups import Priced
from foretrace.sharding.memory import ID, OUTPUT
from foretrace.sharding.pieces import OPTIMIZERS, Pieces
from foretrace.sharding.tables import STATE

CONSTANTS = Path(__file__).with_suffix(".json")


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
