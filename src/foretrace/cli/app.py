"""The command line: its verbs, and what happens when something goes wrong."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer

from foretrace import __version__
from foretrace._numpy_threads import load_numpy
from foretrace.cli.main import INTERRUPTED, reader_left

BAD_INPUT, BUG = 2, 70
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises where words or options make no sense; it does not say so under a name of its own."""

VERBS = (
    "record", "show", "predict", "whatif", "sweep", "check", "diff", "export", "benchmark", "replay", "shard",
    "calibrate", "ui", "platform",
)  # fmt: skip
"""As help lists them. Each has a module of its name, and in that a function, or an app of its own, of its name."""
SETTINGS = {"record": {"allow_interspersed_args": False}}
"""Of verbs whose words are not all theirs: behind the first one that is no option, all belong to the recorded job."""


HELP = ("-h", "--help")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""How a system says that there is no room: what was printed may go to a file."""


def print_version(wanted: bool) -> None:
    """Print it and leave."""
    if wanted:
        print(f"foretrace {__version__}")
        raise typer.Exit


def foretrace(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Record one training step, read anyone's trace, and see where the time goes."""


def app_of(verbs: Iterable[str]) -> typer.Typer:
    """The command line with these verbs.

    >>> [command.callback.__name__ for command in app_of(["show", "diff"]).registered_commands]
    ['show', 'diff']
    """
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": [*HELP]},
    )
    app.callback()(foretrace)
    for verb in verbs:
        found = getattr(import_module(f"foretrace.cli.{verb}"), verb)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=verb)
        else:
            app.command(context_settings=SETTINGS.get(verb))(found)
    return app


def run() -> int:
    """Do what the words of the call say: a bad input ends in one line and exit code 2, never in a traceback.

    Returns
    -------
    The exit code.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no bars shows question marks
    # To make out the options of all verbs takes longer than many a verb: only the one that is called is looked at.
    words = asked(sys.argv[1:])
    called = [word for word in words[:1] if word in VERBS]
    if called and not set(words) & set(HELP):
        load_numpy()
    try:
        code = app_of(called or VERBS)(words, prog_name="foretrace", standalone_mode=False) or 0
        sys.stdout.flush()
        return int(code)
    except UsageError as error:
        misused(error)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError) and reader_left():
            return 0
        raise
    except Exception as error:
        # Imported here because it brings numpy along, which --help does without.
        from foretrace.graph import ForetraceError

        if isinstance(error, ForetraceError):
            complain(error.what, error.advice)
            return BAD_INPUT
        if isinstance(error, BrokenPipeError) and reader_left():
            return 0
        if isinstance(error, OSError) and error.errno in FULL:
            complain(f"nothing more can be written ({error.strerror})", "Make room where the output goes.")
            return BAD_INPUT
        if os.environ.get("FORETRACE_DEBUG"):
            raise
        what = f"this is a bug of Foretrace, {type(error).__name__}: {error}"
        complain(what, "Please report it with the traceback that FORETRACE_DEBUG=1 shows.")
        return BUG


def asked(words: list[str]) -> list[str]:
    """The words of a call; `help` and what follows it ask for the help of that.

    >>> asked(["help", "predict"]), asked(["help"]), asked(["show", "help"])
    (['predict', '--help'], ['--help'], ['show', 'help'])
    """
    return [*words[1:], "--help"] if words[:1] == ["help"] else words


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
    from foretrace.report.formatting import printable

    parts = [part if part.endswith("?") else f"{part.rstrip('.')}." for part in map(printable, (what, advice)) if part]
    text = " ".join(parts)
    if sys.stderr.isatty():
        from textwrap import fill

        indent = " " * len("foretrace: ")
        width = shutil.get_terminal_size().columns
        folded = (fill(part, width, initial_indent=indent, subsequent_indent=indent) for part in parts)
        text = "\n".join(folded).lstrip()
    with suppress(OSError):  # where that is full too, the exit code has to do
        print(f"foretrace: {text}", file=sys.stderr, flush=True)
