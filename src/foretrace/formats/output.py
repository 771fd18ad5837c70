"""Files that Foretrace writes where users say: whole or not there, and never in the place of something else."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from foretrace.files import (
    GZIP_MAGIC,
    check_place,
    descriptor_of,
    kind_of_node,
    reason,
    written_whole,
)
from foretrace.graph import ForetraceError

BEGINNING = 64 << 10
"""Bytes of a file that say whether Foretrace wrote it."""
READER_WAIT_S = 30.0
"""How long a named pipe may have nobody who reads it."""
PAUSE_S = 0.05


@dataclass(frozen=True)
class Kind:
    """A kind of file that Foretrace writes, and how one that it wrote is recognised."""

    name: str
    example: str
    begins: re.Pattern[bytes]

    def wrote(self, path: Path) -> bool:
        """Whether a file is one that Foretrace wrote, or empty."""
        with path.open("rb") as file:
            start = file.read(BEGINNING)
        if start.startswith(GZIP_MAGIC):
            try:
                start = zlib.decompressobj(wbits=31).decompress(start, BEGINNING)
            except zlib.error:
                return False
        return not start or bool(self.begins.match(start))


PAGE = Kind(
    "a page", "page.html", re.compile(rb"<!doctype html>.*default-src 'none'.*\xe2\x80\x93 Foretrace</title>", re.S)
)
TIMELINE = Kind(
    "a timeline", "timeline.json", re.compile(rb'\{"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":')
)
PLAN = Kind("a sharding plan", "plan.json", re.compile(rb'\{\s*"version": \d+,\s*"world": \d+,\s*"batch": \d+,'))
CHAKRA = Kind("a Chakra trace", "chakra.0.et", re.compile(rb".{1,64}rank.{1,64}world.{1,4096}origin_ns", re.S))


def check_output(path: Path, kind: Kind) -> None:
    """Refuse a path where nothing can be written, or where something lies that Foretrace did not write.

    >>> check_output(Path("/"), PAGE)
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: / is a folder, and a page is a file. Name one: /page.html.
    """
    try:
        descriptor = descriptor_of(path)
        if descriptor is not None:
            os.fstat(descriptor)
            return
        there = path.stat()
    except FileNotFoundError:
        check_place(path)
        return
    except OSError as error:
        raise _unwritable(path, error) from None
    if stat.S_ISDIR(there.st_mode):
        raise ForetraceError(f"{path} is a folder, and {kind.name} is a file", f"Name one: {path / kind.example}.")
    if stat.S_ISREG(there.st_mode):
        _check_ours(path, kind)
    elif stat.S_ISBLK(there.st_mode) or stat.S_ISSOCK(there.st_mode):
        what = "a disk" if stat.S_ISBLK(there.st_mode) else kind_of_node(there.st_mode)
        raise ForetraceError(f"{path} is {what}, and {kind.name} is a file", f"Name one, like {kind.example}.")


def _check_ours(path: Path, kind: Kind) -> None:
    check_place(path)
    if not os.access(path, os.W_OK):
        raise ForetraceError(f"{path} is read-only", "Name another file, or let it be written to.")
    try:
        ours = kind.wrote(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    if not ours:
        raise ForetraceError(
            f"{path} is there already, and is not {kind.name} that Foretrace wrote",
            f"Name another file, or remove it first: {kind.name} would replace it.",
        )


def _unwritable(path: Path, error: OSError) -> ForetraceError:
    return ForetraceError(f"{path} can't be written ({reason(error)})", "Name a place that can be written.")


@contextmanager
def replaced(path: Path, kind: Kind) -> Iterator[BinaryIO]:
    """A file to write, under another name until it is complete; folders around it are made.

    Links are followed. What is no plain file (``/dev/null``, ``/dev/stdout``, a pipe) is written to, not replaced. What
    Foretrace did not write is left alone.

    Parameters
    ----------
    path
        Where to.
    kind
        What is written: a file of another kind is not replaced by it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replaced(Path(folder) / "new" / "page.html", PAGE) as file:
    ...         _ = file.write(b"whole")
    ...     (Path(folder) / "new" / "page.html").read_bytes(), len(list((Path(folder) / "new").iterdir()))
    (b'whole', 1)
    """
    check_output(path, kind)
    through = _writes_through(path)
    try:
        with _stream(path) if through else written_whole(path) as file:
            yield file
    except OSError as error:
        if through and isinstance(error, BrokenPipeError) and descriptor_of(path) == 1:
            raise  # who reads our output has left, as `head` does
        raise _unwritable(path, error) from None


def _writes_through(path: Path) -> bool:
    """Whether what is there must not be replaced, since it is no plain file."""
    return descriptor_of(path) is not None or (path.exists() and not path.is_file())


def _stream(path: Path) -> BinaryIO:
    """What is written to as it is: an open file of this process, a device, or a named pipe that somebody reads."""
    descriptor = descriptor_of(path)
    if descriptor is not None:
        sys.stdout.flush()  # what was printed before comes before
        return os.fdopen(os.dup(descriptor), "wb")
    until = time.monotonic() + READER_WAIT_S
    while True:
        try:
            opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > until:
                raise OSError(errno.ENXIO, "nobody reads this pipe") from None
            time.sleep(PAUSE_S)
    os.set_blocking(opened, True)
    return os.fdopen(opened, "wb")
