"""What Foretrace wrote as JSON, read again: forecasts, what-ifs, scaling curves, sharding plans, sweeps."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from foretrace.forecast.forecast import UNTOLD, Forecast
from foretrace.graph import ForetraceError

Words = dict[str, Any]

NUMBER = (int, float)


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
    """The forecast with these words; words that this Foretrace does not know are passed over."""
    forecast = Forecast()
    for field in fields(Forecast):
        if field.name in UNTOLD or field.name not in words:
            continue
        value, usual = words[field.name], getattr(forecast, field.name)
        if usual is not None and not isinstance(value, NUMBER if isinstance(usual, NUMBER) else type(usual)):
            raise ForetraceError(f"{name}: the field {field.name!r} holds {value!r}", "Predict it again.")
        setattr(forecast, field.name, value)
    return forecast
