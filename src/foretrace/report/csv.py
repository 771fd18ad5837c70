"""CSV of results: each list of records in their JSON is a table, with plain numbers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from foretrace.report.json import Document, tidy


def as_csv(document: Document) -> str:
    """The tables of a result; where there are several, each under a line with its name.

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
