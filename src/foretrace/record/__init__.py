"""Watching a live job, sketching one that never runs, and recordings on disk.

The package itself can be called: ``ft.record(step_fn, out="run")`` is `foretrace.record.session.record`.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class _Record(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Path:
        from foretrace.record.session import record

        return record(*args, **kwargs)


sys.modules[__name__].__class__ = _Record
