"""What machines are, and how they are measured: descriptions as files, cases to time, and what was timed.

The package itself can be called: ``ft.platform("h200", host="mine")`` is `foretrace.platforms.platform`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Platform(ModuleType):
    def __call__(self, on: Any = "h200", host: Any = None, fabric: Any = None) -> Any:
        """A platform by name or folder, with the host or the fabric of another one where that is asked for."""
        # By name: fitting, which it may need, is built on this package.
        return import_module("foretrace.platforms").platform(on, host, fabric)


sys.modules[__name__].__class__ = _Platform
