"""`foretrace whatif`: change a step on paper, and see its time change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.choices import AsJson
from foretrace.cli.outputs import check_outputs
from foretrace.cli.predict import OtherFabric, Parallel, PerNode, print_frames
from foretrace.cli.progress import progress_bar

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
    typer.Option("--insert", metavar="OP:AFTER[@MODULE]", help="Put an op behind others; may be repeated."),
]

Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="OP[@MODULE]", help="Take calls out, before --fuse; may be repeated."),
]


def whatif(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="A recording, a trace, or a script with a make_step function.")
    ],
    on: Annotated[str, typer.Option(help="The platform: its name, or its folder.")] = "h200",
    sets: Sets = None,
    insert: Inserts = None,
    without: Without = None,
    fuse: Fuses = None,
    world: Annotated[int | None, typer.Option(min=1, help="Ranks that all do the same, before and after.")] = None,
    parallel: Parallel = None,
    fabric: OtherFabric = None,
    gpus_per_node: PerNode = None,
    step: Annotated[str | None, typer.Option(help="Which step of a trace, for instance ProfilerStep#3.")] = None,
    json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file: it opens from disk.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many rows of each table.")] = 10,
) -> None:
    """Change a step or a job on paper, predict it before and after, and explain the difference by op.

    Changes are made in the order in which they are written; then ops are put in, calls taken out, others fused. What is
    set of a job comes last: how ranks share the step, how many they are, how they exchange gradients.
    """
    check_outputs([what, on, fabric], html=html)
    from foretrace.graph import ForetraceError
    from foretrace.whatif.grammar import read_parallel
    from foretrace.whatif.what_if import what_if as ask

    changes = [*(sets or ()), *map(_inserted, insert or ())]
    changes += [*(f"without={op}" for op in without or ()), *(f"fuse={name}" for name in fuse or ())]
    try:
        shared = read_parallel(parallel) if parallel else []
        with progress_bar() as on_progress:
            found = ask(
                what,
                on,
                changes,
                step,
                world,
                shared,
                fabric,
                gpus_per_node,
                on_progress,
            )
    except ForetraceError as error:
        print_frames(error)
        raise
    from foretrace.report import show

    show(found, json, html, top)


def _inserted(text: str) -> str:
    """What ``--insert`` says, as a change.

    >>> _inserted("dropout:gelu@mlp.1")
    'insert:gelu@mlp.1=dropout'
    """
    op, _, after = text.partition(":")
    if not op or not after:
        raise typer.BadParameter(
            f"{text!r} does not say what comes behind what; write it like dropout:gelu", param_hint="--insert"
        )
    return f"insert:{after}={op}"
