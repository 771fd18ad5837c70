"""Bytes that pieces of tables take on a rank: weights, what the optimizer keeps, and what a step makes."""

from __future__ import annotations

import numpy as np

from foretrace.sharding.hits import Floats
from foretrace.sharding.pieces import Pieces

ID, OUTPUT = 8, 4
"""Bytes of an id, and of an element of a pooled embedding."""
KEPT_FREE = 0.1
"""Part of a device's memory that tables leave to the allocator, the libraries and what else a rank does."""


def memory(pieces: Pieces, gradients: bool) -> Floats:
    """Of each piece.

    Parameters
    ----------
    pieces
        What a rank may hold.
    gradients
        Whether a gradient of each id that is looked up is held until the update, as PyTorch's own sparse ones are;
        FBGEMM updates rows as it goes.
    """
    weights = pieces.rows * pieces.dim * pieces.itemsize
    pooled = 2 * pieces.bags * pieces.dim * OUTPUT
    ids = pieces.count * ID
    dense = np.where(pieces.everywhere, weights, 0.0)
    sparse = np.where(pieces.everywhere, 0.0, pieces.count * (pieces.dim * pieces.itemsize + ID) * gradients)
    return np.asarray(weights + pieces.state_bytes + pooled + ids + dense + sparse)
