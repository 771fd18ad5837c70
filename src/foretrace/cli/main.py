"""Where `foretrace` starts, with the garbage collector out of the way, and ends."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130
"""What a shell is told of a program that Ctrl-C ended."""


def main() -> NoReturn:
    """Run the command line.

    A verb makes its objects once and ends: to look through them for garbage again and again would take a tenth of its
    time.
    """
    gc.disable()
    try:
        from foretrace.cli.app import run

        code = run()
    except KeyboardInterrupt:  # before it had begun
        code = INTERRUPTED
    leave(code)


def leave(code: int) -> NoReturn:
    """End the process without taking apart all that it has made, which with PyTorch takes a third of a second.

    Who watches it, as a profiler does, gets to see the usual end.
    """
    if sys.getprofile() or sys.gettrace():
        sys.exit(code)
    atexit._run_exitfuncs()
    with suppress(OSError):  # nobody reads on
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
