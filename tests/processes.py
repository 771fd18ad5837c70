"""Processes that tests start and end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

PATIENCE_S = 120
"""What a busy machine may take for what takes a second: longer, and something hangs."""


@contextmanager
def started(command: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A process with a group of its own; what is left of the group ends with the test, however that ends."""
    with subprocess.Popen(command, text=True, start_new_session=True, **how) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
