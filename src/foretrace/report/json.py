"""JSON and CSV of results: written from their `to_dict`; JSON is read back into the typed records."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Protocol, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

MAX_FIGURE = 1e18
"""No figure of a step is larger, in whichever unit."""
NEVER_READ = {"workings": "Workings"}
"""Fields that no JSON has, and their types."""


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


class FieldError(ValueError):
    """A value of JSON that does not have the type of its field."""

    def __init__(self, field: str, value: object) -> None:
        super().__init__(field)
        self.field, self.value = field, value


def decode(kind: type[T], data: dict[str, Any]) -> T:
    """A record of this class from the fields of its JSON; unknown fields are passed over.

    The file may have been edited: every value is checked against its field's type, and every number must be finite.

    >>> from foretrace.analysis.report import TimeRow
    >>> decode(TimeRow, {"name": "aten::mm", "device_ms": 2, "host_ms": 1.5, "count": 3, "share": 1.0, "unknown": []})
    TimeRow(name='aten::mm', device_ms=2, host_ms=1.5, count=3, share=1.0)
    """
    values = {}
    for field, hint in _typed_fields(cast(Any, kind)):
        if field.name in data:
            try:
                _check_numbers(data[field.name])
                values[field.name] = _value(data[field.name], hint)
            except ValueError:
                raise FieldError(field.name, data[field.name]) from None
        elif field.default is MISSING and field.default_factory is MISSING:
            raise FieldError(field.name, None)
    return kind(**values)


@cache
def _typed_fields(kind: type) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(kind, localns=dict.fromkeys(NEVER_READ.values(), object))
    return [(field, hints[field.name]) for field in fields(cast(Any, kind)) if field.name not in NEVER_READ]


def _check_numbers(value: Any) -> None:
    """Refuse numbers that are not finite or absurdly large, wherever they are."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_numbers(item)
    elif isinstance(value, (int, float)) and not abs(value) <= MAX_FIGURE:
        raise ValueError(value)


def _value(value: Any, kind: Any) -> Any:
    """The value as a field of this type holds it.

    >>> _value({"0": 1.5}, dict[int, float]), _value(None, float | None)
    ({0: 1.5}, None)
    """
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if outer in (Union, UnionType):
        for one in inner:
            try:
                return _value(value, one)
            except ValueError:
                continue
    elif is_dataclass(outer) and isinstance(value, dict):
        return decode(cast(type, outer), value)
    elif outer is dict and isinstance(value, dict):
        return {inner[0](key): _value(item, inner[1]) for key, item in value.items()}
    elif outer is list and isinstance(value, list):
        return [_value(item, inner[0]) for item in value]
    elif outer is tuple and isinstance(value, list) and len(value) == len(inner):
        return tuple(_value(item, one) for item, one in zip(value, inner))
    elif outer in (int, float):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    elif isinstance(outer, type) and isinstance(value, outer):
        return value
    raise ValueError(value)


def as_csv(document: Document) -> str:
    """The tables of a result, which are the lists of records in its JSON; several have a line with its name each.

    >>> class Curve:
    ...     def to_dict(self): return {"scaling": [{"world": 1, "step_ms": 2.5}, {"world": 8}], "notes": ["a"]}
    >>> print(as_csv(Curve()).replace("\\r", ""))
    step_ms,world
    2.5,1
    ,8
    <BLANKLINE>
    """
    whole = tidy(document.to_dict())
    found = list(_tables(whole)) or [("", [{key: value for key, value in whole.items() if not _is_nested(value)}])]
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
