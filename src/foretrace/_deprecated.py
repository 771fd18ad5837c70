"""Former names of the Python API: they keep working, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package that could be called: ``ft.record(step_fn)`` called the package ``foretrace.record``."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the public function that took the package's place."""
        name = FORMER_CALLS[self.__name__]
        warnings.warn(
            f"ft.{self.__name__.rpartition('.')[2]}(...) is now ft.{name}(...)", DeprecationWarning, stacklevel=2
        )
        return getattr(import_module("foretrace"), name)(*args, **options)


FORMER_CALLS = {
    "foretrace.platform": "load_platform",
    "foretrace.record": "record_step",
    "foretrace.replay": "replay_step",
    "foretrace.whatif": "what_if",
}
"""Packages that could be called, and the public function that does it now."""


def keep_callable(package: str) -> None:
    """Let a package be called as before, with a warning."""
    sys.modules[package].__class__ = _CallablePackage
