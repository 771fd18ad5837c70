"""Tables from a recorded or sketched step: its lookups, with what is known of their ids."""

from __future__ import annotations

from dataclasses import replace

from foretrace.costs.families.lookups import BAGS
from foretrace.graph import ForetraceError, Graph, Indices, Op
from foretrace.sharding.hits import exponent_of
from foretrace.sharding.tables import ITEMSIZE, Table

LOOKUPS = (*BAGS, "aten::embedding")


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
        if key not in found and weight.dtype in ITEMSIZE:
            found[key] = _table(op, len(found), batch, known.get(row))
    if not found:
        raise ForetraceError(
            f"{graph.source or 'the step'} looks up no embedding tables",
            "Give a step with nn.EmbeddingBag or nn.Embedding in it, or a list of tables.",
        )
    return _named(list(found.values()))


def batch_of_graph(graph: Graph) -> int:
    """Samples of the step: as many as most of its lookups make sums for; first dimensions of ids, where none does."""
    found = [op for op in graph.ops if op.name in LOOKUPS and len(op.tensors) > 1]
    samples = [op.tensors[2].numel for op in found if op.name in BAGS and len(op.tensors) > 2]
    samples = samples or [(*op.tensors[1].shape, 1)[0] for op in found]
    return max(1, max(sorted(set(samples)), key=samples.count, default=1))


def _table(op: Op, number: int, batch: int, seen: Indices | None) -> Table:
    weight, ids = op.tensors[:2]
    rows, dim = weight.shape
    pooled = op.name in BAGS and len(op.tensors) > 2
    pooling = ids.numel / max(1, op.tensors[2].numel if pooled else batch)
    zipf = exponent_of(rows, seen.count, seen.unique) if seen and seen.count else 0.0
    name = op.module or f"table {number}"
    return Table(name, rows, dim, pooling, weight.dtype, zipf=zipf, sequence=not pooled)


def _named(tables: list[Table]) -> list[Table]:
    """Each with a name of its own."""
    seen: dict[str, int] = {}
    named = []
    for table in tables:
        times = seen[table.name] = seen.get(table.name, 0) + 1
        named.append(table if times == 1 else replace(table, name=f"{table.name}.{times - 1}"))
    return named
