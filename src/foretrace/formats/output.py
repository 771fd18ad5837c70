"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from foretrace.graph import ForetraceError


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file to write, under another name until it is complete; folders around it are made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replaced(Path(folder) / "new" / "a.txt") as file:
    ...         _ = file.write(b"whole")
    ...     (Path(folder) / "new" / "a.txt").read_bytes(), len(list((Path(folder) / "new").iterdir()))
    (b'whole', 1)
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(path)
    except OSError as error:
        raise ForetraceError(
            f"{path} can't be written ({error.strerror or error})", "Name a place that can be written."
        ) from None
    finally:
        with suppress(OSError):
            unfinished.unlink()
