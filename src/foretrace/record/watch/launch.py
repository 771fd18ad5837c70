"""The launcher of `foretrace record`: runs a command with the recorder attached, with no change to the script.

Child processes find ``sitecustomize`` in a folder that is put first on their path; it waits for torch to be imported
and then listens to the optimizers. It reaches every process that the command starts, torchrun's workers included.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from foretrace.graph import ForetraceError
from foretrace.record.watch.attach import ATTACHED, ORDERS, TORCH
from foretrace.record.watch.session import OutputFolder, claim_output, unfinished


def launch(
    command: Sequence[str], out: str | Path, plain: int = 20, profile: int = 3, warmup: int = 5, stop: bool = False
) -> int:
    """Run a command and record its training. Returns the command's exit code, whether or not the recording succeeded.

    ``stop`` ends the job once it is recorded; otherwise it trains on to its own end.
    """
    if not command:
        raise ForetraceError("there is no command to record", "Put it after --: foretrace record --out DIR -- python …")
    output = claim_output(out, command)
    parts = output.parts
    orders = {"out": str(parts), "plain": plain, "profile": profile, "warmup": warmup, "stop": stop}
    injected = str(Path(__file__).parents[1] / "inject")
    path = os.pathsep.join(p for p in (injected, os.environ.get("PYTHONPATH", "")) if p)
    quiet = {
        "KINETO_LOG_LEVEL": "99",
        **os.environ,
    }  # or the profiler writes its starts and stops into the job's output
    environment = {**quiet, "PYTHONPATH": path, ORDERS: json.dumps(orders)}
    try:
        code = _run(command, environment)
        try:
            _save(output, command, code)
        except ForetraceError as error:  # the job has run, and its exit code stays its own
            print(f"foretrace: {error}", file=sys.stderr)
    finally:
        output.leave()
    return code


def _save(output: OutputFolder, command: Sequence[str], code: int) -> None:
    """Move the recording to its final folder, and print where it is."""
    if not any(output.parts.glob("rank-*")):
        raise _nothing_recorded(output.parts, code)
    lost = unfinished(output.parts)
    try:
        folder = output.finish({"by": "foretrace record", "command": list(command)})
    except OSError as error:
        raise ForetraceError(
            f"nothing was recorded: {output.out} can't be written ({error.strerror})", "Choose another --out."
        ) from None
    if lost:
        print(f"foretrace: not every process was recorded: {lost.why}", file=sys.stderr)
    if folder != output.out:
        print(f"foretrace: another recording into {output.out} came first: this one has its own", file=sys.stderr)
    print(f"foretrace: recorded into {folder}; see it with: foretrace show {shlex.quote(str(folder))}", file=sys.stderr)


def _nothing_recorded(parts: Path, code: int) -> ForetraceError:
    """The error where no rank was recorded: how far the recorder got, and what to do."""
    found = unfinished(parts)
    if code:
        return ForetraceError(
            f"nothing was recorded: the command ended with exit code {code}{f'; {found.why}' if found else ''}",
            "See what it printed, and try it without foretrace.",
        )
    if found:
        return ForetraceError(f"nothing was recorded (the job itself succeeded): {found.why}", found.advice)
    if any(parts.glob(f"*{TORCH}")):
        return ForetraceError(
            "nothing was recorded: no training step was seen",
            "A job without a torch.optim optimizer says where its steps end with foretrace.step().",
        )
    if any(parts.glob(f"*{ATTACHED}")):
        return ForetraceError("nothing was recorded: no process imported torch", "Check the command after --.")
    return ForetraceError(
        "nothing was recorded: the recorder reached no Python process of the command",
        "It comes in through PYTHONPATH: leave that as it is (no python -E or -I, no clean environment).",
    )


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    try:
        job = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise ForetraceError(f"{command[0]} can't be run ({error.strerror})", "Check the command after --.") from None
    with _passing_on_sigterm(job):
        while job.returncode is None:
            with suppress(KeyboardInterrupt):  # the job got it too, and may save something before it ends
                job.wait()
    return job.returncode if job.returncode >= 0 else 128 - job.returncode  # a signal, as shells report it


@contextmanager
def _passing_on_sigterm(job: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass SIGTERM from a scheduler on to the job."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: job.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
