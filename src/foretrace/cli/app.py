"""The command line: its subcommands, and how errors are reported."""

from __future__ import annotations

import errno
import functools
import inspect
import io
import math
import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import nullcontext, redirect_stderr, suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from foretrace import __version__
from foretrace._numpy_threads import load_numpy
from foretrace.cli.main import INTERRUPTED, stdout_closed
from foretrace.cli.options import Csv, Json, Quiet

BAD_INPUT, BUG = 2, 70
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer's exception for wrong arguments, which it does not export."""

SUBCOMMANDS = (
    "record", "show", "predict", "whatif", "sweep", "advise", "check", "check-table", "diff", "gate", "export",
    "benchmark", "replay", "shard", "calibrate", "ui", "platform", "fleet",
)  # fmt: skip
"""In the order of the help. Each is a module with a function, or an app of its own, of that name, with ``_``."""
SETTINGS = {"record": {"allow_interspersed_args": False}}
"""From its first positional argument on, the arguments of `record` belong to the recorded job."""

HELP = ("-h", "--help")
SYNONYMS = {
    **dict.fromkeys(("--gpu", "--device", "--platform", "--machine", "--target"), "--on"),
    **dict.fromkeys(("--gpus", "--num-gpus", "--ngpus", "--nproc-per-node", "--world-size"), "--world"),
    **dict.fromkeys(("--output", "-o"), "--out"),
}
"""What other tools call our options."""
UNUSABLE_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Standard output may be a file."""
MALLOC_OPTIONS = {-1: 2**31 - 1, -3: 32 << 20, -2: 8 << 20}
"""Options of ``mallopt(3)``: the heap is never trimmed, large blocks are part of it (the highest threshold for others
that there is), and it grows by megabytes."""


def print_version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        print(f"foretrace {__version__}")
        raise typer.Exit


def foretrace(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """See where the time of a training step goes, and predict the step on other machines."""


def make_app(subcommands: Iterable[str]) -> typer.Typer:
    """The command line with these subcommands.

    >>> [command.callback.__name__ for command in make_app(["show", "diff"]).registered_commands]
    ['show', 'diff']
    """
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": [*HELP]},
    )
    app.callback()(foretrace)
    for name in subcommands:
        module = name.replace("-", "_")
        found = getattr(import_module(f"foretrace.cli.{module}"), module)
        if isinstance(found, typer.Typer):
            for command in found.registered_commands:
                command.callback = with_output_options(command.callback)
            app.add_typer(found, name=name)
        else:
            app.command(name, context_settings=SETTINGS.get(name))(with_output_options(found))
    return app


def with_output_options(function: Any) -> Any:
    """A subcommand with ``--quiet``; and with ``--json`` and ``--csv`` in the place of its parameter ``format``.

    >>> def check(format: str = "tables") -> None: ...
    >>> list(inspect.signature(with_output_options(check)).parameters)
    ['json', 'csv', 'quiet']
    """
    if hasattr(function, "__wrapped__"):
        return function
    hints = get_type_hints(function, include_extras=True)
    before = inspect.signature(function).parameters
    prints = "format" in before
    options = {"csv": Csv, "quiet": Quiet} if prints else {"quiet": Quiet}
    annotated = (value.replace(annotation=_with_metavar(hints[name])) for name, value in before.items())
    given = [
        one.replace(name="json", default=False, annotation=Json) if one.name == "format" else one for one in annotated
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, keyword, default=False, annotation=kind) for name, kind in options.items()]

    @functools.wraps(function)
    def call(*args: Any, quiet: bool, json: bool = False, csv: bool = False, **kwargs: Any) -> Any:
        for name, value in kwargs.items():
            if isinstance(value, float) and math.isnan(value):
                raise typer.BadParameter("nan is no number", param_hint=f"--{name.replace('_', '-')}")
        if csv and json:
            raise UsageError("--csv and --json are two formats: give one of them")
        if prints:
            kwargs["format"] = "csv" if csv else "json" if json else "tables"
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere) if quiet else nullcontext():  # noqa: PTH123
            return function(*args, **kwargs)

    call.__signature__ = inspect.Signature([*given, *added])  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in (*given, *added)}
    return call


METAVARS = {int: "N", float: "NUMBER", str: "NAME", Path: "PATH"}
"""What the help writes for the value of an option, where the option does not say: typer's own is ``<int range>``."""


def _with_metavar(kind: Any) -> Any:
    value, *about = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    types = {part for one in (value, *get_args(value)) for part in (one, *get_args(one))}
    word = next((word for part, word in METAVARS.items() if part in types), None)
    for one in about:
        if isinstance(one, type(typer.Option())) and one.metavar is None:
            one.metavar = word
    return kind


def run() -> int:
    """Run the subcommand of the arguments, and give the exit code: 2, and one line, for a bad input; no traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the characters of bars shows question marks
    # Parsing the options of all subcommands takes longer than many of them: only the one that is called is imported.
    arguments = expand_help(sys.argv[1:])
    called = [name for name in arguments[:1] if name in SUBCOMMANDS]
    if called and not set(arguments) & set(HELP):
        load_numpy()
        keep_freed_memory()
    try:
        code = make_app(called or SUBCOMMANDS)(arguments, prog_name="foretrace", standalone_mode=False) or 0
        sys.stdout.flush()
        return int(code)
    except UsageError as error:
        print_usage_error(error)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError) and stdout_closed():
            return 0
        raise
    except Exception as error:
        if isinstance(error, BrokenPipeError) and stdout_closed():
            return 0
        if explain(error):
            return BAD_INPUT
        if os.environ.get("FORETRACE_DEBUG"):
            raise
        what = f"this is a bug of Foretrace, {type(error).__name__}: {error}"
        print_error(what, "Please report it with the traceback that FORETRACE_DEBUG=1 shows.")
        return BUG


def keep_freed_memory() -> None:
    """Have the C library reuse freed memory in place of returning it: page faults cost a twentieth of a command."""
    import ctypes  # which numpy has imported

    with suppress(AttributeError, OSError, TypeError):  # only glibc has this
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOC_OPTIONS.items():
            mallopt(option, value)


def explain(error: Exception) -> bool:
    """Print what is wrong and what to do, where it is no bug. Returns whether it is none."""
    from foretrace.errors import ForetraceError

    if isinstance(error, ForetraceError):
        from foretrace.cli.options import print_frames

        print_frames(error)
        print_error(error.what, error.advice)
    elif isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torch":
        print_error("this needs PyTorch, which is not installed", "Install it: pip install torch")
    elif isinstance(error, OSError) and error.errno in DISK_FULL:
        print_error(f"nothing more can be written ({error.strerror})", "Free some space where the output goes.")
    elif isinstance(error, OSError) and error.errno in UNUSABLE_PATH and isinstance(error.filename, str):
        print_error(f"{error.filename[:200]} can't be read or written ({error.strerror})", "Check the path")
    else:
        return False
    return True


def expand_help(arguments: list[str]) -> list[str]:
    """The arguments, with ``help COMMAND`` written as ``COMMAND --help``.

    >>> expand_help(["help", "predict"]), expand_help(["help"]), expand_help(["show", "help"])
    (['predict', '--help'], ['--help'], ['show', 'help'])
    """
    return [*arguments[1:], "--help"] if arguments[:1] == ["help"] else arguments


def print_usage_error(error: Any) -> None:
    """Print what is wrong with the arguments like any other error; without arguments, the help."""
    text = error.format_message()
    if text.startswith("Usage:"):
        print(text, file=sys.stderr)
    else:
        named = next((word for word in sys.argv[1:2] if word in SUBCOMMANDS), "")
        command = error.ctx.command_path if error.ctx else f"foretrace {named}".rstrip()
        advice = f"`{command} --help` shows what it takes"
        meant = next((SYNONYMS[word.strip(":,")] for word in text.split() if word.strip(":,") in SYNONYMS), None)
        if meant and text.startswith("No such option"):
            text = f"{text.partition(' (')[0].rstrip('.')}. Did you mean {meant}?"
        if text.startswith("No such option") and any(word.endswith(".py") for word in sys.argv[2:]):
            advice += f"; options of a script come after --, as in {command} -- python train.py --batch 32"
        print_error(f"{text[:1].lower()}{text[1:]}", advice)


def print_error(what: str, advice: str) -> None:
    """Print on stderr what was wrong and what to do: wrapped on a terminal, else one line."""
    from foretrace.report.formatting import printable

    parts = [part if part.endswith("?") else f"{part.rstrip('.')}." for part in map(printable, (what, advice)) if part]
    text = " ".join(parts)
    if sys.stderr.isatty():
        from textwrap import fill

        indent = " " * len("foretrace: ")
        width = shutil.get_terminal_size().columns
        folded = (fill(part, width, initial_indent=indent, subsequent_indent=indent) for part in parts)
        text = "\n".join(folded).lstrip()
    with suppress(OSError):  # if stderr is full too, the exit code has to do
        print(f"foretrace: {text}", file=sys.stderr, flush=True)
