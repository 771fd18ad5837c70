"""Where `foretrace` starts, with the garbage collector out of the way, and ends."""

from __future__ import annotations

import atexit
import gc
import os
import select
import sys
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130
"""What a shell is told of a program that Ctrl-C ended."""

SHOWN_BY = ("foretrace.report.step", "numpy.random")
"""Modules that a forecast on the terminal takes, imported while a script is sketched."""


def main() -> NoReturn:
    """Run the command line.

    A verb makes its objects once and ends: to look through them for garbage again and again would take a tenth of its
    time.
    """
    gc.disable()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - as long as we run
    try:
        if will_sketch(sys.argv[1:]):
            from foretrace.record.sketch_process import start_ahead

            start_ahead(() if "--json" in sys.argv else SHOWN_BY)
        from foretrace.cli.app import run

        code = run()
    except KeyboardInterrupt:  # before it had begun
        code = INTERRUPTED
    leave(code)


def will_sketch(words: list[str]) -> bool:
    """Whether the words of a call name a script to sketch: PyTorch, which that takes, is imported meanwhile.

    >>> will_sketch(["predict", "train.py:build", "--on", "h200"]), will_sketch(["predict", "run"])
    (True, False)
    """
    asks = any(word in ("--help", "-h") for word in words)
    scripts = (word.endswith(".py") or ".py:" in word for word in words[1:])
    return words[:1] in (["predict"], ["whatif"]) and not asks and any(scripts)


def reader_left() -> bool:
    """Whether nobody reads standard output any more, as after `| head`.

    What draws tables has put ``/dev/null`` in its place when it noticed.
    """
    asked = select.poll()
    asked.register(1, 0)
    with suppress(OSError):
        return any(event & select.POLLERR for _, event in asked.poll(0)) or os.fstat(1).st_rdev == _null()
    return False


def _null() -> int:
    return os.stat(os.devnull).st_rdev  # noqa: PTH116 - before pathlib is needed


def leave(code: int) -> NoReturn:
    """End the process without taking apart all that it has made, which with PyTorch takes a third of a second.

    Who watches it, as a profiler does, gets to see the usual end.
    """
    if sys.getprofile() or sys.gettrace():
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads on
            stream.flush()
    os._exit(code)
