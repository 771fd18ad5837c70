"""JSON of what was found: sorted, one word a key, null where nobody knows."""

from __future__ import annotations

import json
from typing import Any, Protocol


class Document(Protocol):
    """What can be told in words: an observation or a difference."""

    def to_dict(self) -> dict[str, Any]:
        """Its words, as documented in docs/show.md and docs/diff.md."""


def as_json(document: Document) -> str:
    """The text of a document: the same input gives the same text.

    >>> class Step:
    ...     def to_dict(self): return {"step_ms": {"10": 2.5, "2": float("nan")}, "notes": ("a",)}
    >>> print(as_json(Step()).replace("\\n", ""))
    { "notes": [  "a" ], "step_ms": {  "2": null,  "10": 2.5 }}
    """
    return json.dumps(tidy(document.to_dict()), indent=1, allow_nan=False)


def tidy(value: Any) -> Any:
    """The value in JSON's own types, sorted; numpy's scalars become Python's, nan and infinity null.

    >>> tidy({"b": float("inf"), "a": (1,)})
    {'a': [1], 'b': None}
    """
    if isinstance(value, dict):
        return {key: tidy(value[key]) for key in sorted(value, key=_as_number_or_word)}
    if isinstance(value, (list, tuple)):
        return [tidy(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def _as_number_or_word(key: Any) -> tuple[int, str]:
    """Rank 2 comes before rank 10."""
    return (int(key), "") if str(key).isdecimal() else (-1, str(key))
