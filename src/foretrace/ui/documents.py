"""What Foretrace wrote as JSON, read again: forecasts, what-ifs, scaling curves, sharding plans, sweeps."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from foretrace.forecast.forecast import UNTOLD, Forecast
from foretrace.graph import ForetraceError

Words = dict[str, Any]

TABLES, COLUMNS = ("by_op", "by_family", "by_phase", "by_module"), ("device_ms", "host_ms", "count")
LARGEST = 1e18
"""No figure of a step is larger, in whichever unit; what is not a number is neither."""
SHOWN = 60
"""Characters of a wrong value in a message."""


def read_words(path: Path) -> Words | None:
    """The words of a JSON document; None for something else, a trace maybe."""
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError):
        return None
    return words if isinstance(words, dict) else None


def is_forecast(words: Words) -> bool:
    """Whether `foretrace predict --json` wrote it.

    >>> is_forecast({"step_ms": 1.0, "platform": "h200", "coverage": {}}), is_forecast({"traceEvents": []})
    (True, False)
    """
    return {"step_ms", "platform", "coverage"} <= words.keys()


def is_plan(words: Words) -> bool:
    """Whether `foretrace shard --json` wrote it.

    >>> is_plan({"step_ms": 1.0, "plan": {}, "ranks": []}), is_plan({"step_ms": 1.0})
    (True, False)
    """
    return {"step_ms", "plan", "ranks"} <= words.keys()


def is_curve(words: Words) -> bool:
    """Whether `foretrace predict --world 1,2,… --json` wrote it.

    >>> is_curve({"scaling": []}), is_curve({"scaling": 1.0})
    (True, False)
    """
    return isinstance(words.get("scaling"), list)


def is_sweep(words: Words) -> bool:
    """Whether `foretrace sweep --json` wrote it."""
    return isinstance(words.get("points"), list) and {"source", "best", "memory_limit"} <= words.keys()


def is_whatif(words: Words) -> bool:
    """Whether `foretrace whatif --json` wrote it.

    >>> is_whatif({"before": {}, "after": {}, "changes": []}), is_whatif({"before": "a", "after": "b"})
    (True, False)
    """
    return isinstance(words.get("before"), dict) and isinstance(words.get("after"), dict) and "changes" in words


def read_forecast(words: Words, name: str) -> Forecast:
    """The forecast with these words; words that this Foretrace does not know are passed over.

    Anybody may have changed them: each is held against the type of its field, so that a page can be drawn.
    """
    forecast = Forecast()
    types = get_type_hints(Forecast)
    for field in fields(Forecast):
        if field.name in UNTOLD or field.name not in words:
            continue
        value = words[field.name]
        if not _is_sound(value, types[field.name]) or (field.name in TABLES and not all(map(_is_row, value))):
            shown = repr(value)
            shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
            raise ForetraceError(f"{name} is damaged: the field {field.name!r} holds {shown}", "Predict it again.")
        setattr(forecast, field.name, value)
    return forecast


def _is_sound(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is of a type, and all its numbers are ones that can be drawn.

    >>> _is_sound([{"ms": 1.0}], list[dict[str, Any]]), _is_sound(float("inf"), float | None), _is_sound("x", int)
    (True, False, False)
    """
    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_is_sound(value, one) for one in inner)
    if kind is Any:
        kind = type(value)  # whatever it is, with what is in it
    if kind in (int, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST
    if (get_origin(kind) or kind) is dict:
        return isinstance(value, dict) and all(_is_sound(item, inner[1] if inner else Any) for item in value.values())
    if (get_origin(kind) or kind) is list:
        return isinstance(value, list) and all(_is_sound(item, inner[0] if inner else Any) for item in value)
    return isinstance(value, kind)


def _is_row(row: Words) -> bool:
    """Whether a row of a table has the columns that two forecasts are compared by."""
    return isinstance(row.get("name"), str) and all(_is_sound(row.get(column), float) for column in COLUMNS)
