"""A file that is added to while measuring goes on: gzip members of JSON lines.

What is added is whole or not there: a member that was cut off is left out on reading. A file that nothing is added to
for now may be packed, as ``.xz`` in the place of ``.gz``: half the size. What is added later stands beside it.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from foretrace.files import written_whole
from foretrace.graph import ForetraceError
from foretrace.platform import packing


def append(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Add entries as one member; the file is as it was where there is no room for all of it.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "some.jsonl.gz"
    >>> append(path, [{"us": 1.5}]); append(path, [{"us": 2.0}])
    >>> list(lines(path))
    ['{"us":1.5}', '{"us":2.0}']
    """
    text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
    before = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:
            file.write(gzip.compress(text.encode(), 9, mtime=0))
    except OSError:
        if path.exists():
            os.truncate(path, before)  # what is added behind half a member could not be read
        raise


def packed(path: Path) -> Path:
    """Where a file is while it is packed.

    >>> packed(Path("matrix.jsonl.gz")).name
    'matrix.jsonl.xz'
    """
    return path.with_suffix(".xz")


def pack(path: Path) -> None:
    """Pack all that a file holds, and what was packed of it before.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "some.jsonl.gz"
    >>> append(path, [{"us": 1.5}]); pack(path); append(path, [{"us": 2.0}])
    >>> list(lines(path))
    ['{"us":1.5}', '{"us":2.0}']
    """
    data = packing.pack(lines(path))
    with written_whole(packed(path)) as file:
        file.write(data)
    path.unlink(missing_ok=True)


def exists(path: Path) -> bool:
    """Whether there is such a file, packed or not."""
    return path.exists() or packed(path).exists()


def lines(path: Path) -> Iterator[str]:
    """The lines of what is packed, then those of all members, in order; none where there is no file."""
    try:
        if packed(path).exists():
            yield from packing.unpack(packed(path).read_bytes())
        yield from _added(path.read_bytes() if path.exists() else b"")
    except (lzma.LZMAError, zlib.error, ValueError) as error:
        raise ForetraceError(f"{path} is damaged ({error})", "Restore the file, or measure again.") from None


def _added(data: bytes) -> Iterator[str]:
    """The lines of gzip members, as far as they are whole."""
    while data:
        member = zlib.decompressobj(wbits=31)
        text = member.decompress(data).decode()
        if not member.eof:
            return
        yield from text.splitlines()
        data = member.unused_data
