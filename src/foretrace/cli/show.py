"""`foretrace show`: where the time of a measured step goes."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrace.cli.options import Html, Top, check_outputs, rank_numbers, working
from foretrace.report import Format
from foretrace.report import show as show_result


def show(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="A recording, a trace, a folder of them, or the traces of several ranks."),
    ],
    format: Format = "tables",
    html: Html = None,
    step: Annotated[str | None, typer.Option(help="Name of the step, for instance ProfilerStep#3.")] = None,
    ranks: Annotated[str | None, typer.Option(help="Only these ranks, for instance 0-2,4.")] = None,
    steps: Annotated[bool, typer.Option("--steps", help="List all steps, and what differs in the slow ones.")] = False,
    top: Top = 10,
) -> None:
    """Show where the time of a step goes.

    By op, kernel family, phase and module; host overheads; waits between ranks; the critical path across all ranks.
    """
    check_outputs(paths, html=html)
    from foretrace.api import load, observe

    with working("reading"):
        job = load(*paths, ranks=rank_numbers(ranks))
    if steps:
        from foretrace.analysis.steps import list_steps

        if step is not None or (html is not None and len(job.graphs) < 2):
            raise typer.BadParameter(
                "lists all steps: it goes with --html where there are several ranks, and never with --step",
                param_hint="--steps",
            )
        with working("comparing steps"):
            listed = list_steps(job)
            if len(job.graphs) > 1:
                from foretrace.fleet.traced_stragglers import step_stragglers

                listed.stragglers = step_stragglers(job, [row.step for row in listed.steps])
        show_result(listed, format, html, top)
        return
    with working("measuring"):
        report = observe(job, step)
    show_result(report, format, html, top)
