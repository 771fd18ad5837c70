"""Benchmarks from graphs: writing, running and comparing them.

The package itself can be called: ``ft.replay("run")`` is `foretrace.replaying.replay`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Replay(ModuleType):
    def __call__(self, what: Any, *options: Any, **more: Any) -> Any:
        """Run the step of a recording again, and compare."""
        # By name: reading what others recorded is no part of this package.
        return import_module("foretrace.replaying").replay(what, *options, **more)


sys.modules[__name__].__class__ = _Replay
