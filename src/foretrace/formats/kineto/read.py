"""Reading profiler traces: the graph of one rank, with times, steps, collectives, and notes on what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.call_tree import STEP_MARK
from foretrace.formats.kineto.arguments import Arguments, decoded, values
from foretrace.formats.kineto.clocks import align_clocks
from foretrace.formats.kineto.columns import NO_ARGUMENTS, CollectiveArgs, Columns, is_device
from foretrace.formats.kineto.decode import Head
from foretrace.formats.kineto.events import read_events
from foretrace.formats.kineto.tables import Clock, activity_table, call_table, kernel_table, op_table, shared_ids
from foretrace.formats.values import dtype_name, sent_bytes
from foretrace.graph import (
    MAX_RANKS,
    CallTable,
    Collective,
    ForetraceError,
    Graph,
    KernelTable,
    OpTable,
    Span,
    tensors_in,
)
from foretrace.graph.graph import MISSING_COLLECTIVES, MISSING_KERNELS, NO_STEP_MARKS, SEVERAL_DEVICES
from foretrace.graph.op import ITEMSIZE
from foretrace.graph.operators import collective_kind
from foretrace.graph.tables import (
    CALL,
    COLLECTIVE,
    SEVERAL,
    Floats,
    distinct,
    launches_without_kernels,
)

NO_SHAPES = "no shapes of arguments: profile with record_shapes=True to have them"
MAX_EVENT_US = 86_400e6
"""A day: a profiler that ran for longer would have filled its memory."""


def read_kineto(path: Path | str) -> Graph:
    """Read the trace of one rank that ``torch.profiler`` exported; of several processes in it, the first.

    >>> import tempfile
    >>> event = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 2, "args": {}}'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "trace.json").write_text('{"traceEvents": [' + event + "]}")
    ...     graph = read_kineto(Path(folder, "trace.json"))
    >>> graph.ops[0].name, graph.ops[0].end_us
    ('aten::mm', 2.0)
    """
    return read_processes(Path(path))[0]


def read_processes(path: Path) -> list[Graph]:
    """Read a profiler trace, each of its processes as a rank: one, unless the traces of several ranks were merged."""
    columns, head = read_events(path)
    of_lanes = not columns.device.count and (not columns.ops.count or any(map(is_device, columns.processes)))
    unlinked = bool(columns.device.count and columns.calls.count and not columns.device["correlation"].any())
    if columns.begun or of_lanes or unlinked:
        from foretrace.formats.chrome_trace import read_lanes  # other profilers' traces

        columns = read_lanes(path) or columns
    if not (columns.ops.count or columns.calls.count or columns.device.count):
        raise _no_events(path, columns)
    columns = columns.without_repeats()
    if len(columns.hosts) < 2:
        return [graph_of_columns(path, columns, head)]
    from foretrace.formats.kineto.processes import as_ranks, split_processes  # most traces are of one process

    processes, notes = split_processes(columns)
    graphs = as_ranks([graph_of_columns(path, process, head) for process in processes])
    graphs[0].notes += notes
    return graphs


def graph_of_columns(path: Path, columns: Columns, head: Head) -> Graph:
    """The graph of a trace's events and its other fields."""
    clock = Clock.of(columns)
    ops = op_table(columns, clock)
    calls = call_table(columns, ops, clock)
    kernels, events, of_clocks = align_clocks(*kernel_table(columns, ops, calls, clock), calls, ops)
    for table in (ops, calls, kernels):
        _check_durations(path, table)
    rank, world = _rank_and_world(head)
    groups = _groups(head)
    finder = CollectiveFinder(ops, columns.op_collectives, groups, world)
    graph = Graph(
        ops, calls, kernels, rank, world, _device(head, columns), str(path),
        origin_ns=_base_ns(head) + clock.first_ns,
        steps=_steps(ops, calls, kernels) or _device_steps(columns, clock, calls, kernels),
        collectives=finder.of_kernels(kernels, columns.device_collectives, events) + finder.of_host(kernels),
        groups=groups,
        activities=activity_table(columns, ops, clock),
        allocated=_allocated(columns, clock),
        cuda_runtime=head.cuda_runtime_version if isinstance(head.cuda_runtime_version, int) else 0,
    )  # fmt: skip
    graph.notes += _notes(graph, columns, of_clocks)
    return graph


def _check_durations(path: Path, table: OpTable | CallTable | KernelTable) -> None:
    """Refuse a trace with an event longer than any step."""
    duration = table.end - table.start
    if len(duration) and (longest := float(duration.max())) > MAX_EVENT_US:
        name = table.names[int(table.name[int(np.argmax(duration))])]
        raise ForetraceError(
            f"{path}: event {name[:80]!r} takes {longest / 1e6:.3g} s, which no event of a step does",
            "Record this rank again, or leave it out.",
        )


def _no_events(path: Path, columns: Columns) -> ForetraceError:
    if columns.begun:
        return ForetraceError(
            f"{path} has {columns.begun:,} events that begin (ph B) and no ends of them (ph E)",
            "Export the trace again after the profiler has stopped.",
        )
    if columns.events:
        return ForetraceError(
            f"{path} holds {columns.events:,} events, but no ops, annotations, runtime calls or device work",
            "Give a trace that torch.profiler exported.",
        )
    return ForetraceError(f"{path} holds no events", "Profile at least one step and export the trace again.")


def _steps(ops: OpTable, calls: CallTable, kernels: KernelTable) -> list[Span]:
    """The profiler's step annotations, from the thread with most of them; of several such threads, from the busiest."""
    is_step = ops.names.matching(lambda name: bool(STEP_MARK.match(name)))
    rows = np.flatnonzero(is_step[ops.name]) if len(ops) else np.zeros(0, np.intp)
    if not len(rows):
        return []
    busy, marks = np.bincount(ops.thread), np.bincount(ops.thread[rows])
    main = max(range(len(marks)), key=lambda thread: (marks[thread], busy[thread]))
    spans = [
        Span(ops.names[ops.name[row]], float(ops.start[row]), float(ops.end[row]))
        for row in rows[ops.thread[rows] == main]
    ]
    # Where the profiler stops, the step that it had just begun holds nothing: no call, or in a trace without calls
    # no annotation and no device work.
    calls_in = ops.start[ops.kind == CALL], calls.start
    other = ops.start[~is_step[ops.name]], kernels.start
    return _holding(spans, calls_in) or _holding(spans, other) or spans


def _device_steps(columns: Columns, clock: Clock, calls: CallTable, kernels: KernelTable) -> list[Span]:
    """Steps that only the device's own track marks, from a step's first kernel to its last: each from its first launch,
    or where a trace has none from its first kernel, to that of the next one. The last of several has no next one, and
    is left out; of two or one, it goes to its end.
    """
    marks: dict[str, tuple[float, float]] = {}
    for name, begin, end in columns.device_steps:  # one mark for each stream
        since, until = (float(clock.since(np.array([at]))[0]) for at in (begin, end))
        first, last = marks.get(name, (since, until))
        marks[name] = min(first, since), max(last, until)
    found = []
    for name, (since, until) in marks.items():
        inside = kernels.rows((kernels.start >= since) & (kernels.end <= until))
        if len(inside):
            launched = float(calls.start[inside.call[inside.call >= 0]].min(initial=np.inf))
            found.append(Span(name, min(launched, float(inside.start.min())), float(inside.end.max())))
    found.sort(key=lambda span: span.start)
    periods = [one._replace(end=after.start) for one, after in pairwise(found)]
    return periods if len(periods) > 1 else periods + found[-1:]


def _holding(spans: list[Span], works: tuple[Floats, ...]) -> list[Span]:
    """The spans in which any of the events with these starting times begins."""
    times = [np.sort(some) for some in works]
    return [span for span in spans if any(np.diff(np.searchsorted(some, [span.start, span.end])) for some in times)]


def _distributed(head: Head) -> dict[str, Any]:
    return head.distributedInfo if isinstance(head.distributedInfo, dict) else {}


def _rank_and_world(head: Head) -> tuple[int, int]:
    """The rank that a trace says it is of, and of how many: 1 where it does not say that."""
    rank, world = _distributed(head).get("rank"), _distributed(head).get("world_size")
    if not isinstance(rank, int) or not 0 <= rank < MAX_RANKS:
        return 0, 1
    if isinstance(world, int) and rank < world < 2**31:
        return rank, world
    return (rank, 1) if world is None else (0, 1)


def _groups(head: Head) -> dict[str, tuple[int, ...]]:
    listed = _distributed(head).get("pg_config")
    groups = {}
    for group in listed if isinstance(listed, list) else []:
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            groups[str(group.get("pg_name", ""))] = tuple(ranks)
    return groups


def _base_ns(head: Head) -> int:
    """What the profiler subtracted from all timestamps, in nanoseconds since the epoch."""
    base = head.baseTimeNanoseconds
    return int(base) if isinstance(base, (int, float)) and abs(base) < 2**63 else 0


def _device(head: Head, columns: Columns) -> str:
    if not columns.device.count or not isinstance(head.deviceProperties, list):
        return ""
    listed = [d for d in head.deviceProperties if isinstance(d, dict) and isinstance(d.get("name"), str)]
    used = distinct(columns.device["device"]).tolist()
    # On ROCm the device ids of kernels count devices that the list leaves out.
    return _model_of(next((d for d in listed if d.get("id") in used), listed[0])) if listed else ""


def _model_of(device: dict[str, Any]) -> str:
    """What the driver calls a device; where that names no model, as some versions of ROCm's, with its size.

    >>> _model_of({"name": "AMD Radeon Graphics", "numSms": 104, "totalGlobalMem": 68702699520})
    'AMD Radeon Graphics of 104 processors and 64 GiB'
    """
    name, processors, nbytes = (device.get(key) for key in ("name", "numSms", "totalGlobalMem"))
    if re.search(r"\d", str(name)) or not isinstance(processors, int) or not isinstance(nbytes, int):
        return str(name)
    if not 0 < processors < nbytes < 2**63:
        return str(name)
    return f"{name or 'GPU'} of {processors} processors and {nbytes / 2**30:.0f} GiB"


def _allocated(columns: Columns, clock: Clock) -> tuple[tuple[float, int], ...]:
    """Allocated bytes over time on the most used device."""
    rows = columns.memory
    if not rows.count:
        return ()
    devices, counts = np.unique(rows["device"], return_counts=True)
    mine = rows["device"] == devices[np.argmax(counts)]
    at = clock.since(rows["ts"][mine])
    order = np.argsort(at, kind="stable")
    return tuple(zip(at[order].tolist(), rows["allocated"][mine][order].tolist()))


def _marked(graph: Graph) -> bool:
    """Whether threads of the host mark the steps."""
    return len(graph.ops) > 0 and bool(graph.ops.names.matching(lambda name: bool(STEP_MARK.match(name))).any())


OTHER_DEVICE, MAX_DEVICES = 0.01, 8
"""Share of a trace's device work that makes a device one of several, and how many of these are named."""


def _notes(graph: Graph, columns: Columns, of_clocks: list[str]) -> list[str]:
    notes = []
    if columns.device_steps and graph.steps and not _marked(graph):
        notes.append(
            "steps are marked on the device's track alone: each is from its first launch or kernel to that of the next"
        )
    if not graph.steps:
        notes.append(NO_STEP_MARKS)
    if columns.begun:
        notes.append(f"events that begin and never end are left out: {columns.begun:,}")
    if columns.repeated:
        notes.append(f"events that the file holds more than once are counted once: {columns.repeated:,} left out")
    if (graph.ops.kind == CALL).any() and all(one == NO_ARGUMENTS for one in columns.signatures):
        notes.append(NO_SHAPES)
    if len(graph.kernels) and not len(graph.calls):
        known = (graph.kernels.op >= 0).any()
        owners = "are given to ops by external ids" if known else "can't be given to the ops that launched them"
        notes.append(f"no runtime calls: kernels {owners}")
    elif len(graph.kernels) and (graph.kernels.call < 0).all() and (graph.kernels.op < 0).all():
        notes.append("no kernel names the runtime call that launched it: kernels can't be given to ops")
    used = columns.device["device"] if len(graph.kernels) else np.zeros(0, np.int64)
    devices = distinct(used).tolist() if len(used) and used.min() != used.max() else []
    several = [str(device) for device in devices if (used == device).mean() > OTHER_DEVICE]
    if len(several) > 1:
        which = ", ".join(several[:MAX_DEVICES]) + (", …" if len(several) > MAX_DEVICES else "")
        notes.append(
            f"{SEVERAL_DEVICES}the trace holds work of {len(several)} ({which}), and active is when any of them works"
        )
    notes += [*_missing_kernels(graph), *of_clocks]
    ambiguous = np.append(shared_ids(graph.calls), False)[graph.kernels.call] & (graph.kernels.op < 0)
    if ambiguous.any():
        duration = graph.kernels.end - graph.kernels.start
        share = float(duration[ambiguous].sum()) / (float(duration.sum()) or 1.0)
        notes.append(
            f"several launches have the same correlation id: which op launched {int(ambiguous.sum()):,} of "
            f"{len(graph.kernels):,} kernels, {100 * share:.0f} % of the device time, is unknown"
        )
    return notes


def _missing_kernels(graph: Graph) -> list[str]:
    """Notes on launches and collectives without kernels."""
    kernels, calls = graph.kernels, graph.calls
    known = kernels.call >= 0
    if not known.any():
        return []
    notes = []
    lost, launches = launches_without_kernels(calls, kernels)
    captures = calls.names.matching(lambda name: "BeginCapture" in name).any()  # what is captured runs later
    if lost > SEVERAL * launches and not captures:
        notes.append(
            f"{MISSING_KERNELS}{lost:,} of {launches:,} launches have none in the trace; the device worked longer than "
            "is shown"
        )
    elif not captures:
        notes += _missing_collectives(graph)
    return notes


def _missing_collectives(graph: Graph) -> list[str]:
    """A note where launches around which a collective is named have no kernels, though other launches have them."""
    kernels, calls, ops = graph.kernels, graph.calls, graph.ops
    if not len(ops):
        return []
    around = np.append(ops.names.matching(lambda name: bool(_AROUND.match(name)))[ops.name], False)[calls.op]
    around &= calls.names.matching(lambda name: "Launch" in name and "Graph" not in name)[calls.name]
    launches, lost = int(around.sum()), int((~np.isin(np.flatnonzero(around), kernels.call)).sum())
    if lost <= SEVERAL * launches:
        return []
    return [
        f"{MISSING_COLLECTIVES}{lost:,} of {launches:,} launches of collectives have no kernel in the trace; how long "
        "these take, and who waits in them, is unknown"
    ]


# Collectives: kernels of NCCL and RCCL and gloo's work, with what the ops around them say

_AROUND = re.compile(r"nccl:|gloo:|c10d::|_?c10d_functional::|record_param_comms")
_OTHER_END = re.compile(r"nccl:(?:send|recv) \d+(?:->|<-)(\d+)$")
_PARTIAL = ("all_gather", "reduce_scatter")
"""Collectives with a whole buffer at one end and a part of it at the other."""


class CollectiveFinder:
    """Combines what a trace says about each collective: kernel names, event arguments, annotations and shapes."""

    def __init__(
        self, ops: OpTable, arguments: dict[int, CollectiveArgs], groups: dict[str, tuple[int, ...]], world: int
    ) -> None:
        self.ops, self.groups, self.world = ops, groups, world
        self.arguments = arguments
        self._around = ops.names.matching(lambda name: bool(_AROUND.match(name)))
        self._buffers: dict[int, tuple[str, list[int]]] = {}

    def of_kernels(
        self, kernels: KernelTable, arguments: dict[int, CollectiveArgs], events: NDArray[np.intp]
    ) -> list[Collective]:
        """One collective for each kernel that is one.

        ``events`` has the event of each kernel, by which ``arguments`` are looked up.
        """
        found = []
        for row in np.flatnonzero(kernels.kind == COLLECTIVE).tolist():
            collective = self._collective(int(kernels.op[row]), arguments.get(int(events[row])))
            name = kernels.names[kernels.name[row]]
            # Only the op shows what the kernel that sends and receives is for.
            collective.kind = collective.kind or ("all_to_all" if "SendRecv" in name else collective_kind(name))
            collective.kernel = row
            if not collective.is_sized:
                collective.us = float(kernels.end[row] - kernels.start[row])
            found.append(collective)
        return found

    def of_host(self, kernels: KernelTable) -> list[Collective]:
        """Collectives that ran on the host: gloo's work, or without annotations of it the calls that started it.

        Where kernels communicate, calls without annotations are those that launched them.
        """
        rows = self._named("gloo:")
        if not len(rows) and not len(self._named("nccl:")) and not (kernels.kind == COLLECTIVE).any():
            rows = self._named("c10d::")
        return [self._collective(int(row), None) for row in rows]

    def _named(self, prefix: str) -> NDArray[np.intp]:
        wanted = self.ops.names.matching(lambda name: name.startswith(prefix) and bool(collective_kind(name)))
        return np.flatnonzero(wanted[self.ops.name]) if len(self.ops) else np.zeros(0, np.intp)

    def _collective(self, op: int, arguments: CollectiveArgs | None) -> Collective:
        collective = Collective("", "", 0, -1, op)
        chain = list(self._chain(op))
        for row in chain:
            arguments = arguments or self.arguments.get(int(self.ops.source[row]))
            collective.kind = collective.kind or collective_kind(self.ops.names[self.ops.name[row]])
        if arguments and collective_kind(arguments.collective):
            self._add_arguments(collective, arguments)
        if collective.peer < 0:
            collective.peer = self._peer(collective, chain)
        if not collective.nbytes:
            self._add_sizes(collective, chain)
        return collective

    def _peer(self, collective: Collective, chain: list[int]) -> int:
        """The rank at the other end of a send or a recv, which NCCL's annotation names by its position in the group."""
        ends = (_OTHER_END.match(self.ops.names[self.ops.name[row]]) for row in chain)
        place = next((int(end[1]) for end in ends if end), -1)
        return collective.ranks[place] if 0 <= place < len(collective.ranks) else place

    def _chain(self, op: int) -> Iterator[int]:
        """The op and the rows around it that describe a collective, innermost first."""
        while op >= 0:
            if self._around[self.ops.name[op]]:
                yield op
            op = int(self.ops.parent[op])

    def _add_arguments(self, collective: Collective, arguments: CollectiveArgs) -> None:
        collective.kind = collective_kind(arguments.collective)
        collective.group, collective.dtype = arguments.group, dtype_name(arguments.dtype)
        collective.ranks = _ranks(arguments.ranks) or self.groups.get(arguments.group, ())
        peer = {"send": arguments.target_rank, "recv": arguments.source_rank}.get(collective.kind, -1)
        collective.peer = int(peer) if str(peer).isdecimal() else -1
        received = collective.kind in ("all_gather", "recv") or not arguments.sent
        elements = arguments.received if received else arguments.sent
        collective.nbytes = sent_bytes(elements, ITEMSIZE.get(collective.dtype, 0))

    def _add_sizes(self, collective: Collective, chain: list[int]) -> None:
        """Size from the shapes of arguments: NCCL's annotation has what is sent, c10d's call both ends."""
        elements, both_ends = 0, False
        for row in chain:
            dtype, sizes = self._buffer_sizes(row)
            collective.dtype = collective.dtype or dtype
            if collective.kind in _PARTIAL:
                elements = max([elements, *sizes])
                both_ends |= len(sizes) > 1
            elif sizes and not elements:
                elements = sizes[-1]
        if collective.kind == "all_gather" and not both_ends:
            elements *= len(collective.ranks) or self.world
        collective.nbytes = sent_bytes(elements, ITEMSIZE.get(collective.dtype, 0))

    def _buffer_sizes(self, row: int) -> tuple[str, list[int]]:
        """Dtype, if known, and elements of each argument of a row that is a tensor or a list of tensors."""
        arguments, source = self.ops.detail, int(self.ops.source[row])
        assert isinstance(arguments, Arguments)
        key = int(arguments.signature[source])
        if key not in self._buffers:
            tensors = [list(tensors_in(value)) for value in values(decoded(arguments.signatures[key]))]
            dtype = next((t.dtype for group in tensors for t in group if t.itemsize), "")
            self._buffers[key] = dtype, [sum(t.numel for t in group) for group in tensors if group]
        return self._buffers[key]


def _ranks(text: str) -> tuple[int, ...]:
    items = text.strip("[]() ").split(",")
    return tuple(int(item) for item in items) if all(item.strip().isdecimal() for item in items) else ()
