"""Chakra traces, ours and those that MLCommons' tools made, as graphs."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.files import gc_paused
from foretrace.formats.call_tree import BACKWARD_SCOPE, kinds_by_scope, phases_by_scope
from foretrace.formats.chakra.schema import (
    COLLECTIVES,
    COMM_RECV_NODE,
    COMM_SEND_NODE,
    METADATA_NODE,
    Entries,
    Entry,
    read_entries,
)
from foretrace.formats.execution_trace.groups import INIT, process_groups, rank_in
from foretrace.formats.execution_trace.read import SCAFFOLD, LazyOps
from foretrace.formats.values import decoded, signature
from foretrace.graph import PHASES, CallTable, Collective, ForetraceError, Graph, KernelTable, Names, Op, OpTable, Span
from foretrace.graph.tables import COLLECTIVE, COMPUTE, COPY, LAUNCH, MODULE, OTHER_CALL, SET, Ints

NO_TIMES = "the Chakra trace has no start times: they are played back from its durations and dependencies"
NO_CALLS = "the Chakra trace has no runtime calls: kernels are taken to be launched as the op they depend on ends"
_STEP = re.compile(r"ProfilerStep#\d+$")
_LONGEST_LITERAL = 1 << 20


def read_chakra(path: Path | str) -> Graph:
    """The graph of one rank's Chakra trace; times are the file's, or played back where it has none.

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
        entries = read_entries(path)
        nodes = [e for e in entries.nodes if "gap" not in e.said and e.type != METADATA_NODE]
        ops, op_rows = _ops(path, [e for e in nodes if e.on_host and "runtime_call" not in e.said])
        calls, call_rows = _calls([e for e in nodes if e.on_host and "runtime_call" in e.said], op_rows)
        device = sorted((e for e in nodes if not e.on_host), key=lambda e: e.start)
        if len(calls) == 0:
            calls, call_rows = _assumed_launches(device, ops, op_rows)
        kernels = _kernels(device, calls, call_rows)
        collectives = _collectives(device, kernels) or _host_collectives(nodes, op_rows)
    graph = Graph(ops, calls, kernels, source=str(path), collectives=collectives)
    _tell_about_file(graph, entries, nodes)
    return graph


def _column(values: Iterable[Any], kind: type) -> NDArray[Any]:
    return np.array(list(values), kind)


def _in_call_order(entries: list[Entry]) -> list[Entry]:
    timed = not any(math.isnan(e.start) for e in entries)
    return sorted(entries, key=lambda e: e.start) if timed else entries


def _ops(path: Path, entries: list[Entry]) -> tuple[OpTable, dict[int, int]]:
    entries = _in_call_order([e for e in entries if not e.name.startswith(SCAFFOLD)])
    row_of = {e.id: row for row, e in enumerate(entries)}
    above = (row_of.get(e.parent, -1) for e in entries)
    parent = _column((p if p < row else -1 for row, p in enumerate(above)), np.int32)
    names, modules = Names(), Names([""])
    name = _column((names.code(e.name) for e in entries), np.int32)
    scope = _column((min(e.number("scope", 0), 99) for e in entries), np.int32)
    backward = (scope == BACKWARD_SCOPE) | _column((e.number("fw_parent", 0) > 0 for e in entries), np.bool_)
    kind, phase = kinds_by_scope(names, name, scope, parent), phases_by_scope(names, name, backward, parent)
    for row, entry in enumerate(entries):
        kind[row] = _within(entry.number("kind", -1), MODULE, int(kind[row]))
        phase[row] = _within(entry.number("phase", -1), len(PHASES) - 1, int(phase[row]))
    table = OpTable(
        name=name,
        start=_column((e.start for e in entries), np.float64),
        end=_column((e.end for e in entries), np.float64),
        thread=_threads(entries),
        parent=parent,
        phase=phase,
        kind=kind,
        module=_column((modules.code(e.text("module")) for e in entries), np.int32),
        names=names,
        modules=modules,
        source=np.arange(len(entries), dtype=np.int32),
        detail=_Arguments(path, entries),
        record=_column((e.number("rf_id", -1) for e in entries), np.int64),
    )
    return table, row_of


def _within(value: int, largest: int, default: int) -> int:
    return value if 0 <= value <= largest else default


def _threads(entries: list[Entry]) -> Ints:
    return _column((_within(e.number("tid", 0), 2**31 - 1, 0) for e in entries), np.int32)


def _calls(entries: list[Entry], op_rows: dict[int, int]) -> tuple[CallTable, dict[int, int]]:
    entries = _in_call_order(entries)
    names = Names()
    table = CallTable(
        name=_column((names.code(e.name) for e in entries), np.int32),
        start=_column((e.start for e in entries), np.float64),
        end=_column((e.end for e in entries), np.float64),
        thread=_threads(entries),
        kind=_column((_within(e.number("runtime_call", -1), OTHER_CALL, OTHER_CALL) for e in entries), np.int8),
        op=_column((op_rows.get(e.parent, -1) for e in entries), np.int32),
        correlation=_column((e.number("correlation", 0) for e in entries), np.int64),
        names=names,
    )
    return table, {e.id: row for row, e in enumerate(entries)}


def _assumed_launches(device: list[Entry], ops: OpTable, op_rows: dict[int, int]) -> tuple[CallTable, dict[int, int]]:
    """A launch for each kernel that depends on an op; a call has the id of the op, for kernels to find it."""
    row_of: dict[int, int] = {}
    launchers = [e.parent for e in device if e.parent in op_rows]
    for launcher in launchers:
        row_of.setdefault(launcher, len(row_of))
    op = _column((op_rows[launcher] for launcher in row_of), np.int32)
    count = len(op)
    table = CallTable(
        name=np.zeros(count, np.int32),
        start=ops.end[op],
        end=ops.end[op],
        thread=ops.thread[op],
        kind=np.full(count, LAUNCH, np.int8),
        op=op,
        correlation=np.zeros(count, np.int64),
        names=Names(["launch"]),
    )
    return table, row_of


def _kernels(device: list[Entry], calls: CallTable, call_rows: dict[int, int]) -> KernelTable:
    names = Names()
    call = _column((call_rows.get(e.parent, -1) for e in device), np.int32)
    lane = (e.number("stream", int(e.communicates)) for e in device)
    return KernelTable(
        name=_column((names.code(e.name) for e in device), np.int32),
        start=_column((e.start for e in device), np.float64),
        end=_column((e.end for e in device), np.float64),
        stream=_column((_within(stream, 2**31 - 1, 0) for stream in lane), np.int32),
        kind=_column((_within(e.number("kind", -1), COLLECTIVE, _kernel_kind(e)) for e in device), np.int8),
        call=call,
        op=np.where(call >= 0, calls.op[call], -1).astype(np.int32) if len(calls) else call.copy(),
        nbytes=_column((e.number("nbytes", e.number("comm_size", 0)) for e in device), np.int64),
        grid=_column((e.number("grid", 0) for e in device), np.int64),
        block=_column((e.number("block", 0) for e in device), np.int64),
        names=names,
    )


def _kernel_kind(entry: Entry) -> int:
    if entry.communicates:
        return COLLECTIVE
    return COPY if entry.name.startswith("Memcpy") else SET if entry.name.startswith("Memset") else COMPUTE


def _collectives(device: Sequence[Entry], kernels: KernelTable) -> list[Collective]:
    return [
        _collective(entry, kernel=row, op=int(kernels.op[row]))
        for row, entry in enumerate(device)
        if entry.communicates
    ]


def _host_collectives(nodes: Sequence[Entry], op_rows: dict[int, int]) -> list[Collective]:
    said = [e for e in nodes if e.communicates and e.id in op_rows and "comm_size" in e.said]
    return [_collective(entry, kernel=-1, op=op_rows[entry.id]) for entry in said]


def _collective(entry: Entry, kernel: int, op: int) -> Collective:
    kind = {COMM_SEND_NODE: "send", COMM_RECV_NODE: "recv"}.get(entry.type, "")
    number = entry.number("comm_type", -1)
    if not kind and 0 <= number < len(COLLECTIVES):
        kind = COLLECTIVES[number]
    group = entry.text("pg_name") or str(entry.said.get("pg_id", ""))
    ranks = entry.said.get("comm_ranks", ())
    ranks = ranks if isinstance(ranks, tuple) and all(isinstance(rank, int) for rank in ranks) else ()
    nbytes = entry.number("comm_size", 0)
    return Collective(kind, group, nbytes, kernel, op, ranks=ranks, dtype=entry.text("comm_dtype"))


def _tell_about_file(graph: Graph, entries: Entries, nodes: list[Entry]) -> None:
    said = entries.said
    graph.groups = _typed(said.get("groups"), dict[str, tuple[int, ...]], {}) or _listed_groups(nodes)
    whole = {name: said[name] for name in ("rank", "world", "origin_ns") if isinstance(said.get(name), int)}
    world = whole.get("world") or max(map(len, graph.groups.values()), default=1)
    rank = whole.get("rank", rank_in(graph.groups))
    if 0 <= rank < world:
        graph.rank, graph.world = rank, world
    graph.origin_ns = whole.get("origin_ns", 0)
    graph.device = said["device"] if isinstance(said.get("device"), str) else ""
    for name, start, end in _typed(said.get("steps"), list[tuple[str, float, float]], []):
        graph.steps.append(Span(name, start, end))
    if not graph.steps:
        marks = (e for e in nodes if e.on_host and _STEP.match(e.name) and not math.isnan(e.start))
        graph.steps = [Span(e.name, e.start, e.end) for e in marks]
    if not entries.is_measured:
        graph.notes.append(NO_TIMES)
    if len(graph.kernels) and graph.calls.names.items == ["launch"]:
        graph.notes.append(NO_CALLS)


def _typed(text: Any, kind: Any, default: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind) if isinstance(text, str) else default
    except msgspec.DecodeError:
        return default


def _listed_groups(nodes: list[Entry]) -> dict[str, tuple[int, ...]]:
    return process_groups(_list(e.inputs[0]) for e in nodes if e.name == INIT)


class _Arguments:
    """Makes the op of a row from the texts that hold its arguments: JSON, or Python's way of writing lists."""

    def __init__(self, path: Path, entries: list[Entry]) -> None:
        self._path, self._entries = path, entries

    def __reduce__(self) -> tuple[type[LazyOps], tuple[Callable[[Path], Graph], Path]]:
        return LazyOps, (read_chakra, self._path.absolute())

    def __call__(self, row: int) -> Op:
        entry = self._entries[row]
        declared = signature(entry.text("op_schema"))
        try:
            values = _values(entry.inputs, declared.parameters)
            outputs = _values(entry.outputs, ())
        except (TypeError, ValueError, IndexError, OverflowError, RecursionError):
            raise ForetraceError(
                f"{self._path}: arguments of node {entry.id} ({entry.name[:60]!r}) are not what a trace writes",
                "The file was damaged or edited: write it again.",
            ) from None
        keywords = _typed(entry.said.get("kwargs"), list[str], [p.name for p in declared.parameters if p.keyword])
        first = max(0, len(values) - len(keywords))
        return Op(
            entry.name,
            tuple(values[:first]),
            dict(zip(keywords, values[first:])),
            tuple(outputs),
            overload=entry.text("overload") or declared.overload,
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
    return number - 1  # 0 says that there is none


def _list(text: str) -> list[Any]:
    """A list written as JSON, or as Python does.

    >>> _list('[1, null]'), _list("[1, 'cuda:0', False]"), _list("")
    ([1, None], [1, 'cuda:0', False], [])
    """
    if not text:
        return []
    try:
        return msgspec.json.decode(text, type=list[Any])
    except msgspec.DecodeError:
        if len(text) > _LONGEST_LITERAL:
            raise ValueError("too long") from None
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, MemoryError):
        raise ValueError("not a list") from None
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value
