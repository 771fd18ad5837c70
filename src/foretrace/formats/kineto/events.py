"""Reading the events of a profiler trace in chunks, decoded on all cores, so that memory stays small.

A trace of a few hundred megabytes is one JSON array of small objects. It is split between two objects every 16 MB, and
each chunk becomes columns before the next one is read. Inside a JSON string a quote is always escaped, so ``{"ph"``
can only be the start of an object.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from itertools import chain, cycle
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from foretrace.files import gc_paused, read_json_chunks
from foretrace.formats.kineto.columns import Columns
from foretrace.formats.kineto.decode import Head, UndecodableError, decode_events, decode_head, lenient_head
from foretrace.graph import ForetraceError

if TYPE_CHECKING:
    from foretrace.formats.workers import Worker

CHUNK = 16 << 20
SERIAL_CHUNKS = 3
"""Chunks that are decoded in this process: to start others, and to send them bytes and columns, takes as long as to
decode two chunks."""
MAX_EVENT_BYTES = 512 << 20
"""How much is held in memory to find the end of an event."""
_START = b'{"traceEvents":['
"""The start of every chunk, as if it were a trace of its own."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*"((?:[^"\\]|\\.)*)"')
_MAX_GAP = 256
"""Bytes of white space between two events, or around a key."""
_NEAR = 1 << 16
"""Bytes in which an event ends, unless it is a very large one."""


def read_events(path: Path) -> tuple[Columns, Head]:
    """The events of a trace as columns, and the trace's other fields."""
    with gc_paused():
        try:
            return _in_chunks(path)
        except UndecodableError:  # split at a place that only looked like the start of an event, or invalid JSON
            return _all_at_once(path)


class ParallelDecoder:
    """Decodes chunks of events and collects their columns in order: in this process, or on all cores if there are many.

    >>> with ParallelDecoder("trace.json") as decoder:
    ...     decoder.submit(bytearray(b'[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}]'))
    ...     decoder.finish().ops.count
    1
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._columns = Columns()
        self._waiting: list[bytearray] = []
        """The first chunks, until it is known whether there are so many that others should decode them."""
        self._alone = False
        self._workers: list[Worker[bytearray, Columns]] = []
        self._turns = iter(cycle(self._workers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._workers:
            worker.stop()

    def submit(self, chunk: bytearray) -> None:
        """Decode a JSON array of events, now or later."""
        self._waiting.append(chunk)
        if len(self._waiting) > SERIAL_CHUNKS and not (self._workers or self._alone):
            self._start_workers()
        if self._workers or self._alone:
            self._hand_out()

    def _hand_out(self) -> None:
        """Decode the chunks that wait, here or by others."""
        waiting, self._waiting = self._waiting, []
        for chunk in waiting:
            if not self._workers:
                self._columns.append(self._decoded(chunk))
                continue
            worker = next(self._turns)
            self._collect(worker)
            worker.submit(chunk)

    def _start_workers(self) -> None:
        from foretrace.formats.workers import Worker, usable_cores

        if (cores := usable_cores()) > 1:
            self._workers = [Worker(self._decoded) for _ in range(cores)]
            self._turns = iter(cycle(self._workers))
        self._alone = not self._workers

    def finish(self) -> Columns:
        """The columns of all chunks."""
        self._hand_out()
        for _ in self._workers:
            self._collect(next(self._turns))
        return self._columns

    def _collect(self, worker: Worker[bytearray, Columns]) -> None:
        if columns := worker.result():
            self._columns.append(columns)

    def _decoded(self, chunk: bytearray) -> Columns:
        return Columns.of(decode_events(chunk), self._source)


def _in_chunks(path: Path) -> tuple[Columns, Head]:
    stream = read_json_chunks(path)
    opening, rest = _opening(path, stream)
    boundary = _boundary(rest)
    read = len(opening)
    chunk = bytearray(_START)
    with ParallelDecoder(str(path)) as decoder:
        for piece in chain([rest], stream):
            read += len(piece)
            chunk += piece
            if len(chunk) >= CHUNK and (cut := _last(boundary, chunk, len(chunk) - len(piece))):
                after = chunk[cut.end() :]
                del chunk[cut.start() + 1 :]
                chunk += b"]"
                decoder.submit(_only_events(chunk))
                chunk = bytearray(_START) + after
            elif len(chunk) > MAX_EVENT_BYTES:
                raise ForetraceError(
                    f"{path} has over {MAX_EVENT_BYTES >> 20} MB with no end of an event, which no profiler writes",
                    "Nothing more was read. Check where the file comes from.",
                )
        columns = decoder.finish()
    try:
        head = _ending(opening, chunk)
    except UndecodableError as error:
        if error.cut:
            raise _truncated(path, read) from None
        raise
    columns.append(Columns.of(head.traceEvents, str(path)))
    return columns, head


def _opening(path: Path, stream: Iterator[bytes]) -> tuple[bytes, bytes]:
    """What comes before the first event, and what was read beyond it."""
    read = next(stream)
    if read.startswith(b"["):
        return b"[", read[1:]
    searched = 0
    while not (found := _ARRAY.search(read, searched)):
        searched = max(0, len(read) - _MAX_GAP)
        if not (piece := next(stream, b"")):
            json_or_error(path, read)
            raise not_kineto(path)
        read += piece
    return read[: found.end()], read[found.end() :]


def _boundary(events: bytes) -> re.Pattern[bytes]:
    """Where one event ends and the next one starts: at the key that events of this trace start with."""
    key = _FIRST_KEY.match(events)
    return re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|%b)")' % re.escape(key[1] if key else b"ph"))


def _last(pattern: re.Pattern[bytes], text: bytearray, start: int) -> re.Match[bytes] | None:
    """The last match from ``start`` on, searched near the end first."""
    for begin in (max(start, len(text) - _NEAR), start):
        if found := deque(pattern.finditer(text, max(0, begin - _MAX_GAP)), maxlen=1):
            return found[0]
    return None


def _only_events(chunk: bytearray) -> bytearray:
    del chunk[: len(_START) - 1]
    return chunk


def _ending(opening: bytes, chunk: bytearray) -> Head:
    if opening == b"[":
        return Head(decode_events(_closed(_only_events(chunk))))
    return decode_head(chunk).or_else(decode_head(opening + b"]}"))


def _closed(text: bytes | bytearray) -> bytes | bytearray:
    """An array of events with its last bracket, which may be missing in Chrome's format."""
    ends = text.startswith(b"[") and text[-_MAX_GAP:].rstrip(b", \t\r\n").endswith(b"}")
    return text.rstrip(b", \t\r\n") + b"]" if ends else text


def _all_at_once(path: Path) -> tuple[Columns, Head]:
    loaded = json_or_error(path, b"".join(read_json_chunks(path)))
    if isinstance(loaded, list):
        loaded = {"traceEvents": loaded}
    try:
        head = lenient_head(loaded)
    except UndecodableError:
        raise not_kineto(path) from None
    return Columns.of(head.traceEvents, str(path)), head


def json_or_error(path: Path, text: bytes) -> object:
    """JSON as the standard library reads it, with NaN and control characters; an error names the byte of the damage."""
    try:
        return json.loads(_closed(text).decode(errors="replace"), strict=False)
    except json.JSONDecodeError as error:
        if error.pos >= len(text) - 1 or error.msg.startswith("Unterminated"):
            raise _truncated(path, len(text)) from None
        what = f"{path} is not valid JSON (byte {error.pos:,}: {error.msg})"
    except (ValueError, RecursionError) as error:
        what = f"{path} is not valid JSON ({error})"
    raise ForetraceError(what, "Export or copy it again.")


def not_kineto(path: Path) -> ForetraceError:
    """The error for JSON that is not a profiler trace."""
    return ForetraceError(
        f'{path} is JSON, but no PyTorch profiler trace (it has no "traceEvents")',
        "Give a trace that torch.profiler exported, an execution trace or a Chakra trace.",
    )


def _truncated(path: Path, byte: int) -> ForetraceError:
    return ForetraceError(
        f"{path} ends in the middle of an event (byte {byte:,})",
        "The profiler was probably killed while writing: record this rank again, or leave it out.",
    )
