"""Foretrace: watch one training step; predict, replay and explain it anywhere.

>>> import foretrace as ft
>>> "observe" in dir(ft)
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrace.calibrating import calibrate_host as calibrate_host
    from foretrace.forecast.difference import difference as difference
    from foretrace.forecast.observe import observe as observe
    from foretrace.loading import load as load
    from foretrace.platforms import platform as platform
    from foretrace.predicting import predict as predict
    from foretrace.record.session import record as record
    from foretrace.record.session import recording as recording
    from foretrace.record.session import step as step
    from foretrace.record.sketch import sketch as sketch
    from foretrace.replaying import benchmark as benchmark
    from foretrace.replaying import replay as replay

__version__ = "0.1.0"

_HOME = {
    "benchmark": "foretrace.replaying",
    "calibrate_host": "foretrace.calibrating",
    "load": "foretrace.loading",
    "observe": "foretrace.forecast.observe",
    "difference": "foretrace.forecast.difference",
    "predict": "foretrace.predicting",
    "recording": "foretrace.record.session",
    "sketch": "foretrace.record.sketch",
    "step": "foretrace.record.session",
}
"""Where each public name lives: imported when first asked for, so that `import foretrace` costs nothing."""

__all__ = [
    "benchmark", "calibrate_host", "difference", "load", "observe", "platform", "predict", "record", "recording",
    "replay", "sketch", "step",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("platform", "record", "replay"):
        return import_module(f"foretrace.{name}")  # a package that can be called
    if name not in _HOME:
        raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
