"""Processes of a benchmark: starts its ranks on this machine, and ends with the process that started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import PARENT_VARIABLE
from .files import read_json

GRACE_S = 10.0
"""Seconds that the other ranks may go on once one has failed."""


class Job:
    """Ranks and process groups of a benchmark, from its ``ranks.json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = read_json(folder / "ranks.json", ("ranks", "groups"))

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.facts["ranks"])

    def files(self, rank: int) -> dict[str, Path]:
        """Paths of a rank's files; ranks share files with the same content."""
        return {name: self.folder / place / name for name, place in self.facts["ranks"][rank].items()}


def read_job(folder: Path) -> Job | None:
    """The job in a folder; None where it holds a single rank."""
    return Job(folder) if (folder / "ranks.json").is_file() else None


def is_rank_process() -> bool:
    """Whether this process is one of several that torchrun, or `launch`, has started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(program: Sequence[str], world: int) -> int:
    """Start a Python program once per rank, on this machine; returns the exit code of the first that failed, or 0.

    Prints the standard error of that rank only; of rank 0 if none failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common[PARENT_VARIABLE] = os.getpid()
    ranks: list[subprocess.Popen[bytes]] = []
    with ExitStack() as opened:
        errors = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(world)]
        for rank in range(world):
            variables = {name: str(value) for name, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()}
            shown = None if rank == 0 else subprocess.DEVNULL
            command, variables = [sys.executable, *program], {**os.environ, **variables}
            ranks.append(subprocess.Popen(command, env=variables, stdout=shown, stderr=errors[rank]))
        failed = _first_failure(ranks)
        errors[failed or 0].seek(0)
        sys.stderr.write(errors[failed or 0].read().decode(errors="replace"))
    if failed is None:
        return 0
    code = int(ranks[failed].returncode)
    if code < 0:  # it could not report anything itself
        sys.stderr.write(f"run.py: rank {failed} was ended by {signal.Signals(-code).name}\n")
    return max(code, 1)


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all ranks, ending the others some time after one has failed. Returns that rank, or None."""
    failed, since = None, 0.0
    try:
        while any(rank.poll() is None for rank in ranks):
            if failed is None:
                failed, since = _failed(ranks), time.monotonic()
            elif time.monotonic() - since > GRACE_S:
                break
            time.sleep(0.02)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return _failed(ranks) if failed is None else failed


def _failed(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    return next((number for number, rank in enumerate(ranks) if rank.poll()), None)


PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl: the kernel sends a signal when the parent ends."""
POLL_S = 1.0
"""Seconds between checks for the parent where the kernel sends no signal."""


def end_with_parent() -> None:
    """End this process as soon as the one that the environment names has ended. Children don't inherit the variable."""
    named = os.environ.pop(PARENT_VARIABLE, "")
    if not named.isdecimal():
        return
    parent, direct = int(named), os.getppid()
    if parent == direct and _kernel_ends_this():
        if os.getppid() != direct:  # it ended before the kernel knew
            os._exit(1)
        return

    def end_after() -> None:
        while os.getppid() == direct and _is_alive(parent):
            time.sleep(POLL_S)
        os._exit(1)

    threading.Thread(target=end_after, daemon=True).start()


def _kernel_ends_this() -> bool:
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user, and so alive
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):  # no /proc
        return True
