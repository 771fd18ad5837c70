"""How much memory a step held at its fullest."""

from __future__ import annotations

import numpy as np

from foretrace.graph import Graph


def peak_memory(graph: Graph) -> int | None:
    """Most bytes alive at once on the rank's device; None where the source says nothing about memory.

    What the allocator said counts; where it was not asked, storages are added up from their births and deaths.

    >>> from foretrace.graph import OpTable, Storage
    >>> weights, activation = Storage(0, 100, "cuda:0"), Storage(1, 40, "cuda:0", birth=2, death=5)
    >>> peak_memory(Graph(OpTable.of([]), storages={0: weights, 1: activation}))
    140
    """
    if graph.allocated:
        return max(nbytes for _, nbytes in graph.allocated)
    devices = {storage.device for storage in graph.storages.values()}
    kinds = {device: device.partition(":")[0] for device in devices}
    # A job that uses an accelerator at all keeps on the host only what it moves there.
    main = next(iter(sorted({*kinds.values()} - {"cpu", "meta"})), "cpu")
    held = [s for s in graph.storages.values() if kinds[s.device] == main]
    if not held:
        return None
    births = np.array([s.birth for s in held])
    forever = max(births.max(), max(s.death for s in held)) + 1
    deaths = np.array([s.death if s.death >= 0 else forever for s in held])
    nbytes = np.array([s.nbytes for s in held], np.int64)
    change = np.zeros(forever + 2, np.int64)
    np.add.at(change, births + 1, nbytes)
    np.add.at(change, deaths + 1, -nbytes)
    return int(np.cumsum(change).max())
