"""Append-only files of JSON lines, and their packed form.

Lines are appended as gzip members, each complete or ignored on reading: a calibration may be killed at any time. A file
that is not appended to for now may be packed, as ``.xz`` instead of ``.gz``, in half the size; what is appended later
goes into a new ``.gz`` next to it.

Packed, the lines are columns: lines that differ only in their numbers have one form, which is written once, with a hole
for each number, and the numbers of each hole follow each other. A compressor finds more in common there: timed calls
take a quarter less space than the same lines, compressed alike. The compressed text holds the number of forms; the
forms, a line each; a line with the form of each line; and for each form with holes a line per hole with its numbers.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.output import atomic_write

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
HOLE = "\0"
"""Stands for a number in a form: JSON never writes it."""
COMMON = 32
"""Fewest lines of a form; a rarer line is a form of its own, without holes."""
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "dict_size": 2**26, "lc": 4, "lp": 0, "pb": 0}]
"""For text: positions are not aligned, and a character depends on the one before it."""


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


def pack_file(path: Path) -> None:
    """Pack a file, together with what was packed of it before.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "some.jsonl.gz"
    >>> append(path, [{"us": 1.5}]); pack_file(path); append(path, [{"us": 2.0}])
    >>> list(read_lines(path))
    ['{"us":1.5}', '{"us":2.0}']
    """
    data = pack_lines(read_lines(path))
    with atomic_write(packed(path)) as file:
        file.write(data)
    path.unlink(missing_ok=True)


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


def _complete_members(data: bytes) -> Iterator[str]:
    """The lines of gzip members, up to one that was cut off."""
    while data:
        member = zlib.decompressobj(wbits=31)
        text = member.decompress(data).decode()
        if not member.eof:
            return
        yield from text.splitlines()
        data = member.unused_data


def pack_lines(read_lines: Iterable[str]) -> bytes:
    """Compress lines of JSON by columns.

    >>> timed = [f'{{"side":{side},"us":{side / 8}}}' for side in range(100)]
    >>> unpack_lines(pack_lines(["begun", *timed])) == ["begun", *timed]
    True
    """
    read_lines = list(read_lines)
    forms = [NUMBER.sub(HOLE, line) for line in read_lines]
    count = Counter(forms)
    forms = [form if count[form] >= COMMON else line for form, line in zip(forms, read_lines)]
    place = {form: number for number, form in enumerate(dict.fromkeys(forms))}
    filled: dict[str, list[list[str]]] = {form: [] for form in place if HOLE in form}
    for form, line in zip(forms, read_lines):
        if form in filled:
            filled[form].append(NUMBER.findall(line))
    columns = (" ".join(column) for rows in filled.values() for column in zip(*rows))
    text = "\n".join([str(len(place)), *place, " ".join(str(place[form]) for form in forms), *columns])
    return lzma.compress(text.encode(), filters=FILTERS)


def unpack_lines(data: bytes) -> list[str]:
    """The lines in packed data; a ValueError or `lzma.LZMAError` where `pack_lines` did not make it."""
    rest = iter(lzma.decompress(data).decode().split("\n"))
    try:
        forms = [next(rest) for _ in range(int(next(rest)))]
        order = [forms[int(number)] for number in next(rest).split()]
        filled = {form: _filled(form, rest) for form in forms if HOLE in form}
        return [next(filled[form]) if form in filled else form for form in order]
    except (StopIteration, IndexError):
        raise ValueError("it is incomplete") from None


def _filled(form: str, columns: Iterator[str]) -> Iterator[str]:
    """The lines of a form, from its columns, which come next."""
    holes = [next(columns).split() for _ in range(form.count(HOLE))]
    return map(form.replace("%", "%%").replace(HOLE, "%s").__mod__, zip(*holes, strict=True))
