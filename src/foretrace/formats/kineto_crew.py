"""Chunks of a trace turned into columns: here while they are few, on all cores once there are many."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import cycle
from types import TracebackType
from typing import TYPE_CHECKING, Self

from foretrace.formats.kineto_columns import Columns
from foretrace.formats.kineto_decode import decode_events

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ALONE = 4
"""Chunks that are not worth another process."""
MOST = 4
"""More processes than this would wait for the one that unpacks and cuts the file."""
PATIENCE_S = 60.0
"""How long to wait for a chunk, which takes a tenth of a second."""


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
        self._hands: list[_Hand] = []
        self._turns = iter(cycle(self._hands))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for hand in self._hands:
            hand.dismiss()

    def take(self, chunk: bytearray) -> None:
        """Decode a JSON array of events, now or soon."""
        self._taken += 1
        if self._taken == ALONE + 1:
            self._hands = [_Hand(self._source) for _ in range(_spare_cores())]
            self._turns = iter(cycle(self._hands))
        if not self._hands:
            self._columns.append(_columns(chunk, self._source))
            return
        hand = next(self._turns)
        self._collect(hand)
        hand.give(chunk)

    def finish(self) -> Columns:
        """The columns of all chunks."""
        for _ in self._hands:
            self._collect(next(self._turns))
        return self._columns

    def _collect(self, hand: _Hand) -> None:
        if columns := hand.result():
            self._columns.append(columns)


class _Hand:
    """A process that decodes one chunk at a time. What it does not answer is decoded here."""

    def __init__(self, source: str) -> None:
        from multiprocessing import get_context  # only large traces pay for the import

        # A forked process starts at once, and unlike others never runs the caller's script again.
        fork = get_context("fork")
        self._line, theirs = fork.Pipe()
        self._process = fork.Process(target=_work, args=(theirs, source), daemon=True)
        self._process.start()
        theirs.close()
        self._source = source
        self._chunk: bytearray | None = None

    def give(self, chunk: bytearray) -> None:
        """Start on a chunk."""
        self._chunk = chunk
        with suppress(OSError):
            self._line.send_bytes(chunk)

    def result(self) -> Columns | None:
        """The columns of the chunk given last; None where there was none."""
        if self._chunk is None:
            return None
        chunk, self._chunk = self._chunk, None
        try:
            columns: Columns = self._line.recv() if self._line.poll(PATIENCE_S) else _columns(chunk, self._source)
        except (EOFError, OSError):  # it died, or met an error that we shall meet as well
            columns = _columns(chunk, self._source)
        return columns

    def dismiss(self) -> None:
        """Let it go."""
        self._line.close()
        self._process.terminate()
        self._process.join()


def _spare_cores() -> int:
    """Processes worth starting: none where there is one core, or where forking is not safe."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    return min(MOST, cores) if cores > 1 else 0


def _work(line: Connection, source: str) -> None:
    with suppress(BaseException):
        while True:
            line.send(_columns(line.recv_bytes(), source))


def _columns(chunk: bytes | bytearray, source: str) -> Columns:
    return Columns.of(decode_events(chunk), source)
