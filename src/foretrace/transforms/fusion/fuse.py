"""Fusion by name: the registry of what can be fused; CUDA graphs, where a single call of the host launches all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foretrace.errors import ForetraceError
from foretrace.graph import Graph
from foretrace.graph.op import GRAPH_LAUNCH, Op
from foretrace.graph.operators import SYNCHRONIZE, on_device, waits_for_device
from foretrace.graph.tables import SYNC
from foretrace.transforms.dataflow import Dataflow
from foretrace.transforms.fusion.elementwise import fuse_elementwise
from foretrace.transforms.fusion.lookups import fuse_lookups
from foretrace.transforms.inputs import StepInputs, is_per_channel
from foretrace.transforms.step import EditedCall, UnusedIds, assemble, editable_step
from foretrace.transforms.structure.optimizer import optimizer

NO_WORK = ("aten::empty", "aten::empty_strided", "aten::lift_fresh", "aten::detach", "aten::alias")
"""Calls that compute nothing: allowed on the host."""


def cudagraph(graph: Graph) -> Graph:
    """The step captured as one CUDA graph.

    Before each launch the batch is copied to the captured addresses. A call that ``torch.cuda.graph`` refuses or would
    freeze is refused: a synchronization, a size that depends on values, work on the host.
    """
    graph, ops = editable_step(graph)
    if not any(on_device(tensor.device) for op in ops for tensor in op.tensors):
        raise ForetraceError(f"{graph.title} does nothing on a GPU", "There is nothing to capture.")
    synchronizing = {int(row) for row in graph.calls.op[graph.calls.kind == SYNC]}
    last = max(row for row, op in enumerate(ops) if not op.is_side_call)
    for row, op in enumerate(ops[: last + 1]):  # a synchronization at the end of the step comes after the graph
        _check_capturable(row, op, row in synchronizing - {last})
    inputs, ids = StepInputs(Dataflow(ops)), UnusedIds(ops)
    size, copies = inputs.batch, []
    for to in inputs.data.values():
        if size and to.shape and on_device(to.device) and not is_per_channel(to) and to.shape[0] % size == 0:
            given = replace(ids.copy(to), offset=0)
            copies.append(Op("aten::copy_", (to, given), outputs=(to,), overload="default", thread=ops[0].thread))
    launch = Op(GRAPH_LAUNCH, thread=ops[0].thread)
    calls = [*(EditedCall(op) for op in (*copies, launch)), *(EditedCall(op, row) for row, op in enumerate(ops))]
    made = assemble(graph, calls)
    made.notes.append(f"all calls are one CUDA graph; {len(copies)} copies move the batch to its captured addresses")
    return made


def _check_capturable(row: int, op: Op, synchronizes: bool) -> None:
    """Raise for a call that can't be captured."""
    call = f"call {row}, {op.name},"
    if op.name == GRAPH_LAUNCH:
        raise ForetraceError(f"{call} launches a CUDA graph already", "A step is captured once.")
    if synchronizes or op.name in SYNCHRONIZE or waits_for_device(op):
        raise ForetraceError(
            f"{call} makes the host wait for the device, which a CUDA graph can't capture",
            "Remove it from the step: its result, or the size of it, is not known when the graph is launched.",
        )
    tensors = [*op.tensors, *op.produced]
    if op.name not in NO_WORK and tensors and not any(on_device(tensor.device) for tensor in tensors):
        advice = "Remove it from the step."
        if op.phase == "optimizer":
            advice = "Use an optimizer that counts its steps on the device: set optimizer=fused before it."
        raise ForetraceError(f"{call} works on the host, and a CUDA graph captures only device work", advice)


FUSIONS: dict[str, Callable[[Graph], Graph]] = {
    "lookups": fuse_lookups,
    "elementwise": fuse_elementwise,
    "optimizer": lambda graph: optimizer(graph, "fused"),
    "launches": cudagraph,
}
"""Transforms that make few calls of many, by what they fuse."""


def fuse(graph: Graph, what: str) -> Graph:
    """The step with many calls as one.

    ``"lookups"``, ``"elementwise"`` chains, the calls of the ``"optimizer"``, or all ``"launches"``, as a CUDA graph.
    """
    return FUSIONS[parse_fusion(what)](graph)


def parse_fusion(what: str) -> str:
    """The name of a fusion; refuses any other."""
    if what not in FUSIONS:
        raise ForetraceError(f"{what!r} can't be fused", f"These can: {', '.join(FUSIONS)}.")
    return what
