"""The entry point of `foretrace`: start without garbage collection, exit without cleaning up."""

from __future__ import annotations

import atexit
import gc
import os
import select
import sys
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended."""

PRELOADED = ("foretrace.report.step", "numpy.random")
"""Modules that printing a prediction takes, imported while a script is sketched."""


def main() -> NoReturn:
    """Run the command line.

    A subcommand makes its objects once and ends: garbage collection would take a tenth of its time.
    """
    gc.disable()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - as long as we run
    try:
        if will_sketch(sys.argv[1:]):
            from foretrace.record.sketch_process import start_ahead

            start_ahead(() if "--json" in sys.argv else PRELOADED)
        from foretrace.cli.app import run

        code = run()
    except KeyboardInterrupt:  # before it had begun
        code = INTERRUPTED
    exit_fast(code)


def will_sketch(arguments: list[str]) -> bool:
    """Whether the arguments name a script to sketch: then PyTorch is imported in the background.

    >>> will_sketch(["predict", "train.py:build", "--on", "h200"]), will_sketch(["predict", "run"])
    (True, False)
    """
    helps = any(one in ("--help", "-h") for one in arguments)
    scripts = (one.endswith(".py") or ".py:" in one for one in arguments[1:])
    quiet = "--quiet" in arguments or "-q" in arguments  # what the script prints is then not shown
    sketches = arguments[:1] in ([name] for name in ("predict", "whatif", "sweep", "advise", "gate"))
    return sketches and not (helps or quiet) and any(scripts)


def stdout_closed() -> bool:
    """Whether the reader of standard output is gone, as after `| head`.

    Rich replaces it by ``/dev/null`` when it notices.
    """
    stdout = select.poll()
    stdout.register(1, 0)
    null = os.stat(os.devnull).st_rdev  # noqa: PTH116 - before pathlib is needed
    with suppress(OSError):
        return any(event & select.POLLERR for _, event in stdout.poll(0)) or os.fstat(1).st_rdev == null
    return False


def exit_fast(code: int) -> NoReturn:
    """End the process without freeing its objects, which with PyTorch takes a third of a second.

    Under a profiler or a debugger it ends as usual.
    """
    if sys.getprofile() or sys.gettrace():
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader is gone
            stream.flush()
    os._exit(code)
