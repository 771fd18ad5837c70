"""Lines that say alike things with other numbers, packed: each form once, and the numbers in its places by columns.

A compressor finds little in a line that differs from others in every number. In a column it finds what the numbers
have in common: timed calls take a quarter less room than the same lines, compressed alike, do one after the other.

The text that is compressed holds a count of forms; the forms, a line each, with a hole for each number; a line that
says which form each line has; and for each form with holes a line per hole, with what stands there. A line that hardly
any other is like is a form without holes.
"""

from __future__ import annotations

import lzma
import re
from collections import Counter
from collections.abc import Iterable, Iterator

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
HOLE = "\0"
"""Stands for a number: nothing that JSON writes."""
COMMON = 32
"""Lines of a form from which on their numbers are taken out."""
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "dict_size": 2**26, "lc": 4, "lp": 0, "pb": 0}]
"""For text: no place in it means anything by its number, and what comes next hangs on the character before."""


def pack(lines: Iterable[str]) -> bytes:
    """Lines of JSON, packed.

    >>> said = [f'{{"side":{side},"us":{side / 8}}}' for side in range(100)]
    >>> unpack(pack(["begun", *said])) == ["begun", *said]
    True
    """
    lines = list(lines)
    forms = [NUMBER.sub(HOLE, line) for line in lines]
    count = Counter(forms)
    forms = [form if count[form] >= COMMON else line for form, line in zip(forms, lines)]
    place = {form: number for number, form in enumerate(dict.fromkeys(forms))}
    filled: dict[str, list[list[str]]] = {form: [] for form in place if HOLE in form}
    for form, line in zip(forms, lines):
        if form in filled:
            filled[form].append(NUMBER.findall(line))
    columns = (" ".join(column) for rows in filled.values() for column in zip(*rows))
    text = "\n".join([str(len(place)), *place, " ".join(str(place[form]) for form in forms), *columns])
    return lzma.compress(text.encode(), filters=FILTERS)


def unpack(data: bytes) -> list[str]:
    """What was packed; a ValueError or `lzma.LZMAError` for what `pack` did not give."""
    rest = iter(lzma.decompress(data).decode().split("\n"))
    try:
        forms = [next(rest) for _ in range(int(next(rest)))]
        order = [forms[int(number)] for number in next(rest).split()]
        filled = {form: _filled(form, rest) for form in forms if HOLE in form}
        return [next(filled[form]) if form in filled else form for form in order]
    except (StopIteration, IndexError):
        raise ValueError("it is not whole") from None


def _filled(form: str, columns: Iterator[str]) -> Iterator[str]:
    """The lines of a form, whose columns come next."""
    holes = [next(columns).split() for _ in range(form.count(HOLE))]
    return map(form.replace("%", "%%").replace(HOLE, "%s").__mod__, zip(*holes, strict=True))
