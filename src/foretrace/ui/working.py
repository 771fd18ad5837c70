"""What the server works on, one thing at a time, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock


class Working:
    """Traces are read and predicted one after the other: a large one takes all the memory there is room for.

    >>> working = Working()
    >>> with working.on("reading run") as told:
    ...     told("predicting run on h200")
    ...     working.stage
    'predicting run on h200'
    >>> working.stage
    ''
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.stage = ""
        """In words; nothing where nothing is done."""

    @contextmanager
    def on(self, stage: str) -> Iterator[Callable[[str], None]]:
        """Work that begins with this stage, once what others asked for is done; what it yields is told of the next."""
        with self._lock:
            self._tell(stage)
            try:
                yield self._tell
            finally:
                self._tell("")

    def _tell(self, stage: str) -> None:
        self.stage = stage
