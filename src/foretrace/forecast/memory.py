"""How much memory a step holds, at its fullest and op by op."""

from __future__ import annotations

import numpy as np

from foretrace.forecast.flat import Flat
from foretrace.graph import PHASES, Graph
from foretrace.graph.tables import Longs
from foretrace.platform.device import Device

BLOCK = 512
"""Bytes in which PyTorch's allocator of device memory gives it out."""
JOINS_SPARSE = ("aten::_sparse_coo_tensor_unsafe", "aten::_sparse_coo_tensor_with_dims_and_tensors")
ADDS_SPARSE = "aten::add_"


def peak_memory(graph: Graph) -> int | None:
    """Most bytes alive at once on the rank's device; None where the source says nothing about memory.

    What the allocator said counts; where it was not asked, storages are added up from their births and deaths.

    >>> from foretrace.graph import OpTable, Storage
    >>> weights, activation = Storage(0, 2048, "cuda:0"), Storage(1, 600, "cuda:0", birth=2, death=5)
    >>> peak_memory(Graph(OpTable.of([]), storages={0: weights, 1: activation}))
    3072
    """
    if graph.allocated:
        return max(nbytes for _, nbytes in graph.allocated)
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


def workspaces(step: Flat, device: Device) -> int:
    """Bytes that the matrix library keeps to work in: for each stream, and for autograd's thread beside the main one.

    >>> from foretrace.forecast.flat import flat
    >>> from foretrace.graph import Op, OpTable
    >>> ops = [Op("aten::mm", phase="forward"), Op("aten::mm", phase="backward"), Op("aten::mm", phase="backward")]
    >>> workspaces(flat(Graph(OpTable.of(ops))), Device.named("h200")) / 2**20
    64.0
    """
    if device.kind == "cpu":
        return 0
    from foretrace.cost_models.families.matrix import MatrixProduct  # who only looks at a step does without families

    ops = step.calls.ops
    multiplies = ops.names.matching(MatrixProduct.ops.__contains__)[ops.name]
    backward = ops.phase == PHASES.index("backward")
    users = set(zip(step.stream[multiplies].tolist(), backward[multiplies].tolist()))
    return round(len(users) * device.workspace_mib * 2**20)


def _inside(graph: Graph) -> Longs:
    """Bytes that each op holds only while it runs: a sparse gradient is scaled in a copy of its values, then added.

    The other ops either hold nothing of their own or so little that it does not show.
    """
    ops = graph.ops
    inside = np.zeros(len(ops), np.int64)
    if not len(ops):
        return inside
    values: dict[int, int] = {}
    matters = ops.names.matching(lambda name: name in JOINS_SPARSE or name == ADDS_SPARSE)
    for row in np.flatnonzero(matters[ops.name]).tolist():
        op = ops[row]
        if op.name == ADDS_SPARSE:
            inside[row] = sum(values.get(t.id, 0) for t in op.tensors[1:] if t.layout == "sparse_coo")
        else:
            values |= {made.id: t.nbytes for made in op.produced for t in op.tensors[1:2]}
    return inside
