"""`foretrace sweep`: predictions of a step or a job with many settings on many platforms, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from foretrace.cli.options import (
    BatchWas,
    DropGaps,
    Html,
    OtherFabric,
    PerNode,
    StackName,
    Top,
    What,
    check_outputs,
    memory_limit,
    what_of,
    with_recorded_batch,
)
from foretrace.cli.progress import progress_bar
from foretrace.report import Format, show

Value = TypeVar("Value")


def sweep(
    words: What,
    on: Annotated[str, typer.Option(metavar="PLATFORM,…", help="Platforms: names or folders.")] = "h200",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE,…", help="Values of a setting; may be repeated.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="PLATFORM=DOLLARS", help="Price of one device an hour.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(metavar="GIB", help="Memory limit of a device; default: what it has.")
    ] = None,
    world: Annotated[
        str | None, typer.Option(metavar="N,…", help="Numbers of ranks, like 8,16 or 1,2,4,...,64.")
    ] = None,
    batch_was: BatchWas = None,
    fabric: OtherFabric = None,
    gpus_per_node: PerNode = None,
    drop_gaps: DropGaps = False,
    stack: StackName = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Write each point to this file (JSON lines); points in it are not computed again."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one for each core.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Use the Ray cluster at this address; local starts one.")
    ] = None,
    format: Format = "tables",
    html: Html = None,
    top: Top = 20,
) -> None:
    """Predict a step with many settings and platforms.

    Every combination is a row of the table; the best, and the Pareto front, are marked.
    Settings are those of `foretrace whatif`, those of a job among them: --set tensor=1,2,4 --world 8.
    """
    what = what_of(words)
    check_outputs([what, *platforms(on), fabric], html=html, points=out)
    from foretrace.prediction.scaling import parse_worlds
    from foretrace.whatif.sweep import sweep as predict_all

    worlds = [("world", [str(size) for size in parse_worlds(world)])] if world else []
    pairs = [*(_split(text, batch_was) for text in sets or ()), *worlds]
    values = _once("--set", pairs, "write all its values at once, like batch=256,512")
    prices = _once("--price", [_price(text) for text in price or ()], "a platform has one price")
    with progress_bar() as on_progress:
        found = predict_all(
            what, platforms(on), values, prices, memory_limit(memory), out, workers, ray, fabric, gpus_per_node,
            drop_gaps, stack, on_progress,
        )  # fmt: skip

    show(found, format, html, top)
    if all(point.error for point in found.points):
        raise typer.Exit(2)


def platforms(text: str) -> list[str]:
    """Names separated by commas; a comma inside ``h200:hbm=1.5,host=2`` belongs to the platform.

    >>> platforms("h200,a100"), platforms("h200:hbm=1.5,host=2,a100")
    (['h200', 'a100'], ['h200:hbm=1.5,host=2', 'a100'])
    """
    names: list[str] = []
    for part in text.split(","):
        if "=" in part and ":" not in part and names:
            names[-1] += f",{part}"
        else:
            names.append(part)
    if not all(names):
        raise typer.BadParameter(f"{text!r} names no platform between two commas", param_hint="--on")
    return names


def _once(option: str, pairs: Sequence[tuple[str, Value]], advice: str) -> dict[str, Value]:
    """The pairs as a dict; a name that comes twice is refused."""
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise typer.BadParameter(f"{twice} is given twice; {advice}", param_hint=option)
    return dict(pairs)


def _split(text: str, batch_was: int | None) -> tuple[str, list[str]]:
    name, _, values = text.partition("=")
    if not values:
        raise typer.BadParameter(f"{text!r} sets nothing; write it like batch=256,512", param_hint="--set")
    changes = (with_recorded_batch(f"{name}={value}", batch_was) for value in values.split(","))
    return name, [change.partition("=")[2] for change in changes]


def _price(text: str) -> tuple[str, float]:
    name, _, dollars = text.rpartition("=")
    try:
        cost = float(dollars)
    except ValueError:
        cost = -1.0
    if not name or not 0 <= cost < float("inf"):
        raise typer.BadParameter(f"{text!r} is no price; write it like h200=3.5", param_hint="--price")
    return name, cost
