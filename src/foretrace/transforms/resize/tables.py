"""Embedding tables with other rows, dimensions or pooling."""

from __future__ import annotations

from fnmatch import fnmatchcase

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.transforms.dataflow import Call, Linked
from foretrace.transforms.inputs import BAGS, Given, companions
from foretrace.transforms.resize.arguments import Scale
from foretrace.transforms.resize.propagation import Choice
from foretrace.transforms.resize.resizable import Resizable, checked_size
from foretrace.transforms.resize.width import following
from foretrace.transforms.step import opened

LOOKUPS = (*BAGS, "aten::embedding")


def table_rows(graph: Graph, rows: int, tables: str = "*") -> Graph:
    """The step with tables of so many rows.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    rows
        Rows of each table.
    tables
        Which ones: a pattern of the names of the modules that look up in them, or a place among them, from 0 on. All
        are those whose ids come with the batch: not the positions of a text.
    """
    checked_size("rows", rows)
    graph, step = _step(graph)
    for table in sorted({step.inputs[call.reads[0]].shape[0] for call in _lookups(graph, step, tables)} - {rows}):
        graph, step = _step(graph)
        chosen = {call.reads[0] for call in _lookups(graph, step, tables)}
        chosen = {slot for slot in chosen if step.inputs[slot].shape[0] == table}
        weights = Given(step).weights
        choices = []
        for group in companions(step):
            if chosen.intersection(group):
                choices.append(Choice(group, [frozenset([0])]))
            elif group[0] in weights and table in step.inputs[group[0]].shape[:1]:  # a bias, should it have to follow
                choices.append(Choice(group, [frozenset(), frozenset([0])]))
        graph = Resizable(graph, step, "rows", Scale(table, rows), choices).to(rows)
    return graph


def table_dim(graph: Graph, dim: int) -> Graph:
    """The step with tables of another dimension; the layers that read and join what is looked up follow."""
    checked_size("dim", dim)
    graph, step = _step(graph)
    calls = _lookups(graph, step, "*")
    dims = {step.inputs[call.reads[0]].shape[1] for call in calls}
    if len(dims) > 1:
        raise ForetraceError(
            f"the tables have dimensions {', '.join(map(str, sorted(dims)))}", "One dimension for all makes no sense."
        )
    scale = Scale(dims.pop(), dim, last=True)
    if scale.old == dim:
        return graph
    tables, weights = {call.reads[0] for call in calls}, Given(step).weights
    choices = following(step, tables, 1, weights)
    return Resizable(graph, step, "dim", scale, choices).to(dim)


def pooling(graph: Graph, ids: int, tables: str = "*") -> Graph:
    """The step with so many ids in each bag."""
    checked_size("pooling", ids)
    graph, step = _step(graph)
    for count, bags in sorted({_ids(step, call) for call in _lookups(graph, step, tables, BAGS)}):
        graph, step = _step(graph)
        chosen = [call.reads[1] for call in _lookups(graph, step, tables, BAGS) if _ids(step, call) == (count, bags)]
        if count == ids * bags:
            continue
        choices = [Choice((slot,), [frozenset([0])]) for slot in dict.fromkeys(chosen) if slot in step.inputs]
        if len(choices) < len(set(chosen)):
            raise ForetraceError("the ids of a lookup are made in the step itself", "Their number can't be set.")
        graph = Resizable(graph, step, "pooling", Scale(count, ids * bags), choices).to(ids * bags)
    return graph


def table_ids(graph: Graph, ids: int, table: str) -> Graph:
    """The step with so many ids looked up in one table, in as many bags as before."""
    graph, step = _step(graph)
    call = _lookups(graph, step, table, BAGS)[0]
    count, slot = call.op.tensors[1].shape[0], call.reads[1]
    if count == ids:
        return graph
    return Resizable(graph, step, "ids", Scale(count, ids), [Choice((slot,), [frozenset([0])])]).to(ids)


def _step(graph: Graph) -> tuple[Graph, Linked]:
    flat, ops = opened(graph)
    return flat, Linked(ops)


def _ids(step: Linked, call: Call) -> tuple[int, int]:
    """How many ids a call looks up, in how many bags."""
    bags = next(iter(call.made.values())).shape[0]
    was = [tensor.shape[0] for tensor in call.op.tensors[1:2]]
    return was[0], max(bags, 1)


def _of_data(step: Linked, calls: list[Call]) -> list[Call]:
    """Those of some lookups whose ids come from the batch: those of positions and kinds of tokens do not."""
    given = Given(step)
    of_batch = {slot for slot, tensor in given.data.items() if tensor.shape and tensor.shape[0] == given.batch}
    for call in step.calls:
        if not of_batch.isdisjoint(call.reads):
            of_batch.update(call.made)
    return [call for call in calls if call.reads[1] in of_batch]


def _lookups(graph: Graph, step: Linked, tables: str, names: tuple[str, ...] = LOOKUPS) -> list[Call]:
    """Calls that look up in the tables that are meant."""
    calls = [call for call in step.calls if call.op.name in names and call.reads[0] in step.inputs]
    if any(call.op.name in BAGS for call in calls):
        calls = [call for call in calls if call.op.name in BAGS]  # beside them, a table of positions is none
    elif tables == "*":
        calls = _of_data(step, calls) or calls
    if not calls:
        raise ForetraceError(f"{graph.title} looks up in no tables", "Edit something that it has.")
    if tables == "*":
        return calls
    if tables.isdecimal() and int(tables) < len(calls):
        return [calls[int(tables)]]
    meant = [call for call in calls if fnmatchcase(call.op.module, tables) or call.op.module.endswith(f".{tables}")]
    if not meant:
        raise unknown_name("table", tables, [call.op.module or str(place) for place, call in enumerate(calls)])
    return meant
