"""`foretrace fleet`: a store of many recordings, where their GPU hours go, and a suite that stands for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.options import Html, Obfuscate, Top, check_outputs, platform_names, working
from foretrace.cli.progress import progress_bar
from foretrace.report import Format
from foretrace.report import show as show_result

fleet = typer.Typer(no_args_is_help=True, help="Show where the GPU hours of many recordings go.")

StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="The folder of the store.")]


@fleet.command()
def add(
    store: StorePath,
    recordings: Annotated[
        list[str],
        typer.Argument(metavar="RECORDING", help="Recordings, traces, folders of them, or addresses like s3://…"),
    ],
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Label all of them: team=ads, gpu_hours=120.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="A CSV file of labels, with a column recording.")] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Keep copies of the recordings in the store.")] = False,
    relabel: Annotated[
        bool, typer.Option("--relabel", help="Replace labels of recordings that are in the store already.")
    ] = False,
    on: Annotated[str, typer.Option(help="Platform on which to predict steps that were not timed.")] = "h200",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one for each core by default.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Work on a Ray cluster: HOST:PORT, auto, or local.")
    ] = None,
    format: Format = "tables",
) -> None:
    """Add recordings to a store.

    Those that it has already are skipped.
    """
    from foretrace.fleet.adding import add_recordings
    from foretrace.fleet.labels import parse_labels, read_labels
    from foretrace.fleet.store import Store

    everywhere = parse_labels(label or ())
    by_recording = read_labels(labels) if labels else {}
    opened = Store.open(store, create=True)
    with progress_bar(hidden=format == "json") as on_progress:
        done = add_recordings(
            opened, recordings, everywhere, by_recording, copy, relabel, on, workers, ray, on_progress
        )  # fmt: skip
    show_result(done, format)


@fleet.command()
def show(
    store: StorePath,
    where: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only recordings with this label: team=ads.")
    ] = None,
    format: Format = "tables",
    html: Html = None,
    top: Top = 10,
) -> None:
    """Show where the GPU hours go, and which jobs got slower."""
    check_outputs([store], html=html)
    from foretrace.fleet.store import Store
    from foretrace.fleet.summary import summarize

    with working("reading the store"):
        summary = summarize(Store.open(store), where or ())
    show_result(summary, format, html, top)


@fleet.command()
def suite(
    store: StorePath,
    out: Annotated[Path, typer.Option(help="Folder for the benchmarks; must not be there yet.")],
    size: Annotated[int | None, typer.Option(min=1, help="How many recordings.")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help='How long all may take to run, for instance "10 min".')
    ] = None,
    obfuscate: Obfuscate = False,
    format: Format = "tables",
    top: Top = 20,
) -> None:
    """Choose a few recordings that represent the fleet.

    Each gets a weight, and is written as a benchmark.
    """
    from foretrace.fleet.store import Store
    from foretrace.fleet.suite import make_suite, parse_budget
    from foretrace.replay import Choices

    if size is not None and budget is not None:
        raise typer.BadParameter("decides how many members there are: leave out --size", param_hint="--budget")
    seconds = None if budget is None else parse_budget(budget)
    with progress_bar(hidden=format == "json") as on_progress:
        made = make_suite(Store.open(store), out, size, seconds, Choices(obfuscate=obfuscate), on_progress)
    show_result(made, format, top=top)


@fleet.command()
def drift(
    store: StorePath,
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="The folder that `fleet suite` wrote.")],
    within: Annotated[float, typer.Option(min=0.0, help="How far a figure may be off.")] = 0.03,
    format: Format = "tables",
    top: Top = 20,
) -> None:
    """Say whether a suite still represents the fleet.

    If not, it says which members to replace.
    """
    from foretrace.fleet.store import Store
    from foretrace.fleet.suite import find_drift

    with working("comparing"):
        found = find_drift(Store.open(store), suite, within)
    show_result(found, format, top=top)


@fleet.command()
def whatif(
    store: StorePath,
    on: Annotated[
        list[str] | None,
        typer.Option(help="Also ask for all jobs on this platform; may be repeated.", autocompletion=platform_names),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0.0, help="Dollars for a GPU hour.")] = None,
    weeks: Annotated[
        float | None,
        typer.Option(min=0.01, help="How many weeks the hours cover; default: by the dates of the recordings."),
    ] = None,
    slow_host: Annotated[
        float | None, typer.Option(min=0.01, help="Also ask for hosts that take this many times as long.")
    ] = None,
    format: Format = "tables",
    top: Top = 20,
) -> None:
    """Say what would save the most GPU hours a week."""
    from foretrace.fleet.store import Store
    from foretrace.fleet.whatif import fleet_whatif

    with working("predicting"):
        answers = fleet_whatif(Store.open(store), on or (), price, weeks, slow_host)
    show_result(answers, format, top=top)


@fleet.command()
def stragglers(
    spans: Annotated[Path, typer.Argument(metavar="SPANS", help="A span log, as Parquet or CSV.")],
    format: Format = "tables",
    html: Html = None,
    top: Top = 10,
) -> None:
    """Say what stragglers cost a job.

    Over all steps of a span log; by worker, stage and kind of span.
    """
    check_outputs([spans], html=html)
    from foretrace.fleet.stragglers import find_stragglers

    with working("simulating"):
        found = find_stragglers(spans)
    show_result(found, format, html, top)


@fleet.command()
def hang(
    dumps: Annotated[
        list[Path], typer.Argument(metavar="DUMP", help="Flight-recorder dumps, one per rank, or a folder of them.")
    ],
    format: Format = "tables",
    top: Top = 10,
) -> None:
    """Say which rank of which collective a hung job waits for."""
    from foretrace.fleet.flight_recorder import find_hang

    show_result(find_hang(dumps), format, top=top)
