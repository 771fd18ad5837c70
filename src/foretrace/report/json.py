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
    """The tables of a result: the lists of records in its JSON, and mappings of names to records.

    Several have a line with its name each, and the single figures, cautions and notes come before them as a table of
    one row; so they do before the one table of a result with a step time. A nested field is a column by its path; a
    pair (before and after) is two, 0 and 1.

    >>> class Curve:
    ...     def to_dict(self): return {"scaling": [{"world": 1, "step_ms": [2, 3]}, {"world": 8}], "notes": ["a"]}
    >>> print(as_csv(Curve()).replace("\\r", ""))
    step_ms.0,step_ms.1,world
    2,3,1
    ,,8
    <BLANKLINE>
    """
    whole = tidy(document.to_dict())
    found = list(_tables(whole))
    if len(found) != 1 or "step_ms" in whole:
        found.insert(0, ("summary", [_flat(whole)]))
    text = io.StringIO()
    for number, (name, rows) in enumerate(found):
        if len(found) > 1:
            text.write(f"{chr(10) if number else ''}# {name}\n")
        rows = _split_pairs(rows)
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _tables(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name, value in fields.items():
        if records := _records(value):
            yield f"{prefix}{name}", [_flat(record) for record in records]
        elif isinstance(value, dict):
            yield from _tables(value, f"{prefix}{name}.")


def _records(value: Any) -> list[dict[str, Any]]:
    """The rows of a table: a list of records, or records by name; empty for what is no table."""
    if isinstance(value, dict) and all(isinstance(record, dict) for record in value.values()):
        return [{"name": name} | record for name, record in value.items()]
    return value if isinstance(value, list) and all(isinstance(record, dict) for record in value) else []


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields that are no tables, by path.

    >>> _flat({"a": {"b": 1, "c": [2, 3]}, "rows": [{"d": 4}]})
    {'a.b': 1, 'a.c': [2, 3]}
    """
    flat = dict[str, Any]()
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= {} if _records(value) else _flat(value, f"{prefix}{name}.")
        elif not _records(value):
            flat[f"{prefix}{name}"] = value
    return flat


def _split_pairs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with two columns for one that holds only pairs of numbers."""
    filled = [(name, value) for row in rows for name, value in row.items() if value is not None]
    pairs = {name for name, _ in filled} - {name for name, value in filled if not _is_pair(value)}
    split = [dict[str, Any]() for _ in rows]
    for cells, row in zip(split, rows, strict=True):
        for name, value in row.items():
            cells |= {f"{name}.{side}": value[side] for side in (0, 1)} if name in pairs and value else {name: value}
    return split


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and not any(isinstance(part, (str, dict, list)) for part in value)
    )


def _cell(value: Any) -> Any:
    """A value as a cell: several are joined; texts that a spreadsheet would compute are kept from it."""
    if isinstance(value, list):
        value = "; ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
