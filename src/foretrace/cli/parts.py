"""Options by which `foretrace benchmark` and `foretrace replay` take parts of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from foretrace.replay.folder import Choices

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
    typer.Option(metavar="NEW[/OLD]", help="Another batch; OLD is what was recorded, where nobody can tell."),
]
Ranks = Annotated[int | None, typer.Option(metavar="N", help="Only the first N ranks of a job: groups shrink.")]


def choices(
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
    """What these options choose."""
    from foretrace.replay.allowed import packages
    from foretrace.replay.folder import Choices
    from foretrace.replay.selection import Selection

    selection = Selection(phase, first, last, only, tuple(without or ()))
    return Choices(selection, packages(ops or ()), dtype, obfuscate, ranks, batch)
