"""One calibration at a time in a folder: two would measure each other, and the same cases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foretrace.graph import ForetraceError

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from doing the same in a folder meanwhile; it is made where there is none.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> with alone_in(folder), alone_in(folder):
    ...     pass
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: ...
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise ForetraceError(
            f"another calibration is at work in {folder}", "Wait until it is done, or give another --out folder."
        ) from None
    except OSError:  # some file systems have no locks
        pass
    try:
        yield
    finally:
        os.close(held)
