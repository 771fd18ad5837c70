"""A replay ends with the process that started it, even where that was killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

PARENT = "FORETRACE_PARENT"
"""Environment variable that names the process to end with. Who runs a benchmark by hand sets none."""
PR_SET_PDEATHSIG = 1
"""Linux's prctl option that has the kernel send a signal when the parent ends."""
POLL_S = 1.0
"""How often the parent is looked for where the kernel does not tell."""


def end_with_parent() -> None:
    """End this process as soon as the one that the environment names has ended. Its own children are told nothing."""
    told = os.environ.pop(PARENT, "")
    if not told.isdecimal():
        return
    parent, direct = int(told), os.getppid()
    if parent == direct and _kernel_ends_this():
        if os.getppid() != direct:  # it ended before the kernel knew
            os._exit(1)
        return
    threading.Thread(target=_end_after, args=(parent, direct), daemon=True).start()


def _kernel_ends_this() -> bool:
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _end_after(parent: int, direct: int) -> None:
    while os.getppid() == direct and _is_alive(parent):
        time.sleep(POLL_S)
    os._exit(1)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's, and so alive
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):  # no /proc
        return True
