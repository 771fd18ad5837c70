"""Linear models of lookup kernels that serve many tables: microseconds as a sum over what a call moves.

A call for many tables moves much and waits for little, so that its time is close to a linear function of the rows that
it looks up, the distinct ones among them, and the embeddings that it returns. Such sums can also be searched fast.

- `FusedModel`: PyTorch's ``_embedding_bag`` over many tables in one tensor. Fitted on a few hundred calls of a measured
  device (`benchmarks.fit.sharding_law`), it is closer than single lookups. One file per device in ``data/``.
- `price_tbe`: FBGEMM's table-batched embeddings: one kernel forward, and one backward that sorts ids, adds up gradients
  and updates rows. Priced as bytes at a share of the memory bandwidth; the shares are fitted on published measurements
  of one GPU and scaled to others by their bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.batched_lookups import TbeModel
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device
from foretrace.platform.typed_json import Positive, read_as
from foretrace.sharding.shards import DTYPES, EMBEDDING_BYTES, ID_BYTES, OPTIMIZERS, LookupTimes, Shards

DATA = Path(__file__).parent / "data"
WIDE_ELEMENTS = 2**31
"""Elements of a tensor above which PyTorch updates rows with 64-bit index arithmetic, which is slower."""
TERMS = ("call", "pooled", "bags", "looked_up", "ids", "distinct", "wide_looked_up", "wide_ids", "wide_distinct")
"""Terms of a call: one for itself, kilobytes of embeddings, bags, kilobytes of looked-up rows, ids, kilobytes of
distinct rows; the last three apart for tensors of more than `WIDE_ELEMENTS`."""


@dataclass(frozen=True)
class FusedModel:
    """Microseconds for each unit of each of `TERMS`."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    spread: Positive
    """Relative error of nine in ten calls that were not fitted."""
    provenance: str

    @classmethod
    def of(cls, device: Device) -> FusedModel | None:
        """The model of a device, if there is one.

        >>> FusedModel.of(Device.named("a100")) is None
        True
        """
        path = fused_file(device.name)
        return read_as(cls, path) if path.is_file() else None

    def us(self, calls: Shards) -> Floats:
        """Forward and backward of each call."""
        return np.asarray(terms(calls) @ np.array([self.forward, self.backward]).T)

    def call_us(self) -> Floats:
        """The constant part of that."""
        return np.array([self.forward[0], self.backward[0]])

    @staticmethod
    def applies(shards: Shards) -> NDArray[np.bool_]:
        """Whether the model holds for each shard: pooled float32 rows, updated by SGD, on one rank."""
        fitted = (shards.dtype == DTYPES.index("float32")) & (shards.optimizer == OPTIMIZERS.index("sgd"))
        return np.asarray(fitted & ~shards.replicated & ~shards.sequence)


def fused_file(device: str) -> Path:
    """The file of a device's `FusedModel`."""
    return DATA / f"fused_{device}.json"


def terms(calls: Shards) -> Floats:
    """The value of each of `TERMS` for each call."""
    row, pooled = calls.dim * calls.itemsize / 1e3, calls.bags * calls.dim * EMBEDDING_BYTES / 1e3
    wide = calls.rows * calls.dim > WIDE_ELEMENTS
    moved = np.stack([calls.ids * row, calls.ids, calls.unique * row], axis=1)
    apart = [np.where(which[:, None], moved, 0.0) for which in (~wide, wide)]
    return np.column_stack([np.ones(len(calls)), pooled, calls.bags, *apart])


def price_tbe(shards: Shards, device: Device) -> LookupTimes:
    """Each shard as a part of FBGEMM's kernels for many."""
    model = TbeModel.shipped()
    looked_up, gradients, updated = tbe_bytes(shards)
    rate = device.memory_gbps * 1e3
    forward = looked_up / model.looked_up_share / rate
    backward = (gradients / model.gradient_share + updated / model.updated_share) / rate
    typical = np.stack([forward, backward], axis=1)
    return LookupTimes(typical / (1 + model.spread), typical, typical * (1 + model.spread))


def tbe_bytes(shards: Shards) -> tuple[Floats, Floats, Floats]:
    """Bytes of rows that are looked up and pooled; of gradients and sorted ids; and of rows that are updated."""
    row = shards.dim * shards.itemsize
    pooled = shards.dim * EMBEDDING_BYTES
    looked_up = shards.ids * (row + ID_BYTES) + shards.bags * pooled
    gradients = shards.ids * (pooled + ID_BYTES)
    updated = shards.unique * 2 * (row + shards.state_row_bytes)
    return np.asarray(looked_up), np.asarray(gradients), np.asarray(updated)
