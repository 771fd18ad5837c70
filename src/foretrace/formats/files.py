"""Opening others' files: gzipped or plain, read in chunks, refused with one line where they are broken."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from foretrace.files import GZIP_MAGIC, opened
from foretrace.graph import ForetraceError

_gunzip: Callable[..., Any] = gzip.GzipFile
_BROKEN: tuple[Any, ...] = (gzip.BadGzipFile, zlib.error)
try:
    from isal import igzip, isal_zlib

    _gunzip, _BROKEN = igzip.GzipFile, (*_BROKEN, isal_zlib.error)
except ImportError:  # there is no wheel of it for some machines
    pass

FIRST_PIECE, PIECE = 1 << 16, 1 << 22
"""The first piece is small: often it already tells what a file is."""
LARGE_BYTES, LARGEST_RATIO = 64 << 20, 200
"""A file that has unpacked to more than so many bytes, and to more than so many times what was read of it, is a bomb:
traces shrink 10 to 60 times. What was read counts, not all of the file: else most of a bomb would be unpacked first."""


def pieces(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked where it is gzipped, a few megabytes at a time.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.json").write_bytes(b"{}")
    ...     list(pieces(Path(folder) / "a.json"))
    [b'{}']
    """
    try:
        with opened(path) as file:
            magic = file.read(2)
            file.seek(0)
            if not magic:
                raise ForetraceError(f"{path} is empty (0 bytes)", "Record it again, or leave it out.")
            if magic == GZIP_MAGIC:
                yield from _unpacked(path, file)
            elif path.suffix == ".gz":
                raise ForetraceError(
                    f"{path} is called .gz but is not gzipped", "Rename it without .gz, or gzip it and try again."
                )
            else:
                size = FIRST_PIECE
                while piece := file.read(size):
                    yield piece
                    size = PIECE
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> ForetraceError:
    """What to tell about a path that the system does not let us read."""
    if isinstance(error, FileNotFoundError):
        return ForetraceError(f"{path} does not exist", "Check the path.")
    if isinstance(error, IsADirectoryError):
        return ForetraceError(f"{path} is a folder, not a trace", "Name a file in it.")
    return ForetraceError(f"{path} can't be read ({error.strerror or error})", "Check its permissions.")


def _unpacked(path: Path, file: BinaryIO) -> Iterator[bytes]:
    packed = os.fstat(file.fileno()).st_size
    total, size = 0, FIRST_PIECE
    with _gunzip(fileobj=file, mode="rb") as stream:
        while True:
            try:
                piece: bytes = stream.read(size)
            except EOFError:
                raise ForetraceError(
                    f"{path} ends in the middle of its gzip data (byte {packed:,})",
                    "Whoever wrote or copied it was probably stopped; record or copy it again, or leave it out.",
                ) from None
            except _BROKEN as error:
                raise ForetraceError(
                    f"{path} is not a sound gzip file ({error}, near byte {file.tell():,})", "Copy it again."
                ) from None
            if not piece:
                return
            total += len(piece)
            if total > LARGE_BYTES and total > LARGEST_RATIO * file.tell():
                raise ForetraceError(
                    f"{path} unpacks to over {total >> 20} MB from {file.tell() >> 10} kB, which no trace does",
                    "Nothing more was read. Check where the file comes from.",
                )
            yield piece
            size = PIECE


def json_pieces(path: Path) -> Iterator[bytes]:
    """Like `pieces`, for a file that must hold JSON: refused at once where it starts with something else.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.json").write_bytes(b"  [1]")
    ...     b"".join(json_pieces(Path(folder) / "a.json"))
    b'[1]'
    """
    stream = pieces(path)
    for piece in stream:
        text = piece.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not text[:1] or text[0] not in b"{[":
            break
        yield text
        yield from stream
        return
    raise ForetraceError(f"{path} is not JSON", "Give a PyTorch profiler trace, an execution trace or a Chakra trace.")
