"""What a step has besides its tables: the time of all other calls, and the memory that they hold."""

from __future__ import annotations

from foretrace.cost_models.families import family_of
from foretrace.forecast.flat import flat
from foretrace.forecast.memory import peak_memory
from foretrace.forecast.predict import predict
from foretrace.graph import Graph, Job, Op, OpTable
from foretrace.platform.platform import Platform
from foretrace.sharding.recorded import LOOKUPS
from foretrace.transforms.parallel.updates import spread


def dense_us(step: Graph, where: Platform) -> float:
    """What a step takes without its lookups, their gradients and updates."""
    others = [op for op in flat(step).calls.ops if not _looks_up(op)]
    if not others:
        return 0.0
    rest = Graph(OpTable.of(others), settings=step.settings)
    return predict(Job([rest], step.source), where, "model").step_ms * 1e3


def dense_bytes(step: Graph) -> int | None:
    """Most bytes that a step holds without tables, their gradients and what an optimizer keeps of them.

    Embeddings of a rank's own samples stay: they come to it wherever the tables lie. None where nothing is known.

    >>> from foretrace.graph import Storage, Tensor
    >>> table, ids = Tensor((1000, 64), "float32", storage=0), Tensor((64,), "int64", storage=1)
    >>> sizes = {0: 256_000, 1: 512, 2: 16_384}
    >>> storages = {n: Storage(n, nbytes, "cuda:0") for n, nbytes in sizes.items()}
    >>> dense_bytes(Graph(OpTable.of([Op("aten::embedding", (table, ids))]), storages=storages))
    16896
    """
    of_tables: dict[int, bool] = {}
    for op in step.ops:
        if op.name in LOOKUPS:
            of_tables |= {tensor.storage: True for tensor in op.tensors[:1]}
        elif op.phase == "backward" and (_looks_up(op) or _is_sparse(op)):
            of_tables |= {tensor.storage: True for tensor in op.produced}
    spread([op for op in step.ops if op.phase == "optimizer"], of_tables)
    rest = {number: storage for number, storage in step.storages.items() if number not in of_tables}
    return peak_memory(Graph(OpTable.of([]), storages=rest))


def _is_sparse(op: Op) -> bool:
    """Whether it reads a gradient of some rows of a table."""
    return any(tensor.layout == "sparse_coo" for tensor in op.tensors)


def _looks_up(op: Op) -> bool:
    family = family_of(op)
    return family is not None and family.name == "lookups"
