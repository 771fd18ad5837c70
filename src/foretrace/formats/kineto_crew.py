"""Chunks of a trace turned into columns: here while they are few, on all cores once there are many."""

from __future__ import annotations

from itertools import cycle
from types import TracebackType
from typing import Self

from foretrace.formats.hands import Hand, usable_cores
from foretrace.formats.kineto_columns import Columns
from foretrace.formats.kineto_decode import decode_events

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
