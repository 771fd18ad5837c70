"""The step captured as a CUDA graph: its calls are launched at once, and the host has nothing more to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import GRAPH_LAUNCH, Op
from foretrace.graph.operators import SYNCHRONIZE, on_device, waits_for_device
from foretrace.graph.tables import SYNC
from foretrace.graph.tensor import Tensor
from foretrace.transforms.dataflow import Dataflow
from foretrace.transforms.inputs import StepInputs, is_per_channel
from foretrace.transforms.step import EditedCall, IdAllocator, assemble, editable_step

IDLE = ("aten::empty", "aten::empty_strided", "aten::lift_fresh", "aten::detach", "aten::alias")
"""Calls that compute nothing: on the host they do no harm."""


def cudagraph(graph: Graph) -> Graph:
    """The step captured as one CUDA graph.

    Before each launch the batch is copied to where the captured one lay. A call that ``torch.cuda.graph`` refuses or
    would freeze is named and refused: a wait for the device, sizes that depend on values, work on the host.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls, of a GPU's step.
    """
    graph, ops = editable_step(graph)
    if not any(on_device(tensor.device) for op in ops for tensor in op.tensors):
        raise ForetraceError(f"{graph.title} calls nothing on a GPU", "There is nothing to capture.")
    waited = {int(row) for row in graph.calls.op[graph.calls.kind == SYNC]}
    last = max(row for row, op in enumerate(ops) if not op.is_side_call)
    for row, op in enumerate(ops[: last + 1]):  # what waits for the whole step waits for the graph
        _check(row, op, row in waited - {last})
    copies = [
        Op("aten::copy_", (to, given), outputs=(to,), overload="default", thread=ops[0].thread)
        for to, given in _batches(ops)
    ]
    launch = Op(GRAPH_LAUNCH, thread=ops[0].thread)
    rows = [*(EditedCall(op, -1) for op in (*copies, launch)), *(EditedCall(op, row) for row, op in enumerate(ops))]
    made = assemble(graph, rows)
    made.notes.append(f"all calls are one CUDA graph; {len(copies)} copies bring the batch to where it reads it")
    return made


def _check(row: int, op: Op, waited: bool) -> None:
    """Refuse a call that can't be captured."""
    call = f"call {row}, {op.name},"
    if op.name == GRAPH_LAUNCH:
        raise ForetraceError(f"{call} launches a CUDA graph already", "A step is captured once.")
    if waited or op.name in SYNCHRONIZE or waits_for_device(op):
        raise ForetraceError(
            f"{call} makes the host wait for the device, which no CUDA graph can hold",
            "Take it out of the step: its result, or the size of it, is not known when the graph is launched.",
        )
    tensors = [*op.tensors, *op.produced]
    if op.name not in IDLE and tensors and not any(on_device(tensor.device) for tensor in tensors):
        advice = "Leave it out of the step."
        if op.phase == "optimizer":
            advice = "Use an optimizer that counts its steps on the device: set optimizer=fused before it."
        raise ForetraceError(f"{call} works on the host, and a CUDA graph holds only what the device does", advice)


def _batches(ops: Sequence[Op]) -> list[tuple[Tensor, Tensor]]:
    """Inputs on the device that hold the batch, each with another like it that was there before."""
    given, fresh = StepInputs(Dataflow(ops)), IdAllocator(ops)
    size = given.batch
    data = [t for t in given.data.values() if t.shape and on_device(t.device) and not is_per_channel(t)]
    held = [t for t in data if size and t.shape[0] % size == 0]
    return [(tensor, replace(tensor, id=fresh.tensor_id(), storage=fresh.storage_id(), offset=0)) for tensor in held]
