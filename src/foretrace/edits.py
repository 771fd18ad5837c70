"""Former name of `foretrace.transforms`, which it forwards to with a DeprecationWarning."""

from __future__ import annotations

from typing import Any
from warnings import warn

from foretrace import transforms


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    found = getattr(transforms, name)
    warn(f"foretrace.edits.{name} is now foretrace.transforms.{name}", DeprecationWarning, stacklevel=2)
    return found


def __dir__() -> list[str]:
    return dir(transforms)
