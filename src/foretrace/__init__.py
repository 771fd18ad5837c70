"""Foretrace: watch one training step; predict, replay and explain it anywhere.

>>> import foretrace as ft
>>> "observe" in dir(ft)
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrace.forecast.difference import difference as difference
    from foretrace.forecast.observe import observe as observe
    from foretrace.loading import load as load
    from foretrace.record.session import record as record
    from foretrace.record.session import recording as recording
    from foretrace.record.session import step as step
    from foretrace.record.sketch import sketch as sketch

__version__ = "0.1.0"

_HOME = {
    "load": "foretrace.loading",
    "observe": "foretrace.forecast.observe",
    "difference": "foretrace.forecast.difference",
    "recording": "foretrace.record.session",
    "sketch": "foretrace.record.sketch",
    "step": "foretrace.record.session",
}
"""Where each public name lives: imported when first asked for, so that `import foretrace` costs nothing."""

__all__ = ["difference", "load", "observe", "record", "recording", "sketch", "step"]


def __getattr__(name: str) -> Any:
    if name == "record":
        return import_module("foretrace.record")  # a package that can be called
    if name not in _HOME:
        raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
