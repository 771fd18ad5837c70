"""`foretrace replay`: run a recorded step again, and compare."""

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
    Top,
    Without,
    replay_choices,
    working,
)
from foretrace.replay.harness import MAX_SLOW_HOST
from foretrace.report import Format, show


def replay(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT…", help="Recordings, traces of other tools or benchmarks; or one file that lists several."
        ),
    ],
    format: Format = "tables",
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Steps to time; default: as many as fit in a second.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Run on cpu, cuda or meta; default: where it was recorded.")
    ] = None,
    pace: Annotated[
        bool, typer.Option(help="Wait between calls as the original's host did; --no-pace calls as fast as it can.")
    ] = True,
    slow_host: Annotated[
        float,
        typer.Option(
            metavar="X",
            min=1 / MAX_SLOW_HOST,
            max=MAX_SLOW_HOST,
            help="Wait X times as long between calls.",
        ),
    ] = 1.0,
    counters: Annotated[
        bool, typer.Option("--counters", help="On a GPU: also read hardware counters, with Nsight Compute.")
    ] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep the benchmark in this folder.")] = None,
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
    delayed: Annotated[
        bool, typer.Option("--delayed", help="Make collectives take as long as recorded, even where ranks are missing.")
    ] = False,
    eager: Annotated[
        bool, typer.Option("--eager", help="Run compiled parts call by call instead of compiling them again.")
    ] = False,
    weights: Annotated[str | None, typer.Option(metavar="W,W,…", help="Weight of each WHAT in the total.")] = None,
    top: Top = 10,
) -> None:
    """Run a recorded step again, and compare.

    It needs neither the model's code nor its data.
    Step time, kernels one by one, memory, launches; what could not be called is named and lowers the coverage.
    """
    from foretrace.api import check_names, replay_step, replay_suite
    from foretrace.errors import ForetraceError
    from foretrace.replay import How, members_of
    from foretrace.report.formatting import printable

    chosen = replay_choices(phase, module, first, last, only, without, ops, dtype, obfuscate, ranks, batch)
    how = How(iterations, device, pace, slow_host, counters, delayed, eager)
    check_names(what)
    paths = [Path(one) for one in what]
    members = members_of(paths, weights)
    if [member.what for member in members] == paths and len(paths) == 1:
        with working("replaying"):
            replayed = replay_step(paths[0], chosen, how, keep)
        show(replayed, format, top=top)
        return
    with working("replaying"):
        suite = replay_suite(members, chosen, how, keep)
    show(suite, format, top=top)
    failed = [(m.name, why) for m, why in zip(members, suite.results) if isinstance(why, ForetraceError)]
    for name, why in failed:
        typer.echo(printable(f"foretrace: {name} could not be replayed: {why}"), err=True)
    if failed:
        raise typer.Exit(2)
