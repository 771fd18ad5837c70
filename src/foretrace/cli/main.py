"""The command line: its verbs, and what happens when something goes wrong."""

from __future__ import annotations

import gc
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from foretrace import __version__
from foretrace.cli.benchmark import benchmark
from foretrace.cli.calibrate import calibrate
from foretrace.cli.check import check
from foretrace.cli.diff import diff
from foretrace.cli.export import export
from foretrace.cli.platform import platform
from foretrace.cli.predict import predict
from foretrace.cli.record import record
from foretrace.cli.replay import replay
from foretrace.cli.shard import shard
from foretrace.cli.show import show
from foretrace.cli.sweep import sweep
from foretrace.cli.ui import ui
from foretrace.cli.whatif import whatif
from foretrace.report.names import printable

BAD_INPUT, BUG, INTERRUPTED = 2, 70, 130
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises where words or options make no sense; it does not say so under a name of its own."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command(context_settings={"allow_interspersed_args": False})(record)
app.command()(show)
app.command()(predict)
app.command()(whatif)
app.command()(sweep)
app.command()(check)
app.command()(diff)
app.command()(export)
app.command()(benchmark)
app.command()(replay)
app.command()(shard)
app.command()(calibrate)
app.command()(ui)
app.add_typer(platform, name="platform")


def print_version(wanted: bool) -> None:
    """Print it and leave."""
    if wanted:
        print(f"foretrace {__version__}")
        raise typer.Exit


@app.callback()
def foretrace(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Record one training step, read anyone's trace, and see where the time goes."""


def main() -> None:
    """Run the command line: a bad input ends in one line and exit code 2, never in a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no bars shows question marks
    try:
        with uncollected():
            code = app(prog_name="foretrace", standalone_mode=False)
        sys.exit(code)
    except UsageError as error:
        misused(error)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        # Imported here because it brings numpy along, which --help does without.
        from foretrace.graph import ForetraceError

        if isinstance(error, ForetraceError):
            complain(error.what, error.advice)
            sys.exit(BAD_INPUT)
        if os.environ.get("FORETRACE_DEBUG"):
            raise
        what = f"this is a bug of Foretrace, {type(error).__name__}: {error}"
        complain(what, "Please report it with the traceback that FORETRACE_DEBUG=1 shows.")
        sys.exit(BUG)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python's garbage collector away from a verb: it makes its objects once and ends.

    Looking through them again and again, and once more at the end, would take a tenth of its time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def misused(error: Any) -> None:
    """Say what is wrong with the words of a call as any other error is said; without any words, the help."""
    text = error.format_message()
    if text.startswith("Usage:"):
        print(text, file=sys.stderr)
    else:
        verb = error.ctx.command_path if error.ctx else "foretrace"
        complain(f"{text[:1].lower()}{text[1:]}", f"`{verb} --help` shows what it takes")


def complain(what: str, advice: str) -> None:
    """Say on stderr what was wrong and what to do: folded for a reader, one line for a program."""
    parts = [f"{printable(part).rstrip('.')}." for part in (what, advice) if part]
    text = " ".join(parts)
    if sys.stderr.isatty():
        indent = " " * len("foretrace: ")
        width = shutil.get_terminal_size().columns
        folded = (textwrap.fill(p, width, initial_indent=indent, subsequent_indent=indent) for p in parts)
        text = "\n".join(folded).lstrip()
    print(f"foretrace: {text}", file=sys.stderr)
