"""`foretrace benchmark`: a recorded step as a folder that needs torch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.options import (
    Batch,
    Dtype,
    First,
    Last,
    Module,
    Obfuscate,
    Only,
    Ops,
    Phase,
    Ranks,
    Without,
    replay_choices,
    working,
)


def benchmark(
    what: Annotated[str, typer.Argument(metavar="RECORDING", help="A recording, or traces of other tools.")],
    out: Annotated[Path, typer.Option(help="Folder for the benchmark; must not be there yet.")],
    phase: Phase = None,
    module: Module = None,
    first: First = None,
    last: Last = None,
    only: Only = None,
    without: Without = None,
    ops: Ops = None,
    dtype: Dtype = None,
    obfuscate: Obfuscate = False,
    ranks: Ranks = None,
    batch: Batch = None,
) -> None:
    """Write a step as a benchmark that needs torch alone.

    Its calls become plain Python, with neither the model's code nor its data.
    It runs without Foretrace: python OUT/run.py
    """
    from foretrace.api import benchmark as write

    choices = replay_choices(phase, module, first, last, only, without, ops, dtype, obfuscate, ranks, batch)
    with working("writing the benchmark"):
        folder = write(what, out, choices)
    typer.echo(f"foretrace: wrote {folder}; run it with: python {folder}/run.py", err=True)
