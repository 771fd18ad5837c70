"""Writing files and folders named by users: complete or not at all, and never over a file of another program."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from foretrace.errors import ForetraceError
from foretrace.files import GZIP_MAGIC, descriptor_of, special_file

HEADER_BYTES = 64 << 10
"""Bytes of a file in which Foretrace's own files are recognised."""
PIPE_READER_WAIT_S = 30.0
"""How long to wait until a named pipe has a reader."""
PIPE_POLL_S = 0.05
"""How often it is tried whether a pipe has a reader: too short to be noticed."""


@dataclass(frozen=True)
class OutputKind:
    """A kind of file that Foretrace writes, and how its own files are recognised."""

    name: str
    example: str
    header: re.Pattern[bytes]

    def wrote(self, path: Path) -> bool:
        """Whether a file is empty or was written by Foretrace."""
        with path.open("rb") as file:
            start = file.read(HEADER_BYTES)
        if start.startswith(GZIP_MAGIC):
            try:
                start = zlib.decompressobj(wbits=31).decompress(start, HEADER_BYTES)
            except zlib.error:
                return False
        return not start or bool(self.header.match(start))


PAGE = OutputKind(
    "a page", "page.html", re.compile(rb"<!doctype html>.*default-src 'none'.*\xe2\x80\x93 Foretrace</title>", re.S)
)
TIMELINE = OutputKind(
    "a timeline", "timeline.json", re.compile(rb'\{"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":')
)
PLAN = OutputKind("a sharding plan", "plan.json", re.compile(rb'\{\s*"version": \d+,\s*"world": \d+,\s*"batch": \d+,'))
SNAPSHOT = OutputKind("a memory snapshot", "memory.pickle", re.compile(rb"\x80\x04.{1,64}segments", re.S))
BASELINE = OutputKind("a baseline", "perf.json", re.compile(rb'\{\s*"format": "foretrace baseline"'))
MARKDOWN = OutputKind("a comment", "gate.md", re.compile(rb"<!-- foretrace gate -->"))
STACK = OutputKind("a stack", "stack.json", re.compile(rb'\{\s*"name": [^\n]*\s*"provenance": [^\n]*\s*"gemm": '))
CHAKRA = OutputKind("a Chakra trace", "chakra.0.et", re.compile(rb".{1,64}rank.{1,64}world.{1,4096}origin_ns", re.S))


def check_output(path: Path, kind: OutputKind) -> None:
    """Refuse a path that can't be written, or that holds something Foretrace did not write.

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
        check_writable(path)
        return
    except OSError as error:
        raise _write_error(path, error) from None
    if stat.S_ISDIR(there.st_mode):
        raise ForetraceError(f"{path} is a folder, and {kind.name} is a file", f"Name one: {path / kind.example}.")
    if stat.S_ISREG(there.st_mode):
        _check_replaceable(path, kind)
    elif stat.S_ISBLK(there.st_mode) or stat.S_ISSOCK(there.st_mode):
        what = "a disk" if stat.S_ISBLK(there.st_mode) else special_file(there.st_mode)
        raise ForetraceError(f"{path} is {what}, and {kind.name} is a file", f"Name one, like {kind.example}.")


@contextmanager
def open_output(path: Path, kind: OutputKind) -> Iterator[BinaryIO]:
    """Open a file to write; it has a temporary name until it is complete, and missing folders are made.

    Links are followed. What is not a plain file (``/dev/null``, ``/dev/stdout``, a pipe) is written to, not replaced.

    Parameters
    ----------
    path
        Where to write.
    kind
        What is written: files of other kinds, and files that Foretrace did not write, are not replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_output(Path(folder) / "new" / "page.html", PAGE) as file:
    ...         _ = file.write(b"whole")
    ...     (Path(folder) / "new" / "page.html").read_bytes(), len(list((Path(folder) / "new").iterdir()))
    (b'whole', 1)
    """
    check_output(path, kind)
    through = descriptor_of(path) is not None or (path.exists() and not path.is_file())
    try:
        with _stream(path) if through else atomic_write(path) as file:
            yield file
    except OSError as error:
        if through and isinstance(error, BrokenPipeError) and descriptor_of(path) == 1:
            raise  # the reader of our output has ended, as `head` does
        raise _write_error(path, error) from None


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write; it has a temporary name until it is complete, and missing folders are made.

    A link stays, and its target is written. A file that is replaced keeps its owner and permissions. Raises the
    system's errors; `open_output` explains them to users.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_write(folder / "new" / "a.txt") as file:
    ...     _ = file.write(b"whole")
    >>> (folder / "new" / "a.txt").read_bytes(), len(list((folder / "new").iterdir()))
    (b'whole', 1)
    """
    target = Path(os.path.realpath(path))
    unfinished = _temporary_name(target)
    with _parents_made(target):
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                _copy_permissions(file, target)
                yield file
            unfinished.replace(target)
        finally:
            with suppress(OSError):
                unfinished.unlink()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill; it has a temporary name until it is complete, and on a full disk nothing of it is left.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "made"
    >>> with atomic_folder(place) as folder:
    ...     _ = (folder / "run.py").write_text("")
    >>> [file.name for file in place.iterdir()], len(list(place.parent.iterdir()))
    (['run.py'], 1)
    """
    check_new_folder(path)
    target = Path(os.path.realpath(path))
    unfinished = _temporary_name(target)
    try:
        with _parents_made(target):
            try:
                unfinished.mkdir()
                yield unfinished
                unfinished.rename(target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise ForetraceError(
            f"{path} can't be written ({os_reason(error)})",
            "Free some space, or choose another folder: nothing was written.",
        ) from None


def check_new_folder(path: Path) -> None:
    """Refuse a folder that exists already, or that can't be made.

    >>> check_new_folder(Path("/"))
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: / is there already. Choose another folder, or remove it first.
    """
    if os.path.lexists(path):
        raise ForetraceError(f"{path} is there already", "Choose another folder, or remove it first.")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Refuse a path whose nearest existing parent is not a folder, or is read-only."""
    place = Path(os.path.realpath(path)).parent
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise ForetraceError(f"{path} can't be written: {place} is no folder", "Name another place.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ForetraceError(f"{path} can't be written: {place} is read-only", "Name another place.")


def os_reason(error: OSError) -> str:
    """Why the system refused, in its own words; of the several reasons of a failed copy, the first.

    >>> os_reason(OSError(28, "No space left on device"))
    'No space left on device'
    >>> os_reason(shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]))
    "No space left on device: 'b'"
    """
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return re.sub(r"^\[Errno \d+\] ", "", str(error.args[0][0][-1]))
    return error.strerror or str(error)


def _check_replaceable(path: Path, kind: OutputKind) -> None:
    check_writable(path)
    if not os.access(path, os.W_OK):
        raise ForetraceError(f"{path} is read-only", "Name another file, or let it be written to.")
    try:
        ours = kind.wrote(path)
    except OSError as error:
        raise _write_error(path, error) from None
    if not ours:
        raise ForetraceError(
            f"{path} is there already, and is not {kind.name} that Foretrace wrote",
            f"Name another file, or remove it first: {kind.name} would replace it.",
        )


def _write_error(path: Path, error: OSError) -> ForetraceError:
    return ForetraceError(f"{path} can't be written ({os_reason(error)})", "Name a place that can be written.")


def _stream(path: Path) -> BinaryIO:
    """Open what is written to as it is: an open file of this process, a device, or a named pipe with a reader."""
    descriptor = descriptor_of(path)
    if descriptor is not None:
        sys.stdout.flush()  # earlier output comes first
        return os.fdopen(os.dup(descriptor), "wb")
    until = time.monotonic() + PIPE_READER_WAIT_S
    while True:
        try:
            opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > until:
                raise OSError(errno.ENXIO, "no process reads this pipe") from None
            time.sleep(PIPE_POLL_S)
    os.set_blocking(opened, True)
    return os.fdopen(opened, "wb")


def _copy_permissions(file: BinaryIO, target: Path) -> None:
    """Give a new file the owner and the permissions of the file that it will replace."""
    with suppress(OSError):
        before = target.stat()
        os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
        os.fchown(file.fileno(), before.st_uid, before.st_gid)


def _temporary_name(target: Path) -> Path:
    """A hidden, random name in the same folder: a guessable one might be another user's link."""
    return target.with_name(f".{target.name[:40]}.{os.urandom(4).hex()}")


@contextmanager
def _parents_made(target: Path) -> Iterator[None]:
    """Make missing folders above a path; remove them again if the block fails."""
    made = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # another process may have used them meanwhile
            for folder in made:
                folder.rmdir()
        raise
