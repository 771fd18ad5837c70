"""Append-only files of JSON lines, and their packed form.

Lines are appended as gzip members, each complete or ignored on reading: a calibration may be killed at any time. A file
that is not appended to for now may be packed, as ``.xz`` instead of ``.gz``, in half the size; what is appended later
goes into a new ``.gz`` next to it.

Packed, the lines are columns: lines that differ only in their numbers have one form, with a hole for each number, and
the numbers of each hole follow each other. The compressed text holds the number of forms; the forms, a line each; the
form of each line; and for each form with holes a line per hole with its numbers.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.codec import DAMAGE

HOLE = "\0"
"""Stands for a number in a form: JSON never writes it."""


def append(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Append entries as one gzip member; if the disk is full, the file stays as it was.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "some.jsonl.gz"
    >>> append(path, [{"us": 1.5}]); append(path, [{"us": 2.0}])
    >>> list(read_lines(path))
    ['{"us":1.5}', '{"us":2.0}']
    """
    text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
    before = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:
            file.write(gzip.compress(text.encode(), 9, mtime=0))
    except OSError:
        if path.exists():
            os.truncate(path, before)  # nothing after half a member could be read
        raise


def packed(path: Path) -> Path:
    """The path of the packed form of a file.

    >>> packed(Path("matrix.jsonl.gz")).name
    'matrix.jsonl.xz'
    """
    return path.with_suffix(".xz")


def exists(path: Path) -> bool:
    """Whether there is such a file, packed or not."""
    return path.exists() or packed(path).exists()


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, in order, packed ones first; none where there is no file."""
    try:
        if packed(path).exists():
            yield from unpack_lines(packed(path).read_bytes())
        yield from _complete_members(path.read_bytes() if path.exists() else b"")
    except (lzma.LZMAError, zlib.error, ValueError) as error:
        raise ForetraceError(f"{path} is damaged ({error})", "Restore the file, or measure again.") from None


def read_entries(path: Path, what: str, take: Callable[[dict[str, Any]], None]) -> None:
    """Pass each entry of a file to ``take``; an error names the line and ``what`` is wrong with it."""
    for number, text in enumerate(read_lines(path), 1):
        try:
            take(json.loads(text))
        except DAMAGE as error:
            raise ForetraceError(
                f"{path}: line {number} is {what} ({error})", "Restore the file, or measure again."
            ) from None


def _complete_members(data: bytes) -> Iterator[str]:
    """The lines of gzip members, up to one that was cut off."""
    while data:
        member = zlib.decompressobj(wbits=31)
        text = member.decompress(data).decode()
        if not member.eof:
            return
        yield from text.splitlines()
        data = member.unused_data


def unpack_lines(data: bytes) -> list[str]:
    """The lines in packed data; a ValueError or `lzma.LZMAError` where they were not packed so."""
    rest = iter(lzma.decompress(data).decode().split("\n"))
    try:
        forms = [next(rest) for _ in range(int(next(rest)))]
        order = [forms[int(number)] for number in next(rest).split()]
        filled = {form: _filled(form, rest) for form in forms if HOLE in form}
        return [next(filled[form]) if form in filled else form for form in order]
    except (StopIteration, IndexError):
        raise ValueError("it is incomplete") from None


def _filled(form: str, columns: Iterator[str]) -> Iterator[str]:
    """The lines of a packed form, filled from the columns that follow it."""
    holes = [next(columns).split() for _ in range(form.count(HOLE))]
    return map(form.replace("%", "%%").replace(HOLE, "%s").__mod__, zip(*holes, strict=True))
