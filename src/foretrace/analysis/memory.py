"""Memory of a step: peak, and bytes held op by op, as PyTorch's CUDA caching allocator counts allocated memory.

Not modelled is what the allocator reserves beyond that: memory lost to fragmentation, and free blocks that it caches.
Nor are the CUDA context and what libraries allocate by themselves; `prediction.report` adds cuBLAS's workspaces.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretrace.graph import PHASES, Graph, Storage
from foretrace.graph.calls import dispatched
from foretrace.graph.graph import cut_to_step
from foretrace.graph.tables import Floats, Ints, Longs, StorageTable
from foretrace.graph.temporaries import inside_ops

BLOCK = 512
"""PyTorch's caching allocator rounds the size of an allocation up to a multiple of these bytes."""
TEMPORARY = "temporary"
KINDS = (
    "weights", "optimizer state", "gradients", "inputs and others", "from before the step", "activations", TEMPORARY,
)  # fmt: skip
"""What memory is for. A trace does not tell which storages are weights: all that it begins with is from before."""


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
    held = on_device(graph)
    if not held:
        return None
    alive = _alive(held, _end(graph, held))
    alive[1 : len(graph.ops) + 1] += inside_ops(graph)
    return alive


def on_device(graph: Graph) -> StorageTable:
    """Its storages on the device that the job uses."""
    storages = StorageTable.of(graph.storages)
    kinds = [device.partition(":")[0] for device in storages.devices.items]
    # A job that uses an accelerator at all keeps on the host only what it moves there.
    main = next(iter(sorted({*kinds} - {"cpu", "meta"})), "cpu")
    return storages.rows(np.array([kind == main for kind in kinds], bool)[storages.device])


def _end(graph: Graph, held: StorageTable) -> int:
    """A row after all ops, births and deaths."""
    return int(max(held.birth.max(), held.death.max(), len(graph.ops))) + 1


def _alive(held: StorageTable, end: int) -> Longs:
    """Bytes of some storages before the first op, during each op, and after the last."""
    births, nbytes = held.birth, held.nbytes
    deaths = np.where(held.death >= 0, held.death, end)
    if held and not held.devices[held.device[0]].startswith("cpu"):
        nbytes = -(-nbytes // BLOCK) * BLOCK
    change = np.zeros(end + 2, np.int64)
    np.add.at(change, births + 1, nbytes)
    np.add.at(change, deaths + 1, -nbytes)
    return np.asarray(np.cumsum(change))


def held_bytes_by_kind(graph: Graph) -> dict[str, Longs]:
    """The same by what the memory is for; empty where unknown. Kinds are those of `KINDS`, without empty ones."""
    held = on_device(graph)
    if not held:
        return {}
    end, kinds = _end(graph, held), storage_kinds(graph)
    of_storage = np.array([kinds[number] for number in held.id.tolist()])
    found = {kind: _alive(held.rows(of_storage == kind), end) for kind in KINDS}
    found[TEMPORARY][1 : len(graph.ops) + 1] += inside_ops(graph)
    return {kind: alive for kind, alive in found.items() if alive.any()}


def storage_kinds(graph: Graph) -> dict[int, str]:
    """What each storage is for, by its number: who holds it, when it was made, and which phases use it.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", phase="forward"), Op("aten::mm", phase="backward")])
    >>> weight, made = Storage(0, 4, "cuda:0", held=True), Storage(1, 4, "cuda:0", birth=0, death=1)
    >>> storage_kinds(Graph(ops, storages={0: weight, 1: made, 2: Storage(2, 4, "cuda:0", birth=1)}))
    {0: 'weights', 1: 'activations', 2: 'gradients'}
    """
    ops = graph.ops
    knows_weights = any(storage.held for storage in graph.storages.values())
    before = {s.id for s in graph.storages.values() if s.birth < 0 and not s.held} if knows_weights else set()
    used: dict[int, set[str]] = {number: set() for number in before}
    for op in ops if before else ():
        for tensor in (*op.tensors, *op.produced):
            if tensor.storage in used:
                used[tensor.storage].add(op.phase)
    last_backward = int(np.flatnonzero(ops.phase == PHASES.index("backward")).max(initial=-1))

    def kind(storage: Storage) -> str:
        if storage.held:
            return "weights"
        if storage.birth < 0:
            phases = used.get(storage.id)
            if phases is None:
                return "from before the step"
            if "optimizer" in phases:
                return "gradients" if "backward" in phases else "optimizer state"
            return "inputs and others"
        phase = PHASES[ops.phase[storage.birth]] if storage.birth < len(ops) else "other"
        stays = storage.death < 0 or storage.death > last_backward + 1  # freed after the last call of the backward
        lasting = {"backward": "gradients", "optimizer": "optimizer state" if storage.death < 0 else TEMPORARY}
        return "activations" if phase == "forward" else lasting.get(phase, TEMPORARY) if stays else TEMPORARY

    return {number: kind(storage) for number, storage in graph.storages.items()}


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
    held = held_bytes(whole)
    found = None if held is None else _fullest_moments(held, whole, shown, step)
    return None if held is None or found is None else MemoryCurve(found[0], held[found[1]])


def memory_by_kind(whole: Graph, shown: Graph, step: str | None = None) -> dict[str, MemoryCurve]:
    """`memory_over` by what the memory is for: curves that add up to it. Empty where that is not known."""
    if shown.allocated:  # the allocator's own figures: it does not know what for
        return {}
    kinds = held_bytes_by_kind(whole)
    found = _fullest_moments(np.sum(list(kinds.values()), axis=0), whole, shown, step) if kinds else None
    return {kind: MemoryCurve(found[0], held[found[1]]) for kind, held in kinds.items()} if found else {}


def _fullest_moments(held: Longs, whole: Graph, shown: Graph, step: str | None) -> tuple[Floats, Longs] | None:
    """When each call of a step starts, and where in ``held`` most is held from there to the next call."""
    cut = cut_to_step(whole, step)[0]
    rows = np.arange(len(cut.ops)) if len(cut.ops) == len(shown.ops) else dispatched(cut)
    if not len(rows) or len(rows) != len(shown.ops):
        return None
    # Rows between two calls are annotations, modules and autograd nodes: what they hold, the call before them holds.
    first = _rows_in(whole, cut, rows)
    during = held[1 : len(whole.ops) + 1]
    call = np.searchsorted(first, np.arange(first[0], len(during)), "right") - 1
    order = np.lexsort((during[first[0] :], call))
    fullest = order[np.searchsorted(call[order], np.arange(len(rows)), "right") - 1] + first[0] + 1
    known = np.isfinite(shown.ops.start)
    return (shown.ops.start[known], fullest[known]) if known.any() else None


def _rows_in(whole: Graph, cut: Graph, rows: Ints | Longs) -> Longs:
    """Where rows of a graph that was cut out of another one lie in that.

    >>> from foretrace.graph import Op, OpTable
    >>> whole = Graph(OpTable.of([Op("aten::mm", start_us=float(i), end_us=i + 0.5) for i in range(4)]))
    >>> _rows_in(whole, whole.between(2.0, 4.0), np.array([0, 1]))
    array([2, 3])
    """
    order = np.argsort(whole.ops.source, kind="stable")
    return np.asarray(order[np.searchsorted(whole.ops.source, cut.ops.source[rows], sorter=order)])
