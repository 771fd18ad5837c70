"""Nsight Systems reports, exported as SQLite (``nsys export --type sqlite``): kernels, CUDA calls and NVTX ranges.

Its records become the events of a PyTorch profiler trace, from which the graph is built.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from foretrace.files import GZIP_MAGIC, open_input, read_chunks
from foretrace.formats.kineto.columns import Columns
from foretrace.formats.kineto.decode import Args, Event, Head
from foretrace.formats.kineto.processes import as_ranks
from foretrace.formats.kineto.read import graph_of_columns
from foretrace.graph import ForetraceError, Graph

_DEVICE = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "gpu_memcpy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "gpu_memset",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "kernel",
}
_RUNTIME, _NVTX = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_NESTED = (59, 70)
"""Types of NVTX events that are pushed and popped, and so nest in their thread."""
_PID_BITS = 24
"""Bits of a thread's number in a global id; those of the process come above it."""
_VERSION = re.compile(r"_v\d+$")
_EMITTED = re.compile(r",\s*(seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
"""What ``torch.autograd.profiler.emit_nvtx`` writes after the name of an op."""
_STEP = re.compile(r"(?:train(?:ing)?[ _-]?)?(?:step|iteration|iter)[ _#:=-]*(\d{1,9})$", re.IGNORECASE)
"""Names of NVTX ranges that are steps: ``step 3``, ``iteration_3``, ``train_step:3``."""
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""CUPTI's numbers of the directions of copies."""


def read_nsight(path: Path) -> list[Graph]:
    """The graph of each process in a report that launches work: NVTX ranges are its ops and annotations."""
    with open_input(path) as file:
        packed = file.read(2) == GZIP_MAGIC
    try:
        if not packed:
            return _read(path, path)
        with tempfile.NamedTemporaryFile(suffix=".sqlite") as unpacked:
            for chunk in read_chunks(path):
                unpacked.write(chunk)
            unpacked.flush()
            return _read(path, Path(unpacked.name))
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise ForetraceError(f"{path} can't be read as an SQLite file ({error})", "Export it again.") from None


def _read(path: Path, database: Path) -> list[Graph]:
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.row_factory = sqlite3.Row
        connection.text_factory = lambda text: text.decode(errors="replace")
        report = _Report(connection)
        if not report.tables.intersection((*_DEVICE, _RUNTIME)):
            raise ForetraceError(
                f"{path} is an SQLite file without CUDA events of Nsight Systems",
                "Export a report that was taken with --trace=cuda,nvtx: nsys export --type sqlite. Of rocprofv3, give "
                "what --output-format json writes.",
            )
        found = []
        for process in report.shown:
            columns = Columns.of(list(report.events(process)), str(path))
            if columns.ops.count or columns.calls.count or columns.device.count:
                found.append(graph_of_columns(path, columns, Head([], None, report.devices(), report.start_ns())))
        if not found:
            raise ForetraceError(f"{path} holds no events", "Profile at least one step and export the report again.")
        found[0].notes += report.notes
        return as_ranks(found)


class _Report:
    """The tables of a report; some are absent where nothing was recorded."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        self.strings = {_field(row, "id"): str(_field(row, "value")) for row in self.rows("StringIds")}
        self.notes: list[str] = []
        device = sum(map(self._events_by_process, _DEVICE), Counter[int]())
        work = device + self._events_by_process(_RUNTIME)
        launching = sorted(pid for pid in device if work[pid] > device[pid])
        self.shown = launching if len(launching) > 1 else [pid for pid, _ in work.most_common(1)]
        """Processes that are read: all that launch work, or else the busiest."""
        if len(work) > len(self.shown):
            shown = "those that launch work are" if len(self.shown) > 1 else "the one with most events is"
            self.notes.append(f"the report has {len(work)} processes: {shown} shown")

    def rows(self, table: str, process: int | None = None) -> Iterator[sqlite3.Row]:
        """The records of a table, of one process or of all."""
        if table not in self.tables:
            return iter(())
        if process is None:
            return self.connection.execute(f"SELECT * FROM {table}")
        whose = self._process(table)
        return self.connection.execute(f"SELECT * FROM {table} WHERE {whose} = ?", (process,)) if whose else iter(())

    def _process(self, table: str) -> str:
        """The process of a record in SQL, from the global id of the process or of a thread in it; empty for none."""
        columns = {row[1] for row in self.connection.execute(f"PRAGMA table_info({table})")}
        ids = [f"nullif({name}, 0)" for name in ("globalPid", "globalTid") if name in columns]
        return f"coalesce({', '.join(ids)}, 0) >> {_PID_BITS}" if ids else ""

    def _events_by_process(self, table: str) -> Counter[int]:
        if table not in self.tables or not (whose := self._process(table)):
            return Counter()
        return Counter(dict(self.connection.execute(f"SELECT {whose}, count(*) FROM {table} GROUP BY 1")))

    def events(self, process: int) -> Iterator[Event]:
        """All records of a process."""
        for table, category in _DEVICE.items():
            for row in self.rows(table, process):
                if _whole(row, "end") is not None:
                    yield self._event(row, category, self._device_name(row, table), _device_args(row))
        for row in self.rows(_RUNTIME, process):
            name = _VERSION.sub("", self.strings.get(_field(row, "nameId"), "unknown call"))
            yield self._event(row, "cuda_runtime", name, Args(correlation=_whole(row, "correlationId") or 0))
        ranges = [self._event(row, *self._range(row), Args()) for row in self.rows(_NVTX, process) if _nests(row)]
        _mark_steps(ranges)
        yield from ranges

    def _range(self, row: sqlite3.Row) -> tuple[str, str]:
        """Category and name of an NVTX range."""
        text = _field(row, "text") or self.strings.get(_field(row, "textId"), "")
        name = _EMITTED.sub("", str(text))
        return "cpu_op" if "::" in name else "user_annotation", name

    def _event(self, row: sqlite3.Row, category: str, name: str, args: Args) -> Event:
        start, end = _whole(row, "start") or 0, _whole(row, "end") or 0
        thread = (_whole(row, "globalTid") or 0) % (1 << _PID_BITS)
        return Event("X", category, name, 0, thread, start / 1e3, (end - start) / 1e3, args)

    def _device_name(self, row: sqlite3.Row, table: str) -> str:
        if table.endswith("MEMCPY"):
            return f"Memcpy {_COPIES.get(_whole(row, 'copyKind') or 0, '')}".rstrip()
        if table.endswith("MEMSET"):
            return "Memset (Device)"
        if table.endswith("GRAPH_TRACE"):
            return "CUDA graph"
        names = (self.strings.get(_field(row, column)) for column in ("demangledName", "shortName", "mangledName"))
        return next((name for name in names if name), "unknown kernel")

    def devices(self) -> list[dict[str, Any]]:
        """Names of the devices, by the numbers that kernels give them."""
        names = {_field(row, "id"): str(_field(row, "name")) for row in self.rows("TARGET_INFO_GPU")}
        numbers = {_field(row, "cudaId"): _field(row, "gpuId") for row in self.rows("TARGET_INFO_CUDA_DEVICE")}
        return [{"id": number, "name": names.get(numbers.get(number, number), "")} for number in {*names, *numbers}]

    def start_ns(self) -> int:
        """Wall-clock time of time zero; 0 where unknown."""
        return next((_whole(row, "utcEpochNs") or 0 for row in self.rows("TARGET_INFO_SESSION_START_TIME")), 0)


def _nests(row: sqlite3.Row) -> bool:
    return _field(row, "eventType") in (None, *_NESTED) and _whole(row, "end") is not None


def _mark_steps(ranges: list[Event]) -> None:
    """Name step marks as the profiler does: ranges called like steps, on the thread of the first, and in no other one.

    They keep their numbers, unless one comes twice.
    """
    marks: list[tuple[Event, int]] = []
    named = [(event, int(said[1])) for event in ranges if (said := _STEP.fullmatch(event.name))]
    for event, number in sorted(named, key=lambda each: each[0].ts):
        if not marks or _follows(event, marks[-1][0]):
            marks.append((event, number))
    again = len({number for _, number in marks}) < len(marks)
    for place, (event, number) in enumerate(marks):
        event.name = f"ProfilerStep#{place if again else number}"


def _follows(event: Event, before: Event) -> bool:
    return event.tid == before.tid and event.ts >= before.ts + before.dur


def _field(row: sqlite3.Row, name: str) -> Any:
    try:
        return row[name]
    except IndexError:  # this version of Nsight Systems writes no such column
        return None


def _whole(row: sqlite3.Row, name: str) -> int | None:
    value = _field(row, name)
    return value if isinstance(value, int) else None


def _device_args(row: sqlite3.Row) -> Args:
    sizes = [tuple(_whole(row, f"{what}{axis}") or 0 for axis in "XYZ") for what in ("grid", "block")]
    return Args(
        device=_whole(row, "deviceId") or 0,
        stream=_whole(row, "streamId") or 0,
        correlation=_whole(row, "correlationId") or 0,
        nbytes=_whole(row, "bytes") or 0,
        grid=sizes[0],
        block=sizes[1],
    )
