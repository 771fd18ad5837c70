"""`foretrace whatif`: the time of a step before and after changes to it."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrace.cli.options import (
    BatchWas,
    DropGaps,
    Html,
    OtherFabric,
    Parallel,
    PerNode,
    Platform,
    Step,
    Top,
    What,
    check_outputs,
    what_of,
    with_recorded_batch,
)
from foretrace.cli.progress import progress_bar
from foretrace.report import Format, show

Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="batch, seq, hidden, depth, dtype, autocast, optimizer, …; of a job data, tensor, sharded, …, world, "
        "buckets, overlap; may be repeated.",
    ),
]

Fuses = Annotated[
    list[str] | None,
    typer.Option("--fuse", metavar="WHAT", help="lookups, elementwise, optimizer or launches; may be repeated."),
]

Inserts = Annotated[
    list[str] | None,
    typer.Option(
        "--insert", metavar="OP:AFTER[@MODULE]", help="Insert an op after each call of another; may be repeated."
    ),
]

Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="OP[@MODULE]", help="Remove calls, before --fuse; may be repeated."),
]


def whatif(
    words: What,
    on: Platform = "h200",
    sets: Sets = None,
    insert: Inserts = None,
    without: Without = None,
    fuse: Fuses = None,
    world: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks, all running the same step, before and after.")
    ] = None,
    batch_was: BatchWas = None,
    parallel: Parallel = None,
    fabric: OtherFabric = None,
    gpus_per_node: PerNode = None,
    step: Step = None,
    drop_gaps: DropGaps = False,
    format: Format = "tables",
    html: Html = None,
    top: Top = 10,
) -> None:
    """Predict a step before and after changes to it.

    Changes are made in the order in which they are written; then ops are inserted, calls removed, others fused.
    Settings of a job come last: how ranks share the step, how many they are, how they reduce gradients.
    """
    what = what_of(words)
    check_outputs([what, on, fabric], html=html)
    from foretrace.whatif.grammar import read_parallel
    from foretrace.whatif.what_if import what_if as ask

    changes = [*(with_recorded_batch(change, batch_was) for change in sets or ()), *map(_insertion, insert or ())]
    changes += [*(f"without={op}" for op in without or ()), *(f"fuse={name}" for name in fuse or ())]
    shared = read_parallel(parallel) if parallel else []
    with progress_bar() as on_progress:
        found = ask(what, on, changes, step, world, shared, fabric, gpus_per_node, drop_gaps, on_progress)

    show(found, format, html, top)


def _insertion(text: str) -> str:
    """A value of ``--insert`` as a change.

    >>> _insertion("dropout:gelu@mlp.1")
    'insert:gelu@mlp.1=dropout'
    """
    op, _, after = text.partition(":")
    if not op or not after:
        raise typer.BadParameter(
            f"{text!r} does not say which op comes after which; write it like dropout:gelu", param_hint="--insert"
        )
    return f"insert:{after}={op}"
