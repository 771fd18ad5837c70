"""`foretrace calibrate`: measure the machine at hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from foretrace.platform.measure.calibrate import Progress

THROTTLED = 0.1
"""Drift of the reference call from which on the measurements are in doubt."""

calibrate = typer.Typer(no_args_is_help=True, help="Measure the machine at hand.")


@calibrate.command()
def device(
    out: Annotated[Path, typer.Option(help="Folder for the measurements; an earlier run there is gone on with.")],
    minutes: Annotated[float, typer.Option(min=0, help="How long to measure.")] = 10.0,
    family: Annotated[
        list[str] | None, typer.Option(help="Measure this family of kernels only; may be given several times.")
    ] = None,
    on: Annotated[str | None, typer.Option(help="The device, like cuda:1 or cpu; the first GPU unless given.")] = None,
) -> None:
    """Time thousands of calls of every family of kernels, on a GPU or on the CPU.

    Stop it whenever you like: what is measured is kept, and the next run goes on from there.
    """
    from rich.console import Console
    from rich.progress import Progress as Bar

    from foretrace.platform.measure.calibrate import calibrate as measure
    from foretrace.platform.measure.calibrate import slowed
    from foretrace.platform.measure.machine import find_device

    console = Console(stderr=True)
    spent: dict[str, float] = {}
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("warming up", total=60 * minutes)

        def report(progress: Progress) -> None:
            spent[progress.family] = progress.seconds
            words = f"{progress.family}: {progress.cases:,} cases"
            bar.update(task, description=words, completed=sum(spent.values()))

        try:
            done = measure(out, find_device(on), minutes, family or (), report)
        except KeyboardInterrupt:
            print(f"foretrace: stopped; the same command goes on with {out}", file=sys.stderr)
            raise
    console.print(_table(done))
    drift = slowed(done)
    if drift > THROTTLED:
        note = f"the device was busy or throttled: one and the same product took up to {drift:.0%} longer"
        print(f"foretrace: {note}. Measure again when it is idle.", file=sys.stderr)
    print(f"foretrace: measured into {out}", file=sys.stderr)


def _table(done: list[Progress]) -> object:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("family")
    for name in ("cases", "failed", "seconds", "spread"):
        table.add_column(name, justify="right")
    for progress in done:
        numbers = f"{progress.cases:,}", f"{progress.failed:,}", f"{progress.seconds:.1f}", f"{progress.spread:.1%}"
        table.add_row(progress.family, *numbers)
    return table
