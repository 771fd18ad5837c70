"""`foretrace shard`: the fastest sharding plan for embedding tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from foretrace.cli.options import Html, OtherFabric, Platform, Top, check_outputs, what_of
from foretrace.cli.progress import progress_bar
from foretrace.report import Format, show


def shard(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLES",
            help="A YAML or CSV file of tables; a recording, a trace, or a script; or, after --, the command that "
            "starts a script.",
        ),
    ],
    world: Annotated[int, typer.Option(min=1, help="Number of ranks to place them on.")],
    on: Platform = "h200",
    fabric: OtherFabric = None,
    memory: Annotated[
        float | None,
        typer.Option(metavar="GB", help="Memory for tables on each rank; default: what the rest of the step leaves."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of each rank; default: as in the step, else 4096.")
    ] = None,
    kernels: Annotated[
        Literal["fused", "single", "tbe"],
        typer.Option(
            help="fused: one call for all tables of the same dimension; single: one per table; tbe: FBGEMM's."
        ),
    ] = "fused",
    sent_as: Annotated[
        Literal["fp32", "fp16", "bf16", "fp8", "int8"],
        typer.Option(help="Dtype in which embeddings and their gradients are sent."),
    ] = "fp32",
    per_node: Annotated[
        int | None,
        typer.Option(
            "--gpus-per-node", "--per-node", min=1, help="Ranks on each node; default: as many as the fabric says."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time limit of the search.")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random choices: the same one gives the same plan.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
    format: Format = "tables",
    html: Html = None,
    top: Top = 10,
) -> None:
    """Find the fastest sharding plan for embedding tables.

    Tables may stay whole, be split by rows or by columns, or be copied to all ranks.
    """
    tables = what_of(words)
    check_outputs([tables, on, fabric], html=html, plan=out)
    from foretrace.sharding.planner import shard as plan

    with progress_bar(hidden=format == "json") as on_progress:
        found = plan(
            tables, world, on, fabric, batch, memory, kernels, sent_as, per_node, seconds, seed,
            on_progress=on_progress,
        )  # fmt: skip
    if out is not None:
        found.write(out)
    show(found, format, html, top)
