"""Watching a live job, sketching one that never runs, and recordings on disk.

The package itself can be called: ``ft.record(step_fn, out="run")`` is `foretrace.record.session.record`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


class _Record(ModuleType):
    def __call__(
        self, step_fn: Callable[[], Any], out: str | Path, plain: int = 20, profile: int = 3, warmup: int = 5
    ) -> Path:
        """Record a step function: call it as often as the recording needs, and give its folder."""
        from foretrace.record.session import record

        return record(step_fn, out, plain, profile, warmup)


sys.modules[__name__].__class__ = _Record
