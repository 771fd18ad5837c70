"""JSON files read into dataclasses, with checked types: an error names the field that is wrong.

Needs the standard library only: calibrations write and read such files inside training images.
"""

from __future__ import annotations

import json
import math
import types
import zlib
from collections.abc import Callable, Hashable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

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
    """A field that is wrong, and how; ``field`` is its name, or that of the outermost one that it is in."""

    def __init__(self, what: str, field: str = "", path: str = "") -> None:
        super().__init__(f"the field {path or field!r} {what}")
        self.what, self.field, self.path = what, field, path or field

    def inside(self, outer: str) -> FieldError:
        """The same of a part of another field, or of an item of a list."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return FieldError(self.what, outer, f"{outer}{dot}{self.path}")


class Rules(NamedTuple):
    """What a file may hold."""

    lowest: float = 0
    largest: float = LARGEST
    fractions: bool = False
    """Whether a whole number's field may hold any."""
    unknown: bool = False
    """Whether fields that the dataclass does not have are passed over, instead of refused."""
    unread: tuple[str, ...] = ()
    """Fields of the dataclass that no file has."""


MACHINE_FILE = Rules()


def decoded(kind: type[T], values: dict[str, Any], rules: Rules = MACHINE_FILE) -> T:
    """Make a dataclass from the object of a JSON file; raises `FieldError`."""
    made: T = _reader(cast(Hashable, kind), rules)(values)
    return made


Reader = Callable[[Any], Any]
"""Converts a value to the type of its field."""


@cache
def _reader(kind: Any, rules: Rules) -> Reader:
    """The reader of a type's values, cached: types are slow to take apart."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is float or kind is int:
        return _number_reader(kind, rules)
    if origin is Annotated:
        return _positive_reader(_reader(inner[0], rules), f"a number {inner[1]}")
    if origin in (Union, types.UnionType):
        (some,) = [_reader(part, rules) for part in inner if part is not types.NoneType]
        return lambda value: None if value is None else some(value)
    if origin is dict:
        return _dict_reader(inner[0], _reader(inner[1], rules))
    if origin in (list, tuple):
        alike = origin is list or inner[-1] is Ellipsis
        return _items_reader(origin, [_reader(one, rules) for one in inner if one is not Ellipsis], alike)
    if is_dataclass(kind):
        return _dataclass_reader(kind, rules)
    return _instance_reader(kind)


def _dataclass_reader(kind: Any, rules: Rules) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    known = [field for field in fields(kind) if field.name not in rules.unread]
    needed = [field.name for field in known if field.default is MISSING and field.default_factory is MISSING]
    readers = {field.name: _reader(hints[field.name], rules) for field in known}

    def read(values: Any) -> Any:
        if not isinstance(values, dict):
            raise _wrong(values, "an object")
        unknown = values.keys() - readers.keys()
        if unknown and not rules.unknown:
            raise FieldError("means nothing", min(unknown))
        for name in needed:
            if name not in values:
                raise FieldError("is missing", name)
        return kind(**{name: _read(readers[name], values[name], name) for name in values if name not in unknown})

    return read


def _dict_reader(key: Callable[[str], Any], item: Reader) -> Reader:
    def read(values: Any) -> Any:
        if not isinstance(values, dict):
            raise _wrong(values, "an object")
        found = {name: _read(item, value, name) for name, value in values.items()}
        try:
            return found if key is str else {key(name): value for name, value in found.items()}
        except ValueError:
            raise _wrong(values, "an object with numbers as names") from None

    return read


def _items_reader(origin: type, readers: list[Reader], alike: bool) -> Reader:
    """Items of one type, or exactly one of each."""

    def read(values: Any) -> Any:
        if not isinstance(values, list):
            raise _wrong(values, "a list")
        if not alike and len(readers) != len(values):
            raise _wrong(values, f"a list of {len(readers)}")
        each = repeat(readers[0]) if alike else readers
        return origin([_read(one, value, f"[{place}]") for place, (one, value) in enumerate(zip(each, values))])

    return read


def _number_reader(kind: type, rules: Rules) -> Reader:
    whole = kind is int and not rules.fractions
    lowest, largest = rules.lowest, rules.largest

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise _wrong(value, "a whole number" if whole else "a number")
        if not lowest <= value < math.inf:  # NaN is neither
            raise _wrong(value, "finite and not negative")
        if value > largest:
            raise _wrong(value, f"at most {largest:,}")
        return value

    return read


def _positive_reader(number: Reader, wanted: str) -> Reader:
    def read(value: Any) -> Any:
        if number(value) <= 0:
            raise _wrong(value, wanted)
        return value

    return read


def _instance_reader(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _wrong(value, {str: "a text", bool: "true or false"}.get(kind, kind.__name__))
        return value

    return read


def _read(reader: Reader, value: Any, name: str) -> Any:
    """The value of a field or an item, whose name an error has."""
    try:
        return reader(value)
    except FieldError as error:
        raise error.inside(name) from None


def _wrong(value: Any, wanted: str) -> FieldError:
    shown = repr(value)
    return FieldError(f"holds {shown if len(shown) < 80 else shown[:77] + '...'}; it should be {wanted}")
