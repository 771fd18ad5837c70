"""Tables from a recorded or sketched step: its lookups, with what is known of their ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from foretrace.cost_models.families.lookups import BAGS
from foretrace.graph import ForetraceError, Graph, Indices, Op
from foretrace.sharding.hits import exponent_of
from foretrace.sharding.tables import ITEMSIZE, Table
from foretrace.transforms.parallel.updates import spread

LOOKUPS = (*BAGS, "aten::embedding")
KEEPS = {
    (0, 0): "sgd", (0, 1): "rowwise_adagrad", (1, 0): "adagrad", (1, 1): "partial_rowwise_adam",
    (2, 0): "adam", (2, 1): "adam",
}  # fmt: skip
"""The optimizer that keeps so many numbers for each element, and for each row."""


def tables_of_graph(graph: Graph) -> list[Table]:
    """The tables that a step looks up.

    >>> from foretrace.graph import OpTable, Tensor
    >>> table, ids, offsets = (Tensor(s, t, storage=n) for n, (s, t) in enumerate(
    ...     [((1000, 16), "float32"), ((80,), "int64"), ((20,), "int64")]))
    >>> found = tables_of_graph(Graph(OpTable.of([Op("aten::_embedding_bag", (table, ids, offsets))])))
    >>> [(t.rows, t.dim, t.pooling) for t in found]
    [(1000, 16, 4.0)]
    """
    batch = batch_of_graph(graph)
    known = {indices.op: indices for indices in graph.indices}
    found: dict[object, Table] = {}
    for row, op in enumerate(graph.ops):
        if op.name not in LOOKUPS or len(op.tensors) < 2 or len(op.tensors[0].shape) != 2:
            continue
        weight = op.tensors[0]
        key = weight.storage if weight.storage >= 0 else (op.module, weight.shape, len(found))
        if weight.dtype not in ITEMSIZE:
            continue
        if key not in found:
            found[key] = _table(op, len(found), batch, known.get(row))
        elif op.phase != "backward":  # where lookups are made again, which are no others
            found[key] = _with_more(found[key], _table(op, 0, batch, None))
    kept = optimizers_of(graph, {weight: table for weight, table in found.items() if isinstance(weight, int)})
    found = {key: replace(table, optimizer=kept.get(key, table.optimizer)) for key, table in found.items()}
    if not found:
        raise ForetraceError(
            f"{graph.title} looks up no embedding tables",
            "Give a step with nn.EmbeddingBag or nn.Embedding in it, or a list of tables.",
        )
    return _named(list(found.values()))


def optimizers_of(graph: Graph, tables: Mapping[int, Table]) -> dict[object, str]:
    """By storage, the optimizer that keeps as much of a table as the step's does: what it is called does not matter.

    Parameters
    ----------
    graph
        A step with its optimizer.
    tables
        By storage.
    """
    updates = [op for op in graph.ops if op.phase == "optimizer"]
    owner = {storage: storage for storage in tables}
    spread(updates, owner)
    seen = {t.storage: t for op in updates for t in (*op.tensors, *op.produced) if t.layout == "strided"}
    counts = {storage: [0, 0] for storage in tables}
    for storage, tensor in seen.items():
        table = tables.get(owner.get(storage, -1))
        before = storage in graph.storages and graph.storages[storage].birth < 0
        if table is not None and storage not in tables and before:
            counts[owner[storage]][0] += tensor.numel == table.rows * table.dim
            counts[owner[storage]][1] += tensor.numel == table.rows
    return {storage: KEEPS[min(each, 2), min(row, 1)] for storage, (each, row) in counts.items()}


def batch_of_graph(graph: Graph) -> int:
    """Samples of the step: as many as most of its lookups make sums for, or where none does, as the ids have rows."""
    found = [op for op in graph.ops if op.name in LOOKUPS and len(op.tensors) > 1]
    samples = [op.tensors[2].numel for op in found if op.name in BAGS and len(op.tensors) > 2]
    samples = samples or [(*op.tensors[1].shape, 1)[0] for op in found]
    return max(1, max(sorted(set(samples)), key=samples.count, default=1))


def _table(op: Op, number: int, batch: int, seen: Indices | None) -> Table:
    weight, ids = op.tensors[:2]
    rows, dim = weight.shape
    pooled = op.name in BAGS and len(op.tensors) > 2
    bags = max(1, op.tensors[2].numel if pooled else batch)
    zipf = exponent_of(rows, seen.count, seen.unique) if seen and seen.count else 0.0
    name = op.module or f"table {number}"
    return Table(name, rows, dim, ids.numel / bags, weight.dtype, zipf=zipf, sequence=not pooled,
                 features=max(1, round(bags / batch)))  # fmt: skip


def _with_more(table: Table, more: Table) -> Table:
    """A table that is looked up by another call besides."""
    features = table.features + more.features
    return replace(table, features=features, pooling=(table.ids + more.ids) / features)


def _named(tables: list[Table]) -> list[Table]:
    """Each with a name of its own."""
    seen: dict[str, int] = {}
    named = []
    for table in tables:
        times = seen[table.name] = seen.get(table.name, 0) + 1
        named.append(table if times == 1 else replace(table, name=f"{table.name}.{times - 1}"))
    return named
