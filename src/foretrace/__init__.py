"""Foretrace: watch one training step; predict, replay and explain it anywhere.

>>> import foretrace as ft
>>> "observe" in dir(ft)
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrace import edits as edits
    from foretrace.analysis.compare import compare_steps as difference
    from foretrace.api import load as load
    from foretrace.api import observe as observe
    from foretrace.api import predict as predict
    from foretrace.api import scaling as scaling
    from foretrace.calibrating import calibrate_host as calibrate_host
    from foretrace.graph import ForetraceError as ForetraceError
    from foretrace.platforms import platform as platform
    from foretrace.questions.sweeping import sweep as sweep
    from foretrace.questions.whatifs import whatif as whatif
    from foretrace.record.session import record as record
    from foretrace.record.session import recording as recording
    from foretrace.record.session import step as step
    from foretrace.record.sketch import sketch as sketch
    from foretrace.replaying import benchmark as benchmark
    from foretrace.replaying import replay as replay
    from foretrace.report.notebook import as_html as as_html
    from foretrace.sharding.planner import shard as shard
    from foretrace.transforms.parallel.parallelize import parallelize as parallelize

__version__ = "0.1.0"

_HOME = {
    "ForetraceError": "foretrace.errors",
    "as_html": "foretrace.report.notebook",
    "benchmark": "foretrace.replaying",
    "calibrate_host": "foretrace.calibrating",
    "load": "foretrace.api",
    "observe": "foretrace.api",
    "difference": "foretrace.analysis.compare",
    "parallelize": "foretrace.transforms.parallel.parallelize",
    "predict": "foretrace.api",
    "recording": "foretrace.record.session",
    "scaling": "foretrace.api",
    "shard": "foretrace.sharding.planner",
    "sketch": "foretrace.record.sketch",
    "step": "foretrace.record.session",
    "sweep": "foretrace.questions.sweeping",
    "whatif": "foretrace.questions.whatifs",
}
"""Where each public name lives: imported when first asked for, so that `import foretrace` costs nothing."""

__all__ = [
    "ForetraceError", "as_html", "benchmark", "calibrate_host", "difference", "edits", "load", "observe", "parallelize",
    "platform", "predict", "record", "recording", "replay", "scaling", "shard", "sketch", "step", "sweep", "whatif",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("edits", "platform", "record", "replay"):
        return import_module(f"foretrace.{name}")  # but for edits, a package that can be called
    if name not in _HOME:
        raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
    if name == "difference":
        return import_module("foretrace.analysis.compare").compare_steps
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
