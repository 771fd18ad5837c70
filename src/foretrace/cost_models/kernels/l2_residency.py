"""L2 residency: the share of a call's inputs that the device's cache still holds from the calls before it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Op

UNKNOWN_SHARE = 0.5
"""Share of a tensor that is taken to be in the cache if its last use is unknown."""
USABLE_SHARE = 0.5
"""Share of the cache that holds different data: each half of a GPU's L2 keeps its own copy of what both need."""
RETAINED_GAIN = 0.8
"""Share of the gain of an immediate repeat that a call has if its inputs are in the cache: other kernels ran in
between, whose code and constants replaced its own in the smaller caches. With these two, the calls of twelve recorded
steps, each timed alone, add up to the steps' device time within 0.8 % on average, 1.5 % at most."""


def l2_residency(ops: Sequence[Op], cache_bytes: float) -> NDArray[np.float64]:
    """For each op, the share of the bytes it reads that were touched so recently that the cache holds them.

    A tensor stays until as many other bytes as the cache can use were touched after it.

    >>> from foretrace.graph import Tensor
    >>> small, large = Tensor((1000,), "int8", storage=1), Tensor((10_000,), "int8", storage=2)
    >>> calls = [Op("aten::relu", (tensor,)) for tensor in (small, small, large, small)]
    >>> l2_residency(calls, cache_bytes=10_000).tolist()
    [0.0, 0.8, 0.0, 0.0]
    """
    usable, touched = USABLE_SHARE * cache_bytes, 0.0
    last: dict[int, float] = {}
    result = [0.0] * len(ops)
    for place, op in enumerate(ops):
        read = held = 0.0
        sizes: dict[int, int] = {}
        for tensor in op.tensors:
            if tensor.device == "cpu":
                continue
            size, storage = tensor.nbytes, tensor.storage
            read += size
            if storage < 0:
                held += size * UNKNOWN_SHARE
                continue
            left = usable - touched + last.get(storage, -inf)
            if left > 0:
                held += size if size < left else left
            if size > sizes.get(storage, -1):
                sizes[storage] = size
        result[place] = RETAINED_GAIN * (held / read if read else UNKNOWN_SHARE)
        for tensor in op.produced:
            size, storage = tensor.nbytes, tensor.storage
            if size > sizes.get(storage, -1):
                sizes[storage] = size
        sizes.pop(-1, None)
        touched += sum(sizes.values())
        last.update(dict.fromkeys(sizes, touched))
    return np.array(result)
