"""A profiler trace read in chunks, so that memory stays small however long it is.

A trace of a few hundred megabytes is one JSON array of small objects. It is cut between two objects every 16 MB, and
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
from typing import Self

from foretrace.files import gc_paused, read_json_chunks
from foretrace.formats.kineto.columns import Columns
from foretrace.formats.kineto.decode import Head, UndecodableError, decode_events, decode_head, lenient_head
from foretrace.formats.workers import Hand, usable_cores
from foretrace.graph import ForetraceError

CHUNK = 16 << 20
LONGEST = 512 << 20
"""How much is held in memory to find the end of an event."""
_START = b'{"traceEvents":['
"""What every chunk starts with, as if it were a trace of its own."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*"((?:[^"\\]|\\.)*)"')
_LONGEST_GAP = 256
"""Bytes that the white space between two events, or in a key we look for, may take."""
_NEAR = 1 << 16
"""Bytes in which an event ends, unless it is a very large one."""


def read_events(path: Path) -> tuple[Columns, Head]:
    """The events of a trace as columns, and what else the trace says."""
    with gc_paused():
        try:
            return _in_chunks(path)
        except UndecodableError:  # cut at a place that only looked like the start of an event, or no JSON at all
            return _all_at_once(path)


def _in_chunks(path: Path) -> tuple[Columns, Head]:
    stream = read_json_chunks(path)
    opening, rest = _opening(path, stream)
    boundary = _boundary(rest)
    read = len(opening)
    chunk = bytearray(_START)
    with Crew(str(path)) as crew:
        for piece in chain([rest], stream):
            read += len(piece)
            chunk += piece
            if len(chunk) >= CHUNK and (cut := _last(boundary, chunk, len(chunk) - len(piece))):
                after = chunk[cut.end() :]
                del chunk[cut.start() + 1 :]
                chunk += b"]"
                crew.take(_only_events(chunk))
                chunk = bytearray(_START) + after
            elif len(chunk) > LONGEST:
                raise ForetraceError(
                    f"{path} has over {LONGEST >> 20} MB with no end of an event, which no profiler writes",
                    "Nothing more was read. Check where the file comes from.",
                )
        columns = crew.finish()
    try:
        head = _ending(opening, chunk)
    except UndecodableError as error:
        if error.cut:
            raise _cut_short(path, read) from None
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
        searched = max(0, len(read) - _LONGEST_GAP)
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
    """The last place from ``start`` on, looked for near the end first."""
    for begin in (max(start, len(text) - _NEAR), start):
        if found := deque(pattern.finditer(text, max(0, begin - _LONGEST_GAP)), maxlen=1):
            return found[0]
    return None


def _only_events(chunk: bytearray) -> bytearray:
    del chunk[: len(_START) - 1]
    return chunk


def _ending(opening: bytes, chunk: bytearray) -> Head:
    if opening == b"[":
        return Head(decode_events(_only_events(chunk)))
    return decode_head(chunk).or_else(decode_head(opening + b"]}"))


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
    """JSON as the standard library reads it, with NaN and control characters; an error says at which byte it breaks."""
    try:
        return json.loads(text.decode(errors="replace"), strict=False)
    except json.JSONDecodeError as error:
        if error.pos >= len(text) - 1 or error.msg.startswith("Unterminated"):
            raise _cut_short(path, len(text)) from None
        what = f"{path} is not valid JSON (byte {error.pos:,}: {error.msg})"
    except (ValueError, RecursionError) as error:
        what = f"{path} is not valid JSON ({error})"
    raise ForetraceError(what, "Export or copy it again.")


def not_kineto(path: Path) -> ForetraceError:
    """What to tell about JSON that is no profiler trace."""
    return ForetraceError(
        f'{path} is JSON, but no PyTorch profiler trace (it has no "traceEvents")',
        "Give a trace that torch.profiler exported, an execution trace or a Chakra trace.",
    )


def _cut_short(path: Path, byte: int) -> ForetraceError:
    return ForetraceError(
        f"{path} ends in the middle of an event (byte {byte:,})",
        "The profiler was probably killed while writing: record this rank again, or leave it out.",
    )


# --- was formats.kineto_crew: Chunks of a trace turned into columns: here while they are few, on all cores once there are many.

ALONE = 1
"""Chunks that are not worth another process."""


class Crew:
    """Decodes chunks and collects their columns in order.

    >>> with Crew("trace.json") as crew:
    ...     crew.take(bytearray(b'[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}]'))
    ...     crew.finish().ops.count
    1
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._columns = Columns()
        self._taken = 0
        self._hands: list[Hand[bytearray, Columns]] = []
        self._turns = iter(cycle(self._hands))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for hand in self._hands:
            hand.dismiss()

    def take(self, chunk: bytearray) -> None:
        """Decode a JSON array of events, now or soon."""
        self._taken += 1
        if self._taken == ALONE + 1 and usable_cores() > 1:
            self._hands = [Hand(self._decoded) for _ in range(usable_cores())]
            self._turns = iter(cycle(self._hands))
        if not self._hands:
            self._columns.append(self._decoded(chunk))
            return
        hand = next(self._turns)
        self._collect(hand)
        hand.give(chunk)

    def finish(self) -> Columns:
        """The columns of all chunks."""
        for _ in self._hands:
            self._collect(next(self._turns))
        return self._columns

    def _collect(self, hand: Hand[bytearray, Columns]) -> None:
        if columns := hand.result():
            self._columns.append(columns)

    def _decoded(self, chunk: bytearray) -> Columns:
        return Columns.of(decode_events(chunk), self._source)
