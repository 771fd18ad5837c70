"""Writing measured jobs as timelines for Perfetto and chrome://tracing, which are also valid profiler traces."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import msgspec
import numpy as np

from foretrace.formats.values import CPP_NAMES
from foretrace.graph import Collective, ForetraceError, Graph, Job, Op, Tensor, Value, tensors_in
from foretrace.graph.op import ITEMSIZE
from foretrace.graph.tables import ANNOTATION, CALL, COLLECTIVE, COMPUTE, COPY, MODULE, NODE, SET
from foretrace.output import TIMELINE, open_output

OP_CATEGORIES = {CALL: "cpu_op", NODE: "cpu_op", ANNOTATION: "user_annotation", MODULE: "python_function"}
KERNEL_CATEGORIES = {COMPUTE: "kernel", COLLECTIVE: "kernel", COPY: "gpu_memcpy", SET: "gpu_memset"}
FIRST_STREAM = 1_000_000
"""Track number of stream 0: streams are tracks next to threads, above the numbers of threads."""

_BATCH = 4096
"""Events encoded before they are written."""

Event: TypeAlias = dict[str, Any]


def write_perfetto(job: Job, path: Path | str) -> None:
    """Write a measured job as one timeline: ranks are processes, threads and streams their tracks.

    Ops, runtime calls and kernels are slices, with arrows from each launch to its kernel. The file is gzipped if its
    name ends in ``.gz``, and is complete or absent.

    >>> import json, tempfile
    >>> from foretrace.graph import OpTable
    >>> measured = Graph(OpTable.of([Op("aten::mm", start_us=0.0, end_us=2.5)]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_perfetto(Job([measured]), Path(folder) / "trace.json")
    ...     events = json.loads((Path(folder) / "trace.json").read_text())["traceEvents"]
    >>> [(event["name"], event["dur"]) for event in events if event["ph"] == "X"]
    [('aten::mm', 2.5)]
    """
    path = Path(path)
    firsts = [_first(graph) for graph in job.graphs]
    if all(math.isnan(first) for first in firsts):
        raise ForetraceError(
            f"{job.source or 'the job'} has no times to show", "Bring a profiler trace, or record the job."
        )
    zero_ns = min(g.origin_ns + int(first) * 1000 for g, first in zip(job.graphs, firsts) if not math.isnan(first))
    with open_output(path, TIMELINE) as file, ExitStack() as stack:
        out = file
        if path.suffix == ".gz":
            out = cast(Any, stack.enter_context(gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0)))
        out.write(msgspec.json.encode(_head(job, zero_ns))[:-1] + b',"traceEvents":[\n')
        _write_events(out, (event for graph in job.graphs for event in _Rank(graph, zero_ns).events()))
        out.write(b"\n]}\n")


def _first(graph: Graph) -> float:
    starts = np.concatenate([graph.ops.start, graph.calls.start, graph.kernels.start])
    starts = starts[~np.isnan(starts)]
    return math.floor(starts.min()) if len(starts) else math.nan


def _head(job: Job, zero_ns: int) -> dict[str, Any]:
    head: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": zero_ns}
    devices = [{"id": i, "name": name} for i, name in enumerate(dict.fromkeys(g.device for g in job.graphs)) if name]
    head["deviceProperties"] = devices
    if len(job.graphs) == 1:
        (graph,) = job.graphs
        groups = [{"pg_name": name, "ranks": ranks} for name, ranks in graph.groups.items()]
        head["distributedInfo"] = {"rank": graph.rank, "world_size": graph.world, "pg_config": groups}
    return head


def _write_events(out: IO[bytes], events: Iterator[Event]) -> None:
    batch: list[bytes] = []
    separator = b""
    for event in events:
        batch.append(msgspec.json.encode(event))
        if len(batch) == _BATCH:
            out.write(separator + b",\n".join(batch))
            batch, separator = [], b",\n"
    if batch:
        out.write(separator + b",\n".join(batch))


class _Rank:
    """The events of one rank."""

    def __init__(self, graph: Graph, zero_ns: int) -> None:
        self.graph = graph
        self.shift = (graph.origin_ns - zero_ns) / 1000
        self.collectives = {c.kernel: c for c in graph.collectives if c.kernel >= 0}

    def events(self) -> Iterator[Event]:
        yield from self._tracks()
        yield from self._ops()
        yield from self._calls()
        yield from self._kernels()

    def _tracks(self) -> Iterator[Event]:
        graph = self.graph
        name = f"rank {graph.rank}" + (f" ({graph.device})" if graph.device else "")
        yield self._track("process_name", 0, name=name)
        yield self._track("process_sort_index", 0, sort_index=graph.rank)
        for thread in np.unique(np.concatenate([graph.ops.thread, graph.calls.thread])).tolist():
            yield self._track("thread_name", thread, name=f"thread {thread}")
        for stream in np.unique(graph.kernels.stream).tolist():
            yield self._track("thread_name", FIRST_STREAM + stream, name=f"stream {stream}")
            yield self._track("thread_sort_index", FIRST_STREAM + stream, sort_index=FIRST_STREAM + stream)

    def _track(self, what: str, track: int, **args: Any) -> Event:
        return {"ph": "M", "name": what, "pid": self.graph.rank, "tid": track, "ts": 0, "args": args}

    def _slice(self, category: str, name: str, track: int, start: float, end: float, args: dict[str, Any]) -> Event:
        return {
            "ph": "X", "cat": category, "name": name, "pid": self.graph.rank, "tid": track,
            "ts": start + self.shift, "dur": end - start, "args": args,
        }  # fmt: skip

    def _ops(self) -> Iterator[Event]:
        ops = self.graph.ops
        for row in np.flatnonzero(~np.isnan(ops.start)).tolist():
            op = ops[row]
            args: dict[str, Any] = {"External id": row + 1, "phase": op.phase}
            if ops.record is not None and ops.record[row] >= 0:
                args["Record function id"] = int(ops.record[row])
            if op.module:
                args["module"] = op.module
            if op.args or op.kwargs:
                args |= _arguments(op)
            yield self._slice(OP_CATEGORIES[int(ops.kind[row])], op.name, op.thread, op.start_us, op.end_us, args)

    def _calls(self) -> Iterator[Event]:
        calls = self.graph.calls
        for row, (start, end) in enumerate(zip(calls.start.tolist(), calls.end.tolist())):
            args = {"External id": int(calls.op[row]) + 1, "correlation": row + 1}
            yield self._slice("cuda_runtime", calls.names[calls.name[row]], int(calls.thread[row]), start, end, args)

    def _kernels(self) -> Iterator[Event]:
        kernels = self.graph.kernels
        for row, (start, end) in enumerate(zip(kernels.start.tolist(), kernels.end.tolist())):
            stream, call = int(kernels.stream[row]), int(kernels.call[row])
            args: dict[str, Any] = {"device": 0, "stream": stream, "correlation": call + 1}
            sizes = {"bytes": kernels.nbytes[row], "grid": kernels.grid[row], "block": kernels.block[row]}
            for name, size in sizes.items():
                if size:
                    args[name] = int(size) if name == "bytes" else [int(size), 1, 1]
            if row in self.collectives:
                args |= _collective(self.collectives[row])
            category, name = KERNEL_CATEGORIES[int(kernels.kind[row])], kernels.names[kernels.name[row]]
            yield self._slice(category, name, FIRST_STREAM + stream, start, end, args)
            if call >= 0:
                yield from self._arrow(row, call, FIRST_STREAM + stream, start)

    def _arrow(self, kernel: int, call: int, track: int, at: float) -> Iterator[Event]:
        calls = self.graph.calls
        arrow = {"cat": "ac2g", "name": "ac2g", "pid": self.graph.rank, "id": self.graph.rank << 32 | kernel}
        launch = {"tid": int(calls.thread[call]), "ts": float(calls.start[call]) + self.shift}
        yield {"ph": "s", **arrow, **launch}
        yield {"ph": "f", "bp": "e", **arrow, "tid": track, "ts": at + self.shift}


def _arguments(op: Op) -> dict[str, Any]:
    """Shapes, types and values as the profiler writes them."""
    values = [*op.args, *op.kwargs.values()]
    arguments = {
        "Input Dims": [_each(value, lambda t: t.shape) for value in values],
        "Input type": [_kind(value) for value in values],
        "Concrete Inputs": ["" if value is None or any(tensors_in(value)) else str(value) for value in values],
    }
    if any(tensor.stride is not None for tensor in op.tensors):
        arguments["Input Strides"] = [_each(value, lambda t: t.stride or ()) for value in values]
    return arguments


def _each(value: Value, get: Callable[[Tensor], Any]) -> Any:
    """An attribute of a tensor, or of each tensor of a list; an empty list for other values."""
    return get(value) if isinstance(value, Tensor) else [get(tensor) for tensor in tensors_in(value)]


def _kind(value: Value) -> Any:
    if isinstance(value, Tensor) or any(tensors_in(value)):
        return _each(value, lambda tensor: CPP_NAMES.get(tensor.dtype, tensor.dtype))
    return "" if value is None else "ScalarList" if isinstance(value, list) else "Scalar"


def _collective(collective: Collective) -> dict[str, Any]:
    elements = collective.nbytes // ITEMSIZE.get(collective.dtype, 1)
    return {
        "Collective name": collective.kind,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": CPP_NAMES.get(collective.dtype, collective.dtype),
        "Process Group Name": collective.group,
        "Process Group Ranks": str(list(collective.ranks)),
        "Group size": len(collective.ranks),
    }
