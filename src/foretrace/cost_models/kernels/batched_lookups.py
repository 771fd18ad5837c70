"""FBGEMM's table-batched lookups: one kernel for all tables of a rank, and one backward that updates their rows.

Priced as bytes at a share of the memory bandwidth. The shares are fitted on published measurements of one GPU
(`benchmarks.fit.sharding_tbe`) and scaled to others by their bandwidth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from foretrace.graph import Indices, Op, Tensor
from foretrace.graph.operators import FBGEMM
from foretrace.platform.device import Device
from foretrace.platform.typed_json import Positive, read_as

TBE_FILE = Path(__file__).with_name("batched_lookups.json")
FORWARD = re.compile(rf"{FBGEMM}(split|dense|ssd)_embedding_(nobag_)?codegen_(lookup_(\w+_)?function\w*|forward_\w+)$")
BACKWARD = re.compile(
    rf"{FBGEMM}(split|dense|ssd)_embedding_(nobag_)?backward_codegen_(?P<optimizer>\w+?)_(un)?weighted"
)
IDS = ("int64", "int32")
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


class BatchedSizes(NamedTuple):
    """Sizes of all tables together."""

    rows: int
    dim: int
    """The mean of all tables."""
    ids: Tensor
    examples: int
    width: int
    """Of a row of the result, with the embeddings of all tables."""
    itemsize: int
    pooled_itemsize: int


def is_batched_lookup(name: str) -> bool:
    """Whether an op is a table-batched lookup, or its backward.

    >>> is_batched_lookup("fbgemm::split_embedding_codegen_forward_unweighted_pt2_wrapper")
    True
    >>> is_batched_lookup("fbgemm::permute_2D_sparse_data")
    False
    """
    return name.startswith(FBGEMM) and bool(FORWARD.match(name) or BACKWARD.match(name))


def batched_sizes(op: Op) -> BatchedSizes | None:
    """Sizes of a table-batched call; None where its tensors do not tell.

    Versions of FBGEMM differ in the order of arguments. Offsets have one element more than tables times examples, right
    after the ids; where each table begins in a row of the result, one more than tables.
    """
    made = op.produced if FORWARD.match(op.name) else op.tensors
    rows = [t for t in made if len(t.shape) == 2 and t.dtype not in IDS]
    weights = max((t for t in op.tensors if t.dtype not in IDS and len(t.shape) == 1), key=lambda t: t.numel,
                  default=None)  # fmt: skip
    if not rows or weights is None:
        return None
    examples, width = rows[0].shape
    lists = [tensor for tensor in op.tensors if tensor.dtype in IDS and len(tensor.shape) == 1]
    begins = {tensor.shape[0] - 1 for tensor in lists}
    for ids, offsets in pairwise(lists):
        bags, tables = offsets.shape[0] - 1, 1
        if "nobag" not in op.name:
            tables = bags // max(1, examples)
            if not tables or bags != tables * examples or (tables > 1 and tables not in begins):
                continue
        elif ids.shape[0] != examples:
            continue
        dim = max(1, width // tables)
        return BatchedSizes(weights.numel // dim, dim, ids, examples, width, weights.itemsize, rows[0].itemsize)
    return None


def batched_lookup_us(op: Op, found: Indices | None, device: Device) -> float | None:
    """Microseconds of a table-batched call, given the statistics of its ids; None where its tensors do not tell.

    Forward, all rows are read and pooled; backward, ids are sorted, gradients added up and distinct rows updated.
    """
    sizes = batched_sizes(op)
    if sizes is None or found is None:
        return None
    model, row, ids = TbeModel.shipped(), sizes.dim * sizes.itemsize, sizes.ids.numel
    rate = device.memory_gbps * 1e3
    backward = BACKWARD.match(op.name)
    if not backward:
        moved = ids * (row + ID_BYTES) + sizes.examples * sizes.width * sizes.pooled_itemsize
        return moved / model.looked_up_share / rate
    states = STATES.get(backward["optimizer"], 1 / sizes.dim)
    gradients = ids * (sizes.dim * sizes.pooled_itemsize + ID_BYTES)
    updated = found.unique * 2 * (row + states * sizes.dim * 4)
    if backward["optimizer"] == "dense":
        updated = sizes.rows * row  # a gradient as large as the tables
    return (gradients / model.gradient_share + updated / model.updated_share) / rate
