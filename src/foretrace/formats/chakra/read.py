"""Reading Chakra traces, written by Foretrace or by MLCommons' tools."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.files import gc_paused
from foretrace.formats.call_tree import (
    BACKWARD_SCOPE,
    STEP_MARK,
    activities,
    kinds_by_scope,
    phases_by_scope,
    steps_by_row,
)
from foretrace.formats.chakra.nodes import ChakraFile, ChakraNode, read_nodes
from foretrace.formats.chakra.schema import COLLECTIVES, COMM_RECV_NODE, COMM_SEND_NODE, METADATA_NODE
from foretrace.formats.execution_trace.groups import GROUPS_NODE, process_groups, rank_in
from foretrace.formats.execution_trace.read import SCAFFOLD, LazyOps
from foretrace.formats.values import decoded, sent_bytes, signature
from foretrace.graph import PHASES, CallTable, Collective, ForetraceError, Graph, KernelTable, Names, Op, OpTable, Span
from foretrace.graph.operators import ON_HOST
from foretrace.graph.tables import (
    COLLECTIVE,
    COMPUTE,
    COPY,
    FUNCTION,
    LAUNCH,
    MODULE,
    OTHER_CALL,
    SET,
    ActivityTable,
    Ints,
)

NO_TIMES = "the Chakra trace has no start times: they are simulated from its durations and dependencies"
NO_DURATIONS = "the Chakra trace has neither times nor durations: it says what runs, not how long"
NO_CALLS = (
    "the Chakra trace has no runtime calls: kernels are assumed to be launched at the end of the op they depend on"
)
_MAX_LITERAL = 1 << 20
"""Characters of the longest Python literal that is parsed; JSON may be longer."""


def read_chakra(path: Path | str) -> Graph:
    """The graph of one rank's Chakra trace; times are the file's, or simulated if it has none.

    >>> import tempfile
    >>> from foretrace.formats.chakra.write import write_chakra
    >>> from foretrace.graph import Job
    >>> graph = Graph(OpTable.of([Op("aten::mm", start_us=0.0, end_us=2.5)]), rank=1, world=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path] = write_chakra(Job([graph]), folder)
    ...     path.name, read_chakra(path).ops[0].end_us
    ('chakra.1.et', 2.5)
    """
    path = Path(path)
    with gc_paused():
        file = read_nodes(path)
        nodes = [n for n in file.nodes if "gap" not in n.attributes and n.type != METADATA_NODE]
        if not file.is_measured and not file.has_durations:
            _call_device_nodes(nodes)
        ops, op_rows = _ops(path, [n for n in nodes if n.on_host and "runtime_call" not in n.attributes])
        calls, call_rows = _calls([n for n in nodes if n.on_host and "runtime_call" in n.attributes], op_rows)
        device = sorted((n for n in nodes if not n.on_host), key=lambda n: n.start)
        if len(calls) == 0:
            calls, launched_by = _assumed_launches(device, ops, op_rows)
        else:
            launched_by = {n.id: call_rows.get(n.parent, -1) for n in device}
        kernels = _kernels(device, calls, launched_by)
        collectives = _collectives(device, kernels)
        collectives += _host_collectives(nodes, op_rows, beside_device=bool(collectives))
    graph = Graph(ops, calls, kernels, source=str(path), collectives=collectives)
    _set_file_attributes(graph, file, nodes)
    return graph


def _call_device_nodes(nodes: list[ChakraNode]) -> None:
    """Take device work for calls, as in an execution trace: without any time it is no timeline of kernels."""
    for node in nodes:
        if not node.on_host:
            node.attributes["is_cpu_op"] = True
            node.name = f"c10d::{_kind(node) or node.name}" if node.communicates else f"chakra::{node.name}"


def _column(values: Iterable[Any], kind: type) -> NDArray[Any]:
    return np.array(list(values), kind)


def _in_call_order(nodes: list[ChakraNode]) -> list[ChakraNode]:
    timed = not any(math.isnan(n.start) for n in nodes)
    return sorted(nodes, key=lambda n: n.start) if timed else nodes


def _ops(path: Path, nodes: list[ChakraNode]) -> tuple[OpTable, dict[int, int]]:
    nodes = _in_call_order([n for n in nodes if not n.name.startswith(SCAFFOLD)])
    row_of = {n.id: row for row, n in enumerate(nodes)}
    above = (row_of.get(n.parent, -1) for n in nodes)
    parent = _column((p if p < row else -1 for row, p in enumerate(above)), np.int32)
    names, modules = Names(), Names([""])
    name = _column((names.code(n.name) for n in nodes), np.int32)
    scope = _column((min(n.number("scope", 0), 99) for n in nodes), np.int32)
    backward = (scope == BACKWARD_SCOPE) | _column((n.number("fw_parent", 0) > 0 for n in nodes), np.bool_)
    kind, phase = kinds_by_scope(names, name, scope, parent), phases_by_scope(names, name, backward, parent)
    for row, node in enumerate(nodes):
        kind[row] = _within(node.number("kind", -1), MODULE, int(kind[row]))
        phase[row] = _within(node.number("phase", -1), len(PHASES) - 1, int(phase[row]))
    table = OpTable(
        name=name,
        start=_column((n.start for n in nodes), np.float64),
        end=_column((n.end for n in nodes), np.float64),
        thread=_threads(nodes),
        parent=parent,
        phase=phase,
        kind=kind,
        module=_column((modules.code(n.text("module")) for n in nodes), np.int32),
        names=names,
        modules=modules,
        source=np.arange(len(nodes), dtype=np.int32),
        detail=_NodeOps(path, nodes),
        record=_column((n.number("rf_id", -1) for n in nodes), np.int64),
    )
    return table, row_of


def _within(value: int, largest: int, default: int) -> int:
    return value if 0 <= value <= largest else default


def _threads(nodes: list[ChakraNode]) -> Ints:
    return _column((_within(n.number("tid", 0), 2**31 - 1, 0) for n in nodes), np.int32)


def _calls(nodes: list[ChakraNode], op_rows: dict[int, int]) -> tuple[CallTable, dict[int, int]]:
    nodes = _in_call_order(nodes)
    names = Names()
    table = CallTable(
        name=_column((names.code(n.name) for n in nodes), np.int32),
        start=_column((n.start for n in nodes), np.float64),
        end=_column((n.end for n in nodes), np.float64),
        thread=_threads(nodes),
        kind=_column((_within(n.number("runtime_call", -1), OTHER_CALL, OTHER_CALL) for n in nodes), np.int8),
        op=_column((op_rows.get(n.parent, -1) for n in nodes), np.int32),
        correlation=_column((n.number("correlation", 0) for n in nodes), np.int64),
        names=names,
    )
    return table, {n.id: row for row, n in enumerate(nodes)}


def _assumed_launches(
    device: list[ChakraNode], ops: OpTable, op_rows: dict[int, int]
) -> tuple[CallTable, dict[int, int]]:
    """A launch for each op that kernels depend on, and the row of the launch by the id of what it launches.

    Without control dependencies, a kernel is launched by the last op that it depends on; in a trace without ops, it is
    launched when it starts.
    """
    row_of: dict[int, int] = {}
    launches: dict[tuple[int, float], int] = {}
    for node in device:
        row = op_rows.get(node.parent, max((op_rows[dep] for dep in node.data_deps if dep in op_rows), default=-1))
        time = float(ops.end[row]) if row >= 0 else node.start
        known = row >= 0 or not len(ops)
        row_of[node.id] = launches.setdefault((row, time), len(launches)) if known else -1
    op = _column((row for row, _ in launches), np.int32)
    start = _column((time for _, time in launches), np.float64)
    count = len(op)
    table = CallTable(
        name=np.zeros(count, np.int32),
        start=start,
        end=start,
        thread=np.append(ops.thread, 0)[op].astype(np.int32),
        kind=np.full(count, LAUNCH, np.int8),
        op=op,
        correlation=np.zeros(count, np.int64),
        names=Names(["launch"]),
    )
    return table, row_of


def _kernels(device: list[ChakraNode], calls: CallTable, launched_by: dict[int, int]) -> KernelTable:
    names = Names()
    call = _column((launched_by[n.id] for n in device), np.int32)
    lane = (n.number("stream", int(n.communicates)) for n in device)
    return KernelTable(
        name=_column((names.code(n.name) for n in device), np.int32),
        start=_column((n.start for n in device), np.float64),
        end=_column((n.end for n in device), np.float64),
        stream=_column((_within(stream, 2**31 - 1, 0) for stream in lane), np.int32),
        kind=_column((_within(n.number("kind", -1), COLLECTIVE, _kernel_kind(n)) for n in device), np.int8),
        call=call,
        op=np.where(call >= 0, calls.op[call], -1).astype(np.int32) if len(calls) else call.copy(),
        nbytes=_column((n.number("nbytes", n.number("comm_size", 0)) for n in device), np.int64),
        grid=_column((n.number("grid", 0) for n in device), np.int64),
        block=_column((n.number("block", 0) for n in device), np.int64),
        names=names,
    )


def _kernel_kind(node: ChakraNode) -> int:
    if node.communicates:
        return COLLECTIVE
    return COPY if node.name.startswith("Memcpy") else SET if node.name.startswith("Memset") else COMPUTE


def _collectives(device: Sequence[ChakraNode], kernels: KernelTable) -> list[Collective]:
    return [
        _collective(node, kernel=row, op=int(kernels.op[row])) for row, node in enumerate(device) if node.communicates
    ]


def _host_collectives(nodes: Sequence[ChakraNode], op_rows: dict[int, int], beside_device: bool) -> list[Collective]:
    """Those that the host runs; beside a device's, only gloo's own: other calls may have issued these."""
    found = [n for n in nodes if n.communicates and n.id in op_rows and "comm_size" in n.attributes]
    found = [n for n in found if not beside_device or n.name.startswith(ON_HOST)]
    return [_collective(node, kernel=-1, op=op_rows[node.id]) for node in found]


def _collective(node: ChakraNode, kernel: int, op: int) -> Collective:
    group = node.text("pg_name") or str(node.attributes.get("pg_id", ""))
    ranks = node.attributes.get("comm_ranks", ())
    ranks = ranks if isinstance(ranks, tuple) and all(isinstance(rank, int) for rank in ranks) else ()
    found = Collective(
        _kind(node), group, sent_bytes(node.number("comm_size", 0)), kernel, op, ranks, node.text("comm_dtype")
    )
    found.peer = node.number({"send": "comm_dst", "recv": "comm_src"}.get(found.kind, ""), -1)
    if not found.is_sized and kernel >= 0 and node.end > node.start:
        found.us = node.end - node.start
    return found


def _kind(node: ChakraNode) -> str:
    kind, number = {COMM_SEND_NODE: "send", COMM_RECV_NODE: "recv"}.get(node.type, ""), node.number("comm_type", -1)
    return COLLECTIVES[number] if not kind and 0 <= number < len(COLLECTIVES) else kind


def _set_file_attributes(graph: Graph, file: ChakraFile, nodes: list[ChakraNode]) -> None:
    attributes = file.attributes
    graph.groups = _typed(attributes.get("groups"), dict[str, tuple[int, ...]], {}) or _listed_groups(nodes)
    whole = {name: attributes[name] for name in ("rank", "world", "origin_ns") if isinstance(attributes.get(name), int)}
    world = whole.get("world") or max(map(len, graph.groups.values()), default=1)
    rank = whole.get("rank", rank_in(graph.groups))
    if 0 <= rank < world:
        graph.rank, graph.world = rank, world
    graph.origin_ns = whole.get("origin_ns", 0)
    graph.device = attributes["device"] if isinstance(attributes.get("device"), str) else ""
    for name, start, end in _typed(attributes.get("steps"), list[tuple[str, float, float]], []):
        graph.steps.append(Span(name, start, end))
    if not graph.steps:
        graph.steps = _marked_steps(nodes) if graph.has_times else steps_by_row(graph.ops)
    graph.allocated = _typed(attributes.get("allocated"), tuple[tuple[float, int], ...], ())
    graph.notes += _typed(attributes.get("notes"), list[str], [])
    if file.is_measured:
        functions = _typed(attributes.get("functions"), list[tuple[str, float, float, int]], [])
        graph.activities = activities(graph.ops, _functions(functions))
    else:
        graph.notes.append(NO_TIMES if file.has_durations else NO_DURATIONS)
    if len(graph.kernels) and graph.calls.names.items == ["launch"] and len(graph.calls):
        graph.notes.append(NO_CALLS)


def _functions(listed: list[tuple[str, float, float, int]]) -> ActivityTable:
    names, rows = Names(), [one for one in listed if one[2] >= one[1] and 0 <= one[3] < 2**31]
    return ActivityTable(
        name=_column((names.code(name) for name, *_ in rows), np.int32),
        start=_column((start for _, start, _, _ in rows), np.float64),
        end=_column((end for _, _, end, _ in rows), np.float64),
        thread=_column((thread for *_, thread in rows), np.int32),
        kind=np.full(len(rows), FUNCTION, np.int8),
        names=names,
    )


def _marked_steps(nodes: list[ChakraNode]) -> list[Span]:
    """Steps from the profiler's marks; one that no node was called from reaches to the next, or to the end."""
    timed = [n for n in nodes if not math.isnan(n.start)]
    marks = sorted((n for n in timed if n.on_host and STEP_MARK.match(n.name)), key=lambda n: n.start)
    borders = [*(n.start for n in marks[1:]), max((n.end for n in timed), default=0.0)]
    return [Span(n.name, n.start, n.end if n.end > n.start else end) for n, end in zip(marks, borders)]


def _typed(text: Any, kind: Any, default: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind) if isinstance(text, str) else default
    except msgspec.DecodeError:
        return default


def _listed_groups(nodes: list[ChakraNode]) -> dict[str, tuple[int, ...]]:
    return process_groups(_list(n.inputs[0]) for n in nodes if n.name == GROUPS_NODE)


class _NodeOps:
    """Creates the op of a row from the texts of its arguments: JSON, or Python literals."""

    def __init__(self, path: Path, nodes: list[ChakraNode]) -> None:
        self._path, self._nodes = path, nodes

    def __reduce__(self) -> tuple[type[LazyOps], tuple[Callable[[Path], Graph], Path]]:
        return LazyOps, (read_chakra, self._path.absolute())

    def __call__(self, row: int) -> Op:
        node = self._nodes[row]
        declared = signature(node.text("op_schema"))
        try:
            values = _values(node.inputs, declared.parameters)
            outputs = _values(node.outputs, ())
        except (TypeError, ValueError, IndexError, OverflowError, RecursionError):
            raise ForetraceError(
                f"{self._path}: arguments of node {node.id} ({node.name[:60]!r}) are not what a trace writes",
                "The file was damaged or edited: write it again.",
            ) from None
        keywords = _typed(node.attributes.get("kwargs"), list[str], [p.name for p in declared.parameters if p.keyword])
        first = max(0, len(values) - len(keywords))
        return Op(
            node.name,
            tuple(values[:first]),
            dict(zip(keywords, values[first:])),
            tuple(outputs),
            overload=node.text("overload") or declared.overload,
        )


def _values(texts: tuple[str, str, str], parameters: Sequence[Any]) -> list[Any]:
    values, shapes, types = (_list(text) for text in texts)
    if not len(values) == len(shapes) == len(types):
        raise ValueError("lists of different lengths")
    hints = parameters if len(parameters) >= len(values) else [None] * len(values)
    return [
        decoded(v, shape, str(kind), None, hint, _storage) for v, shape, kind, hint in zip(values, shapes, types, hints)
    ]


def _storage(number: int) -> int:
    return number - 1  # 0 means none


def _list(text: str) -> list[Any]:
    """A list written as JSON, or as a Python literal.

    >>> _list('[1, null]'), _list("[1, 'cuda:0', False]"), _list("")
    ([1, None], [1, 'cuda:0', False], [])
    """
    if not text:
        return []
    try:
        return msgspec.json.decode(text, type=list[Any])
    except msgspec.DecodeError:
        if len(text) > _MAX_LITERAL:
            raise ValueError("too long") from None
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, MemoryError):
        raise ValueError("not a list") from None
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value
