"""Options that subcommands share, parsing of their values, checks of output paths, and the message of long work."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from glob import glob, has_magic
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from foretrace.output import OutputKind
    from foretrace.replay import Choices

DELAY_S = 1.0
"""What takes no longer is not said."""

GIBIBYTE = 1 << 30

What = Annotated[
    list[str],
    typer.Argument(
        metavar="WHAT",
        help="A recording; a trace; a script with make_step; or, after --, the command that starts a script.",
    ),
]


def platform_names(incomplete: str) -> list[str]:
    """The platforms that a shell may complete to.

    >>> platform_names("mi355")
    ['mi355x']
    """
    from foretrace.platform.registry import CPU, device_files, platform_folders

    names = {CPU, *platform_folders(), *device_files()}
    return sorted(name for name in names if name.startswith(incomplete.lower()))


Platform = Annotated[
    str,
    typer.Option(
        metavar="PLATFORM",
        help="A name from `foretrace platform list`, a platform's folder, or a GPU's file.",
        autocompletion=platform_names,
    ),
]
Step = Annotated[str | None, typer.Option(metavar="STEP", help="Which step of a trace, for instance ProfilerStep#3.")]
OtherFabric = Annotated[
    str | None,
    typer.Option(
        metavar="FABRIC", help="Network between the ranks: name of a fabric or a platform, or a fabric's file."
    ),
]
PerNode = Annotated[int | None, typer.Option(min=1, help="Ranks on each node.")]
Parallel = Annotated[
    str | None,
    typer.Option(
        metavar="WAYS", help="Split the step of one rank over many: data=8,tensor=2,pipeline=4,microbatches=16."
    ),
]
StackName = Annotated[
    str,
    typer.Option(
        "--stack",
        metavar="STACK",
        help="The cluster's software: auto, none, a shipped stack's name, or a stack's file.",
    ),
]
BatchWas = Annotated[
    int | None, typer.Option(min=1, help="Recorded batch size, where Foretrace can't find it in the step.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the result, and errors.")]
Html = Annotated[Path | None, typer.Option(help="Write an HTML page to this file.")]
DropGaps = Annotated[
    bool, typer.Option("--drop-gaps", help="Leave out measured host time that no model covers, such as data loading.")
]
Top = Annotated[int, typer.Option(min=1, help="Rows of each table.")]

Phase = Annotated[str | None, typer.Option(help="Only this phase: forward, backward, optimizer, other.")]
Module = Annotated[str | None, typer.Option(help="Only calls of this module, forward and backward: Model.encoder.")]
First = Annotated[
    str | None,
    typer.Option("--from", metavar="OP", help="Begin with the first call of this op; mm#3 means its fourth call."),
]
Last = Annotated[str | None, typer.Option("--to", metavar="OP", help="End with the last call of this op, or mm#3.")]
Only = Annotated[str | None, typer.Option(help="Only calls of this kind: compute, communication, lookup.")]
Without = Annotated[
    list[str] | None, typer.Option(metavar="OP", help="Leave out this op, or a pattern of ops; may be repeated.")
]
Ops = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMESPACE[=PACKAGE]", help="Also call these custom ops; PACKAGE is what to import for them."),
]
Dtype = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Run in another floating type: bf16, fp16, fp32, fp64.")
]
Obfuscate = Annotated[bool, typer.Option("--obfuscate", help="Remove all names but those of ops.")]
Batch = Annotated[
    str | None,
    typer.Option(
        metavar="NEW[/OLD]", help="Another batch size; OLD is the recorded one, where Foretrace can't find it."
    ),
]
Ranks = Annotated[
    int | None, typer.Option(metavar="N", help="Only the first N ranks of a job; process groups get smaller.")
]


def replay_choices(
    phase: str | None, module: str | None, first: str | None, last: str | None, only: str | None,
    without: list[str] | None, ops: list[str] | None, *how: Any,
) -> Choices:  # fmt: skip
    """The part of a step that `benchmark` and `replay` take, and how: the other fields of `Choices`."""
    from foretrace.replay import Choices, Selection, packages

    return Choices(Selection(phase, first, last, only, tuple(without or ()), module), packages(ops or ()), *how)


def rank_numbers(text: str | None) -> list[int] | None:
    """The ranks in a text like 0-2,4; None for no text.

    >>> rank_numbers("0-2,4")
    [0, 1, 2, 4]
    """
    if text is None:
        return None
    from foretrace.graph import MAX_RANKS  # imports numpy, which --help does without

    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise typer.BadParameter(f"{text!r} names no ranks; write them like 0-2,4", param_hint="--ranks")
        if not int(first) <= int(last or first) < MAX_RANKS:
            raise typer.BadParameter(f"{part.strip()!r} is no range of ranks; write it like 0-7", param_hint="--ranks")
        ranks.update(range(int(first), int(last or first) + 1))
    return sorted(ranks)


def with_recorded_batch(change: str, recorded: int | None) -> str:
    """A change of the batch size with the recorded one, where it does not state that itself.

    >>> with_recorded_batch("batch=16", 8), with_recorded_batch("batch=16/4", 8), with_recorded_batch("seq=16", 8)
    ('batch=16/8', 'batch=16/4', 'seq=16')
    """
    name, _, value = change.partition("=")
    return f"{change}/{recorded}" if recorded and name.strip() == "batch" and "/" not in value else change


def what_of(words: list[str]) -> str:
    """The step that words of the command line name: one path, or the command that starts a script.

    >>> what_of(["run"]), what_of(["python", "train.py", "--name", "a b"])
    ('run', "python train.py --name 'a b'")
    """
    import shlex

    from foretrace.record.command import is_launcher, parse_command

    if len(words) == 1 and not (is_launcher(words[0]) and not Path(words[0]).exists()):
        return words[0]

    command = shlex.join(words)
    if not parse_command(command).program:
        _refuse_more_words(words)
    return command


def _refuse_more_words(words: list[str]) -> None:
    """Refuse words behind a script with a step function that are not after ``--``: they are no arguments of it."""
    after = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    if more := words[1 : len(words) - len(after)]:
        from foretrace.errors import ForetraceError

        raise ForetraceError(
            f"{' '.join(more)} after {words[0]} is not understood",
            f"Arguments of a script come after --, as in {words[0]} -- --batch 32; several values of a setting have "
            "commas, as in --set batch=1024,4096; and one script is asked for at a time.",
        )


def memory_limit(gibibytes: float | None) -> int | None:
    """The bytes of ``--memory``.

    >>> memory_limit(0.5)
    536870912
    """
    if gibibytes is None:
        return None
    if not 0 < gibibytes < float("inf"):
        raise typer.BadParameter(f"nothing fits in {gibibytes:g} GiB; write it like 80", param_hint="--memory")
    return round(gibibytes * GIBIBYTE)


def print_frames(error: Exception) -> None:
    """Print where in a user's script an error was raised, if it was there."""
    from foretrace.report.formatting import printable

    for line in getattr(error, "frames", "").splitlines():
        print(printable(line), file=sys.stderr)


class Output(NamedTuple):
    """A path that a subcommand is to write, the option that names it, and what is written there."""

    option: str
    path: Path
    kind: OutputKind | None
    """None for what is added to, not replaced."""


def check_outputs(inputs: Iterable[str | Path | None], chakra: Path | None = None, **outputs: Path | None) -> None:
    """Refuse outputs that would harm: inputs, others' files, folders, two outputs in one file.

    Inputs are as the user wrote them: recordings, traces, globs, scripts with or without ``:function``, tables,
    platforms; names that are no paths are passed over. Outputs are replaced where Foretrace wrote them; a sweep's
    points are added to. Where an output is standard output, it has that to itself: tables go to stderr.
    """
    if all(path is None for path in (chakra, *outputs.values())):
        return
    from foretrace.errors import ForetraceError
    from foretrace.files import descriptor_of
    from foretrace.output import (
        BASELINE,
        CHAKRA,
        MARKDOWN,
        PAGE,
        PLAN,
        SNAPSHOT,
        STACK,
        TIMELINE,
        check_output,
        check_writable,
    )

    kinds = {
        "html": PAGE, "trace": TIMELINE, "perfetto": TIMELINE, "plan": PLAN, "points": None, "memory_viz": SNAPSHOT,
        "baseline": BASELINE, "markdown": MARKDOWN, "stack": STACK,
    }  # fmt: skip
    options = {"plan": "--out", "points": "--out", "stack": "--out"}
    written = [
        Output(options.get(name, f"--{name.replace('_', '-')}"), path, kinds[name])
        for name, path in outputs.items()
        if path is not None
    ]
    if chakra is not None:
        if chakra.exists() and not chakra.is_dir():
            raise ForetraceError(f"--chakra {chakra} is no folder", "Name one: it gets a file for each rank.")
        check_writable(chakra / "chakra.0.et")
        written += [Output("--chakra", path, CHAKRA) for path in sorted(chakra.glob("chakra.*.et"))]
    for one, other in combinations(written, 2):  # both to /dev/null is no harm
        if _is_file(one.path) and os.path.realpath(one.path) == os.path.realpath(other.path):
            raise ForetraceError(f"{one.option} and {other.option} are both {one.path}", "Name a file for each.")
    _check_inputs(list(_paths(inputs)), written)
    for output in written:
        if output.kind:
            check_output(output.path, output.kind)
        elif _is_file(output.path):  # points are read before they are added to
            check_writable(output.path)
        else:
            what = f"--out {output.path} is {'a folder' if output.path.is_dir() else 'no plain file'}"
            raise ForetraceError(what, "Points are added to a file: name one, like points.jsonl.")
    if any(descriptor_of(output.path) == 1 for output in written):
        sys.stdout = sys.stderr


def _check_inputs(inputs: list[Path], outputs: list[Output]) -> None:
    """No output is, or lies among, what is read."""
    from foretrace.errors import ForetraceError

    for option, path, _ in outputs:
        if not _is_file(path):
            continue
        for given in inputs:
            if given.is_dir() and _is_read(given, path):
                what = f"{option} {path} would be one of the files that {given} is read from"
            elif given.is_file() and path.exists() and path.samefile(given):
                what = f"{option} {path} would replace {given}, which is read"
            else:
                continue
            raise ForetraceError(what, "Name another file.")


def _is_file(path: Path) -> bool:
    """Whether it is a plain file or could become one."""
    return path.is_file() or not path.exists()


def _is_read(folder: Path, path: Path) -> bool:
    """Whether a file in a folder is, or once written would be, one of the recording or of the traces there."""
    from foretrace.formats.load import SUFFIXES
    from foretrace.record.folder import JOB, is_recording

    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if not real.is_relative_to(root):
        return False
    inside = real.relative_to(root)
    if is_recording(folder):
        return inside.parts[0] == JOB or (inside.parts[0].startswith("rank-") and real.suffix != ".html")
    return real.name.lower().endswith(SUFFIXES) and len(inside.parts) <= 2


def _paths(inputs: Iterable[str | Path | None]) -> Iterator[Path]:
    """The files and folders that inputs name."""
    for given in filter(None, map(str, (one for one in inputs if one is not None))):
        if Path(given).exists():
            yield Path(given)
        elif Path(given.rpartition(":")[0] or given).exists():  # a script and its function
            yield Path(given.rpartition(":")[0] or given)
        elif " " in given:  # a command and the files that it names
            yield from (Path(word) for word in given.split() if Path(word).exists())
        elif has_magic(given):
            yield from map(Path, glob(given, recursive=True))  # noqa: PTH207 - of absolute ones too


@contextmanager
def in_background(say: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run something in a thread while a block of code runs; the event that it gets says that the block is done."""
    done = threading.Event()
    saying = threading.Thread(target=say, args=[done], daemon=True)
    saying.start()
    try:
        yield
    finally:
        done.set()
        saying.join()


@contextmanager
def working(text: str) -> Iterator[None]:
    """Say what is being done, once it has taken a while; what is done soon imports nothing for it."""

    def say(done: threading.Event) -> None:
        if done.wait(DELAY_S):
            return
        from foretrace._progress import Progress
        from foretrace.cli.progress import progress_bar

        with progress_bar() as on_progress:
            on_progress(Progress(text))
            done.wait()

    with in_background(say):
        yield
