"""Attaching the recorder in a process of a recorded job, once that process imports torch.

Imports only the standard library until then: a script may set things up before it loads numpy or torch.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

ORDERS = "FORETRACE_RECORD"
"""Environment variable with the recording options of a process, as JSON."""
ATTACHED, TORCH, UNFINISHED = ".attached", ".torch", ".unfinished"
"""Suffixes of notes that a process leaves: it was reached, it imported torch, its recording is incomplete."""


def attach() -> None:
    """Record this process as soon as it imports torch."""
    orders = json.loads(os.environ[ORDERS])
    _note(orders, ATTACHED)
    if "torch" in sys.modules:
        begin(orders)
    else:
        sys.meta_path.insert(0, _AfterTorch(orders))


def begin(orders: dict[str, Any]) -> None:
    """Record this process from its next step on; at exit, note what is missing."""
    from foretrace.record.watch.compiled_calls import SIGNALS
    from foretrace.record.watch.schedule import Schedule
    from foretrace.record.watch.session import note_of, open_session, why_unfinished

    _note(orders, TORCH)
    out, schedule = Path(orders["out"]), Schedule(orders["warmup"], orders["plain"], orders["profile"])
    session = open_session(out, schedule, _stop if orders["stop"] else lambda: None)

    def leaving() -> None:
        if why_unfinished(session.recorder) and (session.recorder.taken or SIGNALS.lost or SIGNALS.optimizer):
            _note(orders, UNFINISHED, note_of(session.recorder))
        session.close()
        session.recorder.release()  # a profiler that still runs at exit crashes the interpreter

    atexit.register(leaving)


def _note(orders: dict[str, Any], kind: str, text: str = "") -> None:
    """Leave a note for the launcher, if its folder still exists."""
    with suppress(OSError):
        Path(orders["out"], f"{os.getpid()}{kind}").write_text(text)


def _stop() -> None:
    print("foretrace: ending the job, as asked", file=sys.stderr)
    raise SystemExit(0)


class _AfterTorch(MetaPathFinder):
    """Import hook that begins to record right after torch is imported."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader = _Beginning(spec.loader, self._orders)
        return spec


class _Beginning(Loader):
    """Torch's loader, which begins to record once torch is loaded."""

    def __init__(self, loader: Loader, orders: dict[str, Any]) -> None:
        self._loader, self._orders = loader, orders

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            begin(self._orders)
        except Exception as error:  # the job must run whatever happens to its recorder
            print(f"foretrace: can't record this process ({error})", file=sys.stderr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
