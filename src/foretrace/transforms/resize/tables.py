"""Embedding tables: their rows, embedding dimension, and ids per bag."""

from __future__ import annotations

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.graph.operators import EMBEDDING_BAGS, LOOKUPS
from foretrace.transforms.blocks import is_named
from foretrace.transforms.dataflow import Dataflow, SlotCall
from foretrace.transforms.inputs import StepInputs, tied_inputs
from foretrace.transforms.resize.arguments import SizeChange
from foretrace.transforms.resize.propagation import InputChoice
from foretrace.transforms.resize.resizable import Resizable, check_size
from foretrace.transforms.resize.width import dependent_weights
from foretrace.transforms.step import editable_step


def table_rows(graph: Graph, rows: int, tables: str = "*") -> Graph:
    """The step with embedding tables of another number of rows.

    ``tables`` is a pattern of the names of the modules that look up in them, or a position among them, from 0 on. ``*``
    are all whose ids come with the batch: not position embeddings.
    """
    check_size("rows", rows)
    graph, step = _dataflow(graph)
    for old in sorted({step.inputs[call.reads[0]].shape[0] for call in _lookups(graph, step, tables)} - {rows}):
        graph, step = _dataflow(graph)
        chosen = {call.reads[0] for call in _lookups(graph, step, tables)}
        chosen = {slot for slot in chosen if step.inputs[slot].shape[0] == old}
        weights = StepInputs(step).weights
        choices = []
        for group in tied_inputs(step):
            if chosen.intersection(group):
                choices.append(InputChoice(group, [frozenset([0])]))
            elif group[0] in weights and old in step.inputs[group[0]].shape[:1]:  # a bias, in case it has to follow
                choices.append(InputChoice(group, [frozenset(), frozenset([0])]))
        graph = Resizable(graph, step, "rows", SizeChange(old, rows), choices).to(rows)
    return graph


def table_dim(graph: Graph, dim: int) -> Graph:
    """The step with another embedding dimension of its tables; the layers that read the embeddings follow."""
    check_size("dim", dim)
    graph, step = _dataflow(graph)
    calls = _lookups(graph, step, "*")
    dims = {step.inputs[call.reads[0]].shape[1] for call in calls}
    if len(dims) > 1:
        raise ForetraceError(
            f"the tables have dimensions {', '.join(map(str, sorted(dims)))}", "Only a common dimension can be set."
        )
    change = SizeChange(dims.pop(), dim, last=True)
    if change.old == dim:
        return graph
    tables, weights = {call.reads[0] for call in calls}, StepInputs(step).weights
    return Resizable(graph, step, "dim", change, dependent_weights(step, tables, 1, weights)).to(dim)


def pooling(graph: Graph, ids: int, tables: str = "*") -> Graph:
    """The step with another pooling factor: ids per bag."""
    check_size("pooling", ids)
    graph, step = _dataflow(graph)
    for sizes in sorted({_ids_and_bags(call) for call in _lookups(graph, step, tables, EMBEDDING_BAGS)}):
        graph, step = _dataflow(graph)
        calls = _lookups(graph, step, tables, EMBEDDING_BAGS)
        chosen = [call.reads[1] for call in calls if _ids_and_bags(call) == sizes]
        count, bags = sizes
        if count == ids * bags:
            continue
        choices = [InputChoice((slot,), [frozenset([0])]) for slot in dict.fromkeys(chosen) if slot in step.inputs]
        if len(choices) < len(set(chosen)):
            raise ForetraceError("the ids of a lookup are made in the step itself", "Their number can't be set.")
        graph = Resizable(graph, step, "pooling", SizeChange(count, ids * bags), choices).to(ids * bags)
    return graph


def table_ids(graph: Graph, ids: int, table: str) -> Graph:
    """The step with another number of ids looked up in one table, in as many bags as before."""
    graph, step = _dataflow(graph)
    call = _lookups(graph, step, table, EMBEDDING_BAGS)[0]
    count, slot = call.op.tensors[1].shape[0], call.reads[1]
    if count == ids:
        return graph
    return Resizable(graph, step, "ids", SizeChange(count, ids), [InputChoice((slot,), [frozenset([0])])]).to(ids)


def _dataflow(graph: Graph) -> tuple[Graph, Dataflow]:
    flat, ops = editable_step(graph)
    return flat, Dataflow(ops)


def _ids_and_bags(call: SlotCall) -> tuple[int, int]:
    """The number of ids that a call looks up, and of bags."""
    bags = next(iter(call.made.values())).shape[0]
    return call.op.tensors[1].shape[0], max(bags, 1)


def _lookups(graph: Graph, step: Dataflow, tables: str, names: tuple[str, ...] = LOOKUPS) -> list[SlotCall]:
    """The lookups in the selected tables."""
    calls = [call for call in step.calls if call.op.name in names and call.reads[0] in step.inputs]
    if any(call.op.name in EMBEDDING_BAGS for call in calls):
        calls = [call for call in calls if call.op.name in EMBEDDING_BAGS]  # then plain embeddings are positions
    elif tables == "*":
        calls = _with_ids_from_data(step, calls) or calls
    if not calls:
        raise ForetraceError(f"{graph.title} has no embedding lookups", "Change something that it has.")
    if tables == "*":
        return calls
    if tables.isdecimal() and int(tables) < len(calls):
        return [calls[int(tables)]]
    matching = [call for call in calls if is_named(call.op.module, tables)]
    if not matching:
        raise unknown_name("table", tables, [call.op.module or str(place) for place, call in enumerate(calls)])
    return matching


def _with_ids_from_data(step: Dataflow, calls: list[SlotCall]) -> list[SlotCall]:
    """Those of some lookups whose ids come from the batch, as those of positions and token types do not."""
    inputs = StepInputs(step)
    of_batch = {slot for slot, tensor in inputs.data.items() if tensor.shape and tensor.shape[0] == inputs.batch}
    for call in step.calls:
        if not of_batch.isdisjoint(call.reads):
            of_batch.update(call.made)
    return [call for call in calls if call.reads[1] in of_batch]
