"""Memory of a step: peak, and bytes held op by op, as PyTorch's CUDA caching allocator counts allocated memory.

Not modelled is what the allocator reserves beyond that: memory lost to fragmentation, and free blocks that it caches.
Nor are the CUDA context and what libraries allocate by themselves; `prediction.report` adds cuBLAS's workspaces.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretrace.graph import Graph
from foretrace.graph.calls import dispatched
from foretrace.graph.graph import cut_to_step
from foretrace.graph.tables import Floats, Ints, Longs

BLOCK = 512
"""PyTorch's caching allocator rounds the size of an allocation up to a multiple of these bytes."""
MAKES_SPARSE = ("aten::_sparse_coo_tensor_unsafe", "aten::_sparse_coo_tensor_with_dims_and_tensors")
ADDS_SPARSE = "aten::add_"


class MemoryCurve(NamedTuple):
    """Bytes that a rank's device holds over the step: ``nbytes[i]`` from ``us[i]`` on."""

    us: Floats
    nbytes: Longs


def peak_memory(graph: Graph) -> int | None:
    """Most bytes alive at once on the rank's device; None where the source says nothing about memory.

    The caching allocator's own figures where they are known; else storages, added up from their births and deaths.

    >>> from foretrace.graph import OpTable, Storage
    >>> weights, activation = Storage(0, 2048, "cuda:0"), Storage(1, 600, "cuda:0", birth=2, death=5)
    >>> peak_memory(Graph(OpTable.of([]), storages={0: weights, 1: activation}))
    3072
    """
    if graph.allocated:
        return graph.peak_allocated
    held = held_bytes(graph)
    return None if held is None else int(held.max())


def held_bytes(graph: Graph) -> Longs | None:
    """Bytes alive on the rank's device before its first op, during each op, and after the last; None where unknown.

    >>> from foretrace.graph import Op, OpTable, Storage
    >>> made = Storage(0, 2048, "cuda:0", birth=0, death=1)
    >>> held_bytes(Graph(OpTable.of([Op("aten::ones"), Op("aten::zeros")]), storages={0: made})).tolist()[:3]
    [0, 2048, 0]
    """
    devices = {storage.device for storage in graph.storages.values()}
    kinds = {device: device.partition(":")[0] for device in devices}
    # A job that uses an accelerator at all keeps on the host only what it moves there.
    main = next(iter(sorted({*kinds.values()} - {"cpu", "meta"})), "cpu")
    held = [s for s in graph.storages.values() if kinds[s.device] == main]
    if not held:
        return None
    births = np.array([s.birth for s in held])
    forever = max(births.max(), max(s.death for s in held), len(graph.ops)) + 1
    deaths = np.array([s.death if s.death >= 0 else forever for s in held])
    nbytes = np.array([s.nbytes for s in held], np.int64)
    if main != "cpu":
        nbytes = -(-nbytes // BLOCK) * BLOCK
    change = np.zeros(forever + 2, np.int64)
    np.add.at(change, births + 1, nbytes)
    np.add.at(change, deaths + 1, -nbytes)
    alive = np.cumsum(change)
    alive[1 : len(graph.ops) + 1] += _inside(graph)
    return alive


def _inside(graph: Graph) -> Longs:
    """Bytes that each op holds only while it runs: a sparse gradient is scaled in a copy of its values, then added.

    The other ops either hold nothing of their own or so little that it does not show.
    """
    ops = graph.ops
    inside = np.zeros(len(ops), np.int64)
    if not any(name in MAKES_SPARSE for name in ops.names.items):  # ops of traces are costly to create
        return inside
    values: dict[int, int] = {}
    matters = ops.names.matching(lambda name: name in MAKES_SPARSE or name == ADDS_SPARSE)
    for row in np.flatnonzero(matters[ops.name]).tolist():
        op = ops[row]
        if op.name == ADDS_SPARSE:
            inside[row] = sum(values.get(t.id, 0) for t in op.tensors[1:] if t.layout == "sparse_coo")
        else:
            values |= {made.id: t.nbytes for made in op.produced for t in op.tensors[1:2]}
    return inside


def memory_over(whole: Graph, shown: Graph, step: str | None = None) -> MemoryCurve | None:
    """Bytes held while each call of a rank's step runs; None where its source says nothing about memory.

    Parameters
    ----------
    whole
        The rank as it was read: storages live by the rows of its ops.
    shown
        Its step at the reported times: all ops of the step, or its dispatcher calls alone.
    step
        Which step that is.

    >>> from foretrace.graph import Op, OpTable, Storage
    >>> ops = OpTable.of([Op("aten::ones", start_us=0.0, end_us=5.0), Op("aten::zeros", start_us=5.0, end_us=9.0)])
    >>> graph = Graph(ops, storages={0: Storage(0, 2048, "cuda:0", birth=0, death=1)})
    >>> memory_over(graph, graph).nbytes.tolist()
    [2048, 0]
    """
    if shown.allocated:
        us, nbytes = zip(*shown.allocated)
        return MemoryCurve(np.array(us), np.array(nbytes))
    held, cut = held_bytes(whole), cut_to_step(whole, step)[0]
    rows = np.arange(len(cut.ops)) if len(cut.ops) == len(shown.ops) else dispatched(cut)
    if held is None or not len(rows) or len(rows) != len(shown.ops):
        return None
    # Rows between two calls are annotations, modules and autograd nodes: what they hold, the call before them holds.
    most = np.maximum.reduceat(held[1 : len(whole.ops) + 1], _rows_in(whole, cut, rows))
    known = np.isfinite(shown.ops.start)
    return MemoryCurve(shown.ops.start[known], most[known]) if known.any() else None


def _rows_in(whole: Graph, cut: Graph, rows: Ints | Longs) -> Longs:
    """Where rows of a graph that was cut out of another one lie in that.

    >>> from foretrace.graph import Op, OpTable
    >>> whole = Graph(OpTable.of([Op("aten::mm", start_us=float(i), end_us=i + 0.5) for i in range(4)]))
    >>> _rows_in(whole, whole.between(2.0, 4.0), np.array([0, 1]))
    array([2, 3])
    """
    order = np.argsort(whole.ops.source, kind="stable")
    return np.asarray(order[np.searchsorted(whole.ops.source, cut.ops.source[rows], sorter=order)])
