"""Recording a script from outside: run its command with the recorder attached, no change to the script.

Child processes find ``sitecustomize`` in a folder put first on their path; it waits for torch to be imported and
then listens to the optimizers. It reaches every process the command starts, torchrun's workers included.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from foretrace.graph import ForetraceError
from foretrace.record.schedule import Schedule
from foretrace.record.session import finish, open_session, prepare, why_unfinished

ORDERS = "FORETRACE_RECORD"
"""Environment variable that tells a process what to record."""


def launch(
    command: Sequence[str], out: str | Path, plain: int = 20, profile: int = 3, warmup: int = 5, stop: bool = False
) -> int:
    """Run a command and record the training in it. Returns the command's exit code.

    ``stop`` ends the job once it is recorded; otherwise it trains on to its own end.
    """
    if not command:
        raise ForetraceError("there is no command to record", "Put it after --: foretrace record --out DIR -- python …")
    out, parts = prepare(out)
    orders = {"out": str(parts), "plain": plain, "profile": profile, "warmup": warmup, "stop": stop}
    injected = str(Path(__file__).parent / "inject")
    path = os.pathsep.join(p for p in (injected, os.environ.get("PYTHONPATH", "")) if p)
    environment = {**os.environ, "PYTHONPATH": path, ORDERS: json.dumps(orders)}
    try:
        code = _run(command, environment)
        reasons = [note.read_text() for note in sorted(parts.glob("*.unfinished"))]
        if code:
            reasons.append(f"the command ended with exit code {code}")
        finish(out, parts, reasons, {"by": "foretrace record", "command": list(command)})
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return code


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    try:
        return subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        raise ForetraceError(f"{command[0]} can't be run ({error.strerror})", "Check the command after --.") from None


def attach() -> None:
    """In a process of the recorded job: record it as soon as it imports torch."""
    orders = json.loads(os.environ[ORDERS])
    if "torch" in sys.modules:
        _begin(orders)
    else:
        sys.meta_path.insert(0, _AfterTorch(orders))


def _begin(orders: dict[str, Any]) -> None:
    schedule = Schedule(orders["warmup"], orders["plain"], orders["profile"])
    session = open_session(Path(orders["out"]), schedule, _stop if orders["stop"] else lambda: None)

    def leaving() -> None:
        started = session.recorder.missing_steps < len(schedule.steps)
        why = why_unfinished(session.recorder)
        if why and started and Path(orders["out"]).is_dir():
            (Path(orders["out"]) / f"{os.getpid()}.unfinished").write_text(why)

    atexit.register(leaving)


def _stop() -> None:
    print("foretrace: recorded, ending the job as asked", file=sys.stderr)
    raise SystemExit(0)


class _AfterTorch(MetaPathFinder):
    """Lets torch be imported as usual and begins to record right after."""

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
    def __init__(self, loader: Loader, orders: dict[str, Any]) -> None:
        self._loader, self._orders = loader, orders

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _begin(self._orders)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
