"""JSON files read into dataclasses, with checked types: an error names the field that is wrong.

Needs the standard library only: calibrations write and read such files inside training images.
"""

from __future__ import annotations

import json
import math
import types
import zlib
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from foretrace.errors import ForetraceError
from foretrace.files import read_bounded

T = TypeVar("T")

Positive = Annotated[float, "above 0"]
"""A number that something is divided by."""
PositiveInt = Annotated[int, "above 0"]
LARGEST = 2**53
"""JSON has numbers of any size, arrays and products of them do not; no machine has more of anything."""
MAX_FILE_BYTES = 64 << 20
"""The largest shipped file, a host, has 32 kB."""
MAX_TIMED_BYTES = 512 << 20
"""Of exactly timed calls: a million of them take less."""


def read_as(kind: type[T], path: Path, advice: str = "Restore it.") -> T:
    """Read a JSON file into a dataclass, or a dict of dataclasses.

    Fields may be text, booleans, numbers (finite and not negative), dataclasses, and tuples, lists and dicts of
    those; a field with a default may be absent, and ``null`` where its type allows None.
    """
    values = read_object(path, advice)
    try:
        return decoded(kind, values)
    except FieldError as error:
        raise ForetraceError(f"{path}: {error}", advice) from None


def read_object(path: Path, advice: str = "Restore it.") -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        values = json.loads(read_bounded(path, MAX_FILE_BYTES, "a platform"))
    except FileNotFoundError:
        raise ForetraceError(f"{path} does not exist", advice) from None
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ForetraceError(f"{path} is not readable as JSON ({error})", advice) from None
    if not isinstance(values, dict):
        raise ForetraceError(f"{path} holds no JSON object", advice)
    return values


def write(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file, atomically."""
    from foretrace.output import atomic_write  # most who read do not write

    with atomic_write(path) as file:
        file.write(as_text(values))


def as_text(values: dict[str, Any]) -> bytes:
    """The object as the text of a JSON file.

    >>> as_text({"name": "ours"})
    b'{\\n "name": "ours"\\n}\\n'
    """
    return json.dumps(values, indent=1, allow_nan=False).encode() + b"\n"


class FieldError(ValueError):
    """A field that is wrong, and how."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"the field {where!r} {what}")


def decoded(kind: type[T], values: dict[str, Any]) -> T:
    """Make a dataclass from the object of a JSON file; raises `FieldError`."""
    made: T = _value(kind, values, "")
    return made


def _dataclass(kind: Any, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise _wrong(where, values, "an object")
    hints, needed = _fields(kind)
    for unknown in sorted(values.keys() - hints.keys()):
        raise FieldError(_inside(where, unknown), "means nothing")
    for name in needed:
        if name not in values:
            raise FieldError(_inside(where, name), "is missing")
    return kind(**{name: _value(hints[name], value, _inside(where, name)) for name, value in values.items()})


@cache
def _fields(kind: type) -> tuple[dict[str, Any], list[str]]:
    """The types of a dataclass's fields, and those without a default, cached: they are slow to resolve."""
    hints, known = get_type_hints(kind, include_extras=True), fields(cast(Any, kind))
    needed = [field.name for field in known if field.default is MISSING and field.default_factory is MISSING]
    return {field.name: hints[field.name] for field in known}, needed


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _value(kind: Any, value: Any, where: str) -> Any:
    """The value of a field, converted to the type of the field."""
    if kind is float or kind is int:  # most fields
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
    """The items of a list; of a tuple with fixed types, exactly as many."""
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
    if not 0 <= value < math.inf:  # NaN is neither
        raise _wrong(where, value, "finite and not negative")
    if value > LARGEST:
        raise _wrong(where, value, f"at most {LARGEST:,}")
    return value


def _wrong(where: str, value: Any, wanted: str) -> FieldError:
    shown = repr(value)
    return FieldError(where, f"holds {shown if len(shown) < 80 else shown[:77] + '...'}; it should be {wanted}")
