"""Attaching the recorder in a process of a recorded job, once that process imports torch.

Imports only the standard library until then: a script may set things up before it loads numpy or torch.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
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
    after_import("torch", lambda: try_to_begin(orders))


def try_to_begin(orders: dict[str, Any]) -> None:
    """Record this process, which must run whatever happens to its recorder."""
    try:
        begin(orders)
    except Exception as error:
        print(f"foretrace: can't record this process ({error})", file=sys.stderr)


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


def after_import(name: str, work: Callable[[], None]) -> None:
    """Run a function once a module has been imported: now, where it has been.

    >>> after_import("sys", lambda: print("there"))
    there
    """
    if name in sys.modules:
        work()
    else:
        sys.meta_path.insert(0, _AfterImport(name, work))


class _AfterImport(MetaPathFinder):
    """Import hook that runs a function right after a module is imported."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name, self._work = name, work

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._work)
        return spec


class _Loader(Loader):
    """The loader of a module, which runs a function once the module is loaded."""

    def __init__(self, loader: Loader, work: Callable[[], None]) -> None:
        self._loader, self._work = loader, work

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._work()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
