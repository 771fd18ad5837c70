"""Traces of AMD's rocprofv3 (``--output-format json``): kernels, copies, HIP calls and ROCTx ranges.

Its records become the events of a PyTorch profiler trace, from which the graph is built.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretrace.files import read_json_chunks
from foretrace.formats.kineto.columns import Columns
from foretrace.formats.kineto.decode import Args, Event, Head
from foretrace.formats.kineto.events import json_or_error
from foretrace.formats.kineto.processes import as_ranks
from foretrace.formats.kineto.read import graph_of_columns
from foretrace.graph import ForetraceError, Graph

TOOL = "rocprofiler-sdk-tool"
"""Key of the list of processes."""
_NAMES = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name", "truncated_kernel_name")


def read_rocprof(path: Path) -> list[Graph]:
    """The graph of each process in a trace that ran kernels."""
    loaded = json_or_error(path, b"".join(read_json_chunks(path)))
    listed = loaded.get(TOOL) if isinstance(loaded, dict) else None
    processes = [_Process(one) for one in (listed if isinstance(listed, list) else [listed]) if isinstance(one, dict)]
    shown = [process for process in processes if process.records("kernel_dispatch")] or processes[:1]
    found = []
    for process in shown:
        columns = Columns.of(list(process.events()), str(path))
        if columns.ops.count or columns.calls.count or columns.device.count:
            found.append(graph_of_columns(path, columns, Head([], None, process.devices(), None)))
    if not found:
        raise ForetraceError(
            f"{path} holds no kernels or calls", "Trace with rocprofv3 --sys-trace --output-format json."
        )
    if len(processes) > len(found):
        found[0].notes.append(f"the trace has {len(processes)} processes: those with kernels are shown")
    return as_ranks(found)


class _Process:
    """The records of one process."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        symbols = _dicts(data.get("kernel_symbols"))
        self.kernels = {_whole(s, "kernel_id"): next((str(s[n]) for n in _NAMES if s.get(n)), "") for s in symbols}
        strings = data.get("strings")
        strings = strings if isinstance(strings, dict) else {}
        self.operations = [
            [str(name) for name in one["operations"]] if isinstance(one.get("operations"), list) else []
            for one in _dicts(strings.get("buffer_records"))
        ]
        self.markers = {_whole(one, "key"): str(one.get("value", "")) for one in _dicts(strings.get("marker_api"))}

    def records(self, kind: str) -> list[dict[str, Any]]:
        records = self.data.get("buffer_records")
        return _dicts(records.get(kind)) if isinstance(records, dict) else []

    def events(self) -> Iterator[Event]:
        """All records."""
        for record in self.records("kernel_dispatch"):
            info = record.get("dispatch_info")
            info = info if isinstance(info, dict) else {}
            grid, block = _sizes(info.get("grid_size")), _sizes(info.get("workgroup_size"))
            # The grid counts work-items.
            blocks = tuple(-(-items // size) if size else 0 for items, size in zip(grid, block))
            args = Args(
                device=_handle(info.get("agent_id")),
                stream=_handle(record.get("stream_id")) or _handle(info.get("queue_id")),
                correlation=_correlation(record),
                grid=blocks,
                block=block,
            )
            yield _event(record, "kernel", self.kernels.get(_whole(info, "kernel_id")) or "unknown kernel", args)
        for record in self.records("memory_copy"):
            args = Args(
                device=_handle(record.get("dst_agent_id")), stream=_handle(record.get("stream_id")),
                correlation=_correlation(record), nbytes=_whole(record, "bytes"),
            )  # fmt: skip
            yield _event(record, "gpu_memcpy", f"Memcpy ({self._operation(record)})", args)
        for record in self.records("hip_api"):
            yield _event(record, "hip_runtime", self._operation(record), Args(correlation=_correlation(record)))
        for record in self.records("marker_api"):
            name = self.markers.get(_correlation(record)) or self._operation(record)
            if _whole(record, "end_timestamp") > _whole(record, "start_timestamp"):
                yield _event(record, "cpu_op" if "::" in name else "user_annotation", name, Args())

    def _operation(self, record: dict[str, Any]) -> str:
        kind, number = _whole(record, "kind"), _whole(record, "operation")
        known = self.operations[kind] if 0 <= kind < len(self.operations) else []
        return known[number] if 0 <= number < len(known) else "unknown call"

    def devices(self) -> list[dict[str, Any]]:
        """Names of the devices, by the numbers that kernels give them."""
        agents = _dicts(self.data.get("agents"))
        return [
            {"id": _handle(agent.get("id")), "name": str(agent.get("product_name") or agent.get("name") or "")}
            for agent in agents
        ]


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _whole(record: dict[str, Any], name: str) -> int:
    value = record.get(name)
    return value if isinstance(value, int) and abs(value) < 2**62 else 0


def _handle(value: Any) -> int:
    """An id: a number, or an object with one."""
    return _whole(value, "handle") if isinstance(value, dict) else _whole({"id": value}, "id")


def _correlation(record: dict[str, Any]) -> int:
    found = record.get("correlation_id")
    return _whole(found, "internal") if isinstance(found, dict) else _whole(record, "correlation_id")


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(_whole(value, axis) for axis in "xyz") if isinstance(value, dict) else (0, 0, 0)


def _event(record: dict[str, Any], category: str, name: str, args: Args) -> Event:
    start, end = _whole(record, "start_timestamp"), _whole(record, "end_timestamp")
    return Event("X", category, name, 0, _whole(record, "thread_id"), start / 1e3, (end - start) / 1e3, args)
