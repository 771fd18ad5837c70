"""Embedding tables with other rows, dimensions or pooling."""

from __future__ import annotations

from fnmatch import fnmatchcase

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.transforms.dataflow import Call, Dataflow
from foretrace.transforms.inputs import EMBEDDING_BAGS, StepInputs, tied_inputs
from foretrace.transforms.resize.arguments import SizeChange
from foretrace.transforms.resize.propagation import InputChoice
from foretrace.transforms.resize.resizable import Resizable, check_size
from foretrace.transforms.resize.width import dependent_weights
from foretrace.transforms.step import editable_step

LOOKUPS = (*EMBEDDING_BAGS, "aten::embedding")


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
    check_size("rows", rows)
    graph, step = _step(graph)
    for table in sorted({step.inputs[call.reads[0]].shape[0] for call in _lookups(graph, step, tables)} - {rows}):
        graph, step = _step(graph)
        chosen = {call.reads[0] for call in _lookups(graph, step, tables)}
        chosen = {slot for slot in chosen if step.inputs[slot].shape[0] == table}
        weights = StepInputs(step).weights
        choices = []
        for group in tied_inputs(step):
            if chosen.intersection(group):
                choices.append(InputChoice(group, [frozenset([0])]))
            elif group[0] in weights and table in step.inputs[group[0]].shape[:1]:  # a bias, should it have to follow
                choices.append(InputChoice(group, [frozenset(), frozenset([0])]))
        graph = Resizable(graph, step, "rows", SizeChange(table, rows), choices).to(rows)
    return graph


def table_dim(graph: Graph, dim: int) -> Graph:
    """The step with tables of another dimension; the layers that read and join what is looked up follow."""
    check_size("dim", dim)
    graph, step = _step(graph)
    calls = _lookups(graph, step, "*")
    dims = {step.inputs[call.reads[0]].shape[1] for call in calls}
    if len(dims) > 1:
        raise ForetraceError(
            f"the tables have dimensions {', '.join(map(str, sorted(dims)))}", "One dimension for all makes no sense."
        )
    scale = SizeChange(dims.pop(), dim, last=True)
    if scale.old == dim:
        return graph
    tables, weights = {call.reads[0] for call in calls}, StepInputs(step).weights
    choices = dependent_weights(step, tables, 1, weights)
    return Resizable(graph, step, "dim", scale, choices).to(dim)


def pooling(graph: Graph, ids: int, tables: str = "*") -> Graph:
    """The step with so many ids in each bag."""
    check_size("pooling", ids)
    graph, step = _step(graph)
    for count, bags in sorted({_ids(step, call) for call in _lookups(graph, step, tables, EMBEDDING_BAGS)}):
        graph, step = _step(graph)
        chosen = [call.reads[1] for call in _lookups(graph, step, tables, EMBEDDING_BAGS) if _ids(step, call) == (count, bags)]
        if count == ids * bags:
            continue
        choices = [InputChoice((slot,), [frozenset([0])]) for slot in dict.fromkeys(chosen) if slot in step.inputs]
        if len(choices) < len(set(chosen)):
            raise ForetraceError("the ids of a lookup are made in the step itself", "Their number can't be set.")
        graph = Resizable(graph, step, "pooling", SizeChange(count, ids * bags), choices).to(ids * bags)
    return graph


def table_ids(graph: Graph, ids: int, table: str) -> Graph:
    """The step with so many ids looked up in one table, in as many bags as before."""
    graph, step = _step(graph)
    call = _lookups(graph, step, table, EMBEDDING_BAGS)[0]
    count, slot = call.op.tensors[1].shape[0], call.reads[1]
    if count == ids:
        return graph
    return Resizable(graph, step, "ids", SizeChange(count, ids), [InputChoice((slot,), [frozenset([0])])]).to(ids)


def _step(graph: Graph) -> tuple[Graph, Dataflow]:
    flat, ops = editable_step(graph)
    return flat, Dataflow(ops)


def _ids(step: Dataflow, call: Call) -> tuple[int, int]:
    """How many ids a call looks up, in how many bags."""
    bags = next(iter(call.made.values())).shape[0]
    was = [tensor.shape[0] for tensor in call.op.tensors[1:2]]
    return was[0], max(bags, 1)


def _of_data(step: Dataflow, calls: list[Call]) -> list[Call]:
    """Those of some lookups whose ids come from the batch: those of positions and kinds of tokens do not."""
    given = StepInputs(step)
    of_batch = {slot for slot, tensor in given.data.items() if tensor.shape and tensor.shape[0] == given.batch}
    for call in step.calls:
        if not of_batch.isdisjoint(call.reads):
            of_batch.update(call.made)
    return [call for call in calls if call.reads[1] in of_batch]


def _lookups(graph: Graph, step: Dataflow, tables: str, names: tuple[str, ...] = LOOKUPS) -> list[Call]:
    """Calls that look up in the tables that are meant."""
    calls = [call for call in step.calls if call.op.name in names and call.reads[0] in step.inputs]
    if any(call.op.name in EMBEDDING_BAGS for call in calls):
        calls = [call for call in calls if call.op.name in EMBEDDING_BAGS]  # beside them, a table of positions is none
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
