"""`foretrace record`: run a training script, unchanged, and record a few of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def record(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="How the job is started, after --: python train.py …")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the recording; must not hold one already.")],
    plain: Annotated[int, typer.Option(min=1, help="Unprofiled steps to time, synced and back to back.")] = 20,
    profile: Annotated[int, typer.Option(min=0, help="Steps under a light profiler.")] = 3,
    warmup: Annotated[int, typer.Option(min=1, help="Warm-up steps before the recording.")] = 5,
    stop: Annotated[bool, typer.Option("--stop", help="End the job once everything is recorded.")] = False,
) -> None:
    """Run a training job and record a few of its steps.

    The script needs no change: its optimizers say where steps end. Under torchrun every rank is recorded.
    """
    from foretrace.record.watch.launch import launch

    code = launch(command, out, plain=plain, profile=profile, warmup=warmup, stop=stop)
    raise typer.Exit(code)
