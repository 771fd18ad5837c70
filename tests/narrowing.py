"""Values whose type a test knows better than the code that returns them; a test fails where it is wrong about that."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value


def instance(kind: type[T], value: object) -> T:
    """The value, which is of this type."""
    assert isinstance(value, kind)
    return value
