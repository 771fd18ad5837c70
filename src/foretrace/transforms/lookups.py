"""Many lookups in one: tables of one dimension become one table, which is asked once for all their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph, Indices
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.inputs import BAGS
from foretrace.transforms.joined import IDS, OFFSETS, Joined
from foretrace.transforms.linked import Linked
from foretrace.transforms.step import opened
from foretrace.transforms.tables import table_ids, table_rows


def fused_lookups(graph: Graph) -> Graph:
    """The step with its EmbeddingBags joined, as a batched lookup does it.

    Tables with the same dimension, type and pooling become one large table. It is asked once, for the ids of all, and
    the result is cut into what each table gave before. Backward and optimizer work on the one table.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    """
    graph, _ = opened(graph)
    groups = _groups(graph)
    if not groups:
        raise ForetraceError(
            f"{graph.title} has no two lookups that can be one",
            "They are EmbeddingBags of one dimension, with as many bags, whose ids are there before the step.",
        )
    for tables in groups:
        graph = Joined(_enlarged(graph, tables), tables).graph()
    graph.notes.append(f"lookups in {sum(map(len, groups))} tables are {len(groups)}")
    return graph


def _groups(graph: Graph) -> list[list[int]]:
    """Tables that can be one, by the numbers of their tensors."""
    found: dict[Any, list[int]] = {}
    step = Linked(list(graph.ops))
    looked = [call for call in step.calls if call.op.name in BAGS]
    weights = [call.reads[0] for call in looked]
    for call in looked:
        table, rest = call.op.tensors[0], tuple(call.op.args[OFFSETS + 1 :])
        given = all(slot in step.inputs for slot in call.reads)
        if given and weights.count(call.reads[0]) == 1 and not any(isinstance(value, Tensor) for value in rest):
            alike = (table.shape[1], table.dtype, table.device, call.op.produced[0].shape[0], str(rest))
            found.setdefault(alike, []).append(table.id)
    return [tables for tables in found.values() if len(tables) > 1]


def _bags(graph: Graph, tables: Sequence[int]) -> list[Op]:
    by_table = {op.tensors[0].id: op for op in graph.ops if op.name in BAGS}
    return [by_table[table] for table in tables]


def _enlarged(graph: Graph, tables: Sequence[int]) -> Graph:
    """The step with the first table as large as all together, asked for as many ids; statistics too."""
    bags = _bags(graph, tables)
    rows, ids = (sum(op.tensors[place].shape[0] for op in bags) for place in (0, IDS))
    places = [op.tensors[0].id for op in graph.ops if op.name in BAGS]
    known = {graph.ops[found.op].tensors[0].id: found for found in graph.indices if graph.ops[found.op].name in BAGS}
    first = str(places.index(tables[0]))
    graph = table_ids(table_rows(graph, rows, first), ids, first)
    if all(table in known for table in tables):
        joined = _summed([known[table] for table in tables])
        graph.indices = [joined if found.op == joined.op else found for found in graph.indices]
    return graph


def _summed(found: Sequence[Indices]) -> Indices:
    """The reuse of rows in tables that are one."""
    longest = max(len(each.reuse) for each in found)
    reuse = tuple(sum(each.reuse[k] for each in found if k < len(each.reuse)) for k in range(longest))
    rows, count, unique, bags = (
        sum(getattr(each, word) for each in found) for word in ("rows", "count", "unique", "bags")
    )
    return Indices(found[0].op, rows, count, unique, bags, reuse)
