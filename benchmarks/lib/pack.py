"""Packs measurements for the repository: the same lines by columns, in half the size (see `journal`)."""

from __future__ import annotations

import lzma
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from foretrace.output import atomic_write
from foretrace.platform.measurements.journal import HOLE, packed, read_lines

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
COMMON = 32
"""Fewest lines of a form; a rarer line is a form of its own, without holes."""
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "dict_size": 2**26, "lc": 4, "lp": 0, "pb": 0}]
"""For text: positions are not aligned, and a character depends on the one before it."""


def pack_file(path: Path) -> None:
    """Pack a file, together with what was packed of it before.

    >>> import tempfile; from foretrace.platform.measurements.journal import append
    >>> path = Path(tempfile.mkdtemp()) / "some.jsonl.gz"
    >>> append(path, [{"us": 1.5}]); pack_file(path); append(path, [{"us": 2.0}])
    >>> list(read_lines(path))
    ['{"us":1.5}', '{"us":2.0}']
    """
    data = pack_lines(read_lines(path))
    with atomic_write(packed(path)) as file:
        file.write(data)
    path.unlink(missing_ok=True)


def pack_lines(read_lines: Iterable[str]) -> bytes:
    """Compress lines of JSON by columns.

    >>> timed = [f'{{"side":{side},"us":{side / 8}}}' for side in range(100)]
    >>> from foretrace.platform.measurements.journal import unpack_lines
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
