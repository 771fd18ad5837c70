"""JSON and CSV of results: written from their `to_dict`; JSON is read back into the typed records."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from foretrace.platform.typed_json import FieldError, Rules, decoded

T = TypeVar("T")

MAX_FIGURE = 1e18
"""No figure of a step is larger, in whichever unit."""
RESULT = Rules(-MAX_FIGURE, MAX_FIGURE, fractions=True, unknown=True, unread=("workings",))
"""What the JSON of a result may hold."""


class Document(Protocol):
    """A result with documented JSON fields."""

    def to_dict(self) -> dict[str, Any]:
        """The fields of its JSON."""


def as_json(document: Document) -> str:
    """The JSON text of a result: sorted, so that the same result gives the same text; null for what is not known.

    >>> class Step:
    ...     def to_dict(self): return {"step_ms": {"10": 2.5, "2": float("nan")}, "notes": ("a",)}
    >>> print(as_json(Step()).replace("\\n", ""))
    { "notes": [  "a" ], "step_ms": {  "2": null,  "10": 2.5 }}
    """
    return json.dumps(tidy(document.to_dict()), indent=1, allow_nan=False)


def tidy(value: Any) -> Any:
    """The value in JSON's types, keys sorted: numpy's scalars become Python's, nan and infinity null.

    >>> tidy({"b": float("inf"), "a": (1,)})
    {'a': [1], 'b': None}
    """
    if isinstance(value, dict):
        numbers_first = sorted(value, key=lambda key: (int(key), "") if str(key).isdecimal() else (-1, str(key)))
        return {key: tidy(value[key]) for key in numbers_first}  # rank 2 comes before rank 10
    if isinstance(value, (list, tuple)):
        return [tidy(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def decode(kind: type[T], data: dict[str, Any]) -> T:
    """A record of this class from the fields of its JSON; unknown fields are passed over.

    The file may have been edited: every value is checked against its field's type, and every number must be finite.

    >>> from foretrace.analysis.report import TimeRow
    >>> decode(TimeRow, {"name": "aten::mm", "device_ms": 2, "host_ms": 1.5, "count": 3, "share": 1.0, "unknown": []})
    TimeRow(name='aten::mm', device_ms=2, host_ms=1.5, count=3, share=1.0)
    """
    for name, value in data.items():
        if not _is_finite(value):
            raise FieldError(f"holds {value!r}", name)
    return decoded(kind, data, RESULT)


def _is_finite(value: Any) -> bool:
    """Whether all numbers are finite and none is absurdly large, those of unknown fields too."""
    if isinstance(value, (dict, list)):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, (int, float)) or abs(value) <= MAX_FIGURE


def as_csv(document: Document) -> str:
    """The tables of a result, which are the lists of records in its JSON.

    Several have a line with its name each, and the single figures come before them as a table of one row.

    >>> class Curve:
    ...     def to_dict(self): return {"scaling": [{"world": 1, "step_ms": 2.5}, {"world": 8}], "notes": ["a"]}
    >>> print(as_csv(Curve()).replace("\\r", ""))
    step_ms,world
    2.5,1
    ,8
    <BLANKLINE>
    """
    whole = tidy(document.to_dict())
    found, single = list(_tables(whole)), {key: value for key, value in whole.items() if not _is_nested(value)}
    if len(found) != 1:
        found.insert(0, ("summary", [single]))
    text = io.StringIO()
    for number, (name, rows) in enumerate(found):
        if len(found) > 1:
            text.write(f"{chr(10) if number else ''}# {name}\n")
        columns = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _tables(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name, value in fields.items():
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            yield f"{prefix}{name}", value
        elif isinstance(value, dict):
            yield from _tables(value, f"{prefix}{name}.")


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _cell(value: Any) -> Any:
    """A value as a cell: texts that a spreadsheet would compute are kept from it."""
    if _is_nested(value):
        return json.dumps(value)
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
