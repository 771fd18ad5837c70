"""Options that several subcommands share, and how their values are read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from foretrace.replay.folder import Choices

What = Annotated[
    str, typer.Argument(metavar="WHAT", help="A recording, a trace, or a script with a make_step function.")
]
Platform = Annotated[str, typer.Option(help="The platform: its name, or its folder.")]
Step = Annotated[str | None, typer.Option(help="Which step of a trace, for instance ProfilerStep#3.")]
OtherFabric = Annotated[
    str | None, typer.Option(help="What joins the ranks: a fabric's or a platform's name, or a fabric's file.")
]
PerNode = Annotated[int | None, typer.Option(min=1, help="Ranks that share a node.")]
Parallel = Annotated[
    str | None,
    typer.Option(metavar="WAYS", help="Share the step of one rank: data=8,tensor=2,pipeline=4,microbatches=16."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Html = Annotated[Path | None, typer.Option(help="Write a page to this file: it opens from disk.")]
Top = Annotated[int, typer.Option(min=1, help="How many rows of each table.")]

Phase = Annotated[str | None, typer.Option(help="Only this phase: forward, backward, optimizer, other.")]
First = Annotated[
    str | None, typer.Option("--from", metavar="OP", help="Begin with the first call of this op; mm#3 is the fourth.")
]
Last = Annotated[str | None, typer.Option("--to", metavar="OP", help="End with the last call of this op, or mm#3.")]
Only = Annotated[str | None, typer.Option(help="Only calls of this kind: compute, communication, lookup.")]
Without = Annotated[
    list[str] | None, typer.Option(metavar="OP", help="Leave out this op, or a pattern of ops; may be repeated.")
]
Ops = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMESPACE[=PACKAGE]", help="Also call these custom ops; PACKAGE is what brings them."),
]
Dtype = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Run in another floating type: bf16, fp16, fp32, fp64.")
]
Obfuscate = Annotated[bool, typer.Option("--obfuscate", help="Leave out every name but those of ops.")]
Batch = Annotated[
    str | None,
    typer.Option(metavar="NEW[/OLD]", help="Another batch; OLD is the recorded one, where it can't be found."),
]
Ranks = Annotated[int | None, typer.Option(metavar="N", help="Only the first N ranks of a job: groups shrink.")]


def replay_choices(
    phase: str | None,
    first: str | None,
    last: str | None,
    only: str | None,
    without: list[str] | None,
    ops: list[str] | None,
    dtype: str | None,
    obfuscate: bool,
    ranks: int | None,
    batch: str | None,
) -> Choices:
    """The part of a step that `benchmark` and `replay` take, and how."""
    from foretrace.replay.allowed import packages
    from foretrace.replay.folder import Choices
    from foretrace.replay.selection import Selection

    selection = Selection(phase, first, last, only, tuple(without or ()))
    return Choices(selection, packages(ops or ()), dtype, obfuscate, ranks, batch)


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


def print_frames(error: Exception) -> None:
    """Print where in a user's script an error was raised, if it was there."""
    from foretrace.report.formatting import printable

    for line in getattr(error, "frames", "").splitlines():
        print(printable(line), file=sys.stderr)
