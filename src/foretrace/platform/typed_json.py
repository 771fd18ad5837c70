"""The facts of a platform as JSON files: read into dataclasses, with the field named that is wrong.

What runs inside training images writes and reads them too, so the standard library must do.
"""

from __future__ import annotations

import json
import math
import types
import zlib
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from foretrace.files import read_bounded, written_whole
from foretrace.graph import ForetraceError

T = TypeVar("T")

Positive = Annotated[float, "above 0"]
"""A number that something is divided by."""
PositiveInt = Annotated[int, "above 0"]
LARGEST = 2**53
"""JSON has whole numbers of any size; arrays do not."""
MAX_FILE_BYTES = 64 << 20
"""The largest that is shipped, a host, has 32 kB."""
MAX_TIMED_BYTES = 512 << 20
"""Of calls that were timed as they are: a million of them take less."""


def read_as(kind: type[T], path: Path, advice: str = "Restore it.") -> T:
    """The dataclass, or the dict of dataclasses, that a file of JSON holds.

    Fields may be text, truth values, numbers (finite and not negative), dataclasses, and tuples, lists and dicts of
    those; one with a default may be absent, and ``null`` where its type allows None.

    Parameters
    ----------
    kind
        The dataclass, or ``dict[str, …]``.
    path
        The file.
    advice
        What to do about a damaged one.

    >>> import tempfile
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Wheel:
    ...     spokes: int
    ...     name: str = "front"
    >>> path = Path(tempfile.mkdtemp()) / "wheel.json"
    >>> write(path, {"spokes": 32})
    >>> read_as(Wheel, path)
    Wheel(spokes=32, name='front')
    """
    facts = read_object(path, advice)
    try:
        return decoded(kind, facts)
    except FieldError as error:
        raise ForetraceError(f"{path}: {error}", advice) from None


def read_object(path: Path, advice: str = "Restore it.") -> dict[str, Any]:
    """The object that a file of JSON holds."""
    try:
        facts = json.loads(read_bounded(path, MAX_FILE_BYTES, "facts of a platform"))
    except FileNotFoundError:
        raise ForetraceError(f"{path} does not exist", advice) from None
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ForetraceError(f"{path} is not readable as JSON ({error})", advice) from None
    if not isinstance(facts, dict):
        raise ForetraceError(f"{path} holds no JSON object", advice)
    return facts


def write(path: Path, facts: dict[str, Any]) -> None:
    """Write facts as JSON: under another name first, so that no reader sees half a file."""
    text = json.dumps(facts, indent=1, allow_nan=False) + "\n"
    with written_whole(path) as file:
        file.write(text.encode())


class FieldError(ValueError):
    """Which field is wrong, and how."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"the field {where!r} {what}")


def decoded(kind: type[T], facts: dict[str, Any]) -> T:
    """The dataclass that plain facts stand for; raises `FieldError`.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Wheel:
    ...     spokes: int
    >>> decoded(Wheel, {"spokes": "many"})
    Traceback (most recent call last):
    ...
    foretrace.platform.files.FieldError: the field 'spokes' holds 'many'; it should be a whole number
    """
    made: T = _value(kind, facts, "")
    return made


def _dataclass(kind: Any, facts: Any, where: str) -> Any:
    if not isinstance(facts, dict):
        raise _wrong(where, facts, "an object")
    known = {field.name: field for field in fields(kind)}
    for unknown in sorted(facts.keys() - known.keys()):
        raise FieldError(_inside(where, unknown), "means nothing")
    for name, field in known.items():
        if name not in facts and _needed(field):
            raise FieldError(_inside(where, name), "is missing")
    hints = _hints(kind)
    return kind(**{name: _value(hints[name], value, _inside(where, name)) for name, value in facts.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields: slow to find out, and the same every time."""
    return get_type_hints(kind, include_extras=True)


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _value(kind: Any, value: Any, where: str) -> Any:
    """The value of a field, in the type that the field has."""
    if kind is float or kind is int:  # as most are
        return _number(kind, value, where)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        number = _number(inner[0], value, where)
        if number <= 0:
            raise _wrong(where, value, f"a number {inner[1]}")
        return number
    if origin in (Union, types.UnionType):
        (some,) = [part for part in inner if part is not types.NoneType]
        return None if value is None else _value(some, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        return {key: _value(inner[1], item, _inside(where, key)) for key, item in value.items()}
    if origin in (list, tuple):
        return origin(_items(inner, value, where))
    if is_dataclass(kind):
        return _dataclass(kind, value, where)
    if not isinstance(value, kind):
        raise _wrong(where, value, {str: "a text", bool: "true or false"}.get(kind, kind.__name__))
    return value


def _items(kinds: tuple[Any, ...], value: Any, where: str) -> list[Any]:
    """The items of a list; of a tuple with so many types, exactly as many."""
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    any_number = len(kinds) == 1 or kinds[-1] is Ellipsis
    each = [kinds[0]] * len(value) if any_number else list(kinds)
    if len(each) != len(value):
        raise _wrong(where, value, f"a list of {len(each)}")
    return [_value(kind, item, f"{where}[{place}]") for place, (kind, item) in enumerate(zip(each, value))]


def _number(kind: Any, value: Any, where: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind is int and not isinstance(value, int)):
        raise _wrong(where, value, "a whole number" if kind is int else "a number")
    if not 0 <= value < math.inf:  # what is not a number is neither
        raise _wrong(where, value, "finite and not negative")
    if isinstance(value, int) and value > LARGEST:
        raise _wrong(where, value, f"at most {LARGEST:,}")
    return value


def _wrong(where: str, value: Any, wanted: str) -> FieldError:
    shown = repr(value)
    return FieldError(where, f"holds {shown if len(shown) < 80 else shown[:77] + '...'}; it should be {wanted}")
