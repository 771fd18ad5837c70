"""FBGEMM's table-batched lookups: one kernel for all tables of a rank, and one backward that updates their rows.

Priced as bytes at a share of the memory bandwidth. The shares are fitted on published measurements of one GPU
(`benchmarks.fit.sharding_tbe`) and scaled to others by their bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from foretrace.cost_models.kernels.families.lookups import BATCHED_BACKWARD, batched_sizes
from foretrace.graph import Indices, Op
from foretrace.platform.device import Device
from foretrace.platform.typed_json import Positive, read_as

TBE_FILE = Path(__file__).with_name("batched_lookups.json")
ID_BYTES = 8
STATES = {"sgd": 0, "dense": 0, "none": 0, "adagrad": 1, "lars_sgd": 1, "adam": 2, "lamb": 2, "partial_rowwise_adam": 1,
          "partial_rowwise_lamb": 1}  # fmt: skip
"""Numbers of state that an optimizer has for each weight; others have one for each row."""


@dataclass(frozen=True)
class TbeModel:
    """Shares of the memory bandwidth that FBGEMM's kernels reach."""

    looked_up_share: Positive
    gradient_share: Positive
    updated_share: Positive
    spread: Positive
    """Relative error that times on other GPUs may have."""
    provenance: str

    @classmethod
    @cache
    def shipped(cls) -> TbeModel:
        """The model that comes with Foretrace."""
        return read_as(cls, TBE_FILE)


def batched_lookup_us(op: Op, found: Indices | None, device: Device) -> float | None:
    """Microseconds of a table-batched call, given the statistics of its ids; None where its tensors do not tell.

    Forward, all rows are read and pooled; backward, ids are sorted, gradients added up and distinct rows updated.
    """
    sizes = batched_sizes(op)
    if sizes is None or found is None:
        return None
    model, row, ids = TbeModel.shipped(), sizes.dim * sizes.itemsize, sizes.ids.numel
    rate = device.memory_gbps * 1e3
    backward = BATCHED_BACKWARD.match(op.name)
    if not backward:
        moved = ids * (row + ID_BYTES) + sizes.examples * sizes.width * sizes.pooled_itemsize
        return moved / model.looked_up_share / rate
    states = STATES.get(backward["optimizer"], 1 / sizes.dim)
    gradients = ids * (sizes.dim * sizes.pooled_itemsize + ID_BYTES)
    updated = found.unique * 2 * (row + states * sizes.dim * 4)
    if backward["optimizer"] == "dense":
        updated = sizes.rows * row  # a gradient as large as the tables
    return (gradients / model.gradient_share + updated / model.updated_share) / rate
