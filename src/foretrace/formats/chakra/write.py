"""Writing jobs as Chakra traces, one file per rank, for simulators such as ASTRA-sim."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretrace.formats.chakra import schema
from foretrace.formats.chakra.edges import CALL, GAP, KERNEL, OP, PlannedNode, plan_nodes
from foretrace.formats.chakra.schema import add_attributes, framed
from foretrace.formats.values import encoded
from foretrace.graph import Collective, Graph, Job, Op, Value
from foretrace.graph.tables import FUNCTION, ActivityTable
from foretrace.output import CHAKRA, open_output

VERSION = "0.0.4"
_NODE_TYPES = {"send": schema.COMM_SEND_NODE, "recv": schema.COMM_RECV_NODE}


def write_chakra(job: Job, folder: Path | str) -> list[Path]:
    """Write each rank of a job as ``chakra.RANK.et`` into a folder; each file is complete or absent.

    Each host op and runtime call is a node, in the order of its thread, with its exclusive time. The host's time
    between outermost ops is a node too.

    Kernels depend on their launch, on the previous kernel of their stream, and on kernels of other streams that they
    waited for. Synchronizations depend on the kernels they waited for. Collective nodes of different ranks belong
    together by group and order.

    Attributes hold what Chakra has no field for: exact times, phase, stream, module; those of the file long Python
    functions, allocated memory, notes.
    """
    written = []
    for graph in job.graphs:
        path = Path(folder) / f"chakra.{graph.rank}.et"
        with open_output(path, CHAKRA) as file:
            file.write(framed(_metadata(graph)))
            for message in _Messages(graph).all():
                file.write(framed(message))
        written.append(path)
    return written


def _metadata(graph: Graph) -> Any:
    metadata = schema.GlobalMetadata(version=VERSION)
    add_attributes(
        metadata,
        rank=graph.rank,
        world=graph.world,
        device=graph.device,
        origin_ns=graph.origin_ns,
        groups=json.dumps(graph.groups),
        steps=json.dumps(graph.steps),
        functions=json.dumps(_functions(graph.activities)),
        allocated=json.dumps(graph.allocated),
        notes=json.dumps(graph.notes),
    )
    return metadata


def _functions(table: ActivityTable) -> list[tuple[str, float, float, int]]:
    """Python functions that took long: name, start, end and thread. Annotations are nodes."""
    rows = table.rows(table.kind == FUNCTION)
    columns = (rows.name, rows.start, rows.end, rows.thread)
    return [(rows.names[name], *more) for name, *more in zip(*(column.tolist() for column in columns))]


class _Messages:
    """The nodes of one rank's graph as messages."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.by_kernel = {c.kernel: c for c in graph.collectives if c.kernel >= 0}
        self.by_op = {c.op: c for c in graph.collectives if c.kernel < 0}
        self.ops: dict[int, Op] = {}
        self.exact: dict[tuple[int, int], float] = {}

    def all(self) -> Iterator[Any]:
        fill = {OP: self._op, CALL: self._call, KERNEL: self._kernel, GAP: self._gap}
        for number, planned in enumerate(plan_nodes(self.graph), start=1):
            node = schema.Node(id=number, type=schema.COMP_NODE, duration_micros=self._micros(planned))
            if planned.parent >= 0:
                node.ctrl_deps.append(planned.parent + 1)
            node.data_deps.extend(dep + 1 for dep in planned.deps)
            fill[planned.what](node, planned.row)
            yield node

    def _micros(self, planned: PlannedNode) -> int:
        """Whole microseconds; the rounding error goes to the next node of the lane, so that sums are exact."""
        before = self.exact.get(planned.lane, 0.0)
        self.exact[planned.lane] = before + planned.us
        return round(before + planned.us) - round(before)

    def _times(self, node: Any, start: float, end: float) -> None:
        if not math.isnan(start):  # the ops of an execution trace have no times
            node.start_time_micros = max(0, round(start))
            add_attributes(node, start_us=float(start), end_us=float(end))

    def _op(self, node: Any, row: int) -> None:
        ops = self.graph.ops
        op = self._detail(row)
        node.name = op.name
        self._times(node, op.start_us, op.end_us)
        _fill(node.inputs, [*op.args, *op.kwargs.values()])
        _fill(node.outputs, list(op.outputs))
        add_attributes(node, is_cpu_op=True, tid=op.thread, kind=int(ops.kind[row]), phase=int(ops.phase[row]))
        if op.module or op.overload or op.kwargs:
            add_attributes(node, module=op.module, overload=op.overload, kwargs=json.dumps(list(op.kwargs)))
        if row in self.by_op:
            self._collective(node, self.by_op[row])

    def _call(self, node: Any, row: int) -> None:
        calls = self.graph.calls
        node.name = calls.names[calls.name[row]]
        self._times(node, calls.start[row], calls.end[row])
        add_attributes(
            node, is_cpu_op=True, tid=int(calls.thread[row]), runtime_call=int(calls.kind[row]),
            correlation=int(calls.correlation[row]),
        )  # fmt: skip

    def _kernel(self, node: Any, row: int) -> None:
        kernels = self.graph.kernels
        node.name = kernels.names[kernels.name[row]]
        self._times(node, kernels.start[row], kernels.end[row])
        op = int(kernels.op[row])
        add_attributes(
            node, is_cpu_op=False, stream=int(kernels.stream[row]), kind=int(kernels.kind[row]),
            nbytes=int(kernels.nbytes[row]), grid=int(kernels.grid[row]), block=int(kernels.block[row]), num_ops=0,
            tensor_size=sum(t.nbytes for t in self._detail(op).tensors) if op >= 0 else int(kernels.nbytes[row]),
        )  # fmt: skip
        if row in self.by_kernel:
            self._collective(node, self.by_kernel[row])

    def _gap(self, node: Any, row: int) -> None:
        node.name = "between ops"
        add_attributes(node, is_cpu_op=True, gap=True)

    def _collective(self, node: Any, collective: Collective) -> None:
        node.type = _NODE_TYPES.get(collective.kind, schema.COMM_COLL_NODE)
        add_attributes(node, comm_size=collective.nbytes, pg_name=collective.group, comm_dtype=collective.dtype)
        if collective.ranks:
            add_attributes(node, comm_ranks=list(collective.ranks))
        others = [rank for rank in collective.ranks if rank != self.graph.rank]
        if collective.kind in schema.COLLECTIVES:
            add_attributes(node, comm_type=schema.COLLECTIVES.index(collective.kind))
        elif len(others) == 1:
            ends = (self.graph.rank, *others) if node.type == schema.COMM_SEND_NODE else (*others, self.graph.rank)
            add_attributes(node, comm_src=ends[0], comm_dst=ends[1], comm_tag=0)

    def _detail(self, row: int) -> Op:
        if row not in self.ops:
            self.ops[row] = self.graph.ops[row]
        return self.ops[row]


def _fill(side: Any, values: list[Value]) -> None:
    if values:
        numbers, shapes, kinds = zip(*map(encoded, values))
        side.values, side.shapes, side.types = (json.dumps(part) for part in (numbers, shapes, kinds))
    else:
        side.values = side.shapes = side.types = "[]"
