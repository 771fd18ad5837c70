"""Recording a script from outside: run its command with the recorder attached, no change to the script.

Child processes find ``sitecustomize`` in a folder put first on their path; it waits for torch to be imported and
then listens to the optimizers. It reaches every process the command starts, torchrun's workers included.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from foretrace.graph import ForetraceError
from foretrace.record.attach import ORDERS
from foretrace.record.session import finish, prepare


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
        job = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise ForetraceError(f"{command[0]} can't be run ({error.strerror})", "Check the command after --.") from None
    while job.returncode is None:
        with suppress(KeyboardInterrupt):  # the job got it too, and may want to save something before it ends
            job.wait()
    return job.returncode if job.returncode >= 0 else 128 - job.returncode  # a signal, as shells tell it
