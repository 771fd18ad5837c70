"""A file that is added to while measuring goes on: gzip members of JSON lines.

What is added is whole or not there: a member that was cut off is left out on reading.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from foretrace.graph import ForetraceError


def append(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Add entries as one member.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "some.jsonl.gz"
    >>> append(path, [{"us": 1.5}]); append(path, [{"us": 2.0}])
    >>> list(lines(path))
    ['{"us":1.5}', '{"us":2.0}']
    """
    text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
    with path.open("ab") as file:
        file.write(gzip.compress(text.encode(), 9, mtime=0))


def lines(path: Path) -> Iterator[str]:
    """The lines of all members, in order; none where there is no file."""
    data = path.read_bytes() if path.exists() else b""
    while data:
        member = zlib.decompressobj(wbits=31)
        try:
            text = member.decompress(data).decode()
        except (zlib.error, ValueError) as error:
            raise ForetraceError(f"{path} is damaged ({error})", "Restore the file, or measure again.") from None
        if not member.eof:
            return
        yield from text.splitlines()
        data = member.unused_data
