"""`foretrace advise`: which parallelism, batch and memory savings to train a step with."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from foretrace.cli.options import OtherFabric, PerNode, Platform, What, memory_limit, what_of
from foretrace.cli.progress import progress_bar
from foretrace.report import Format, show


class Goal(StrEnum):
    """What the best plan is best at."""

    fastest = "fastest"
    cheapest = "cheapest"
    fewest = "fewest"


World = Annotated[int, typer.Option(min=1, help="How many GPUs there are.")]
GoalOption = Annotated[
    Goal,
    typer.Option(help="fastest: least time per sample; cheapest: least cost; fewest: fewest GPUs for --target."),
]
Target = Annotated[str | None, typer.Option(metavar="MS", help="Step time to reach with the fewest GPUs: 250ms.")]
Memory = Annotated[float | None, typer.Option(metavar="GIB", help="Memory that PyTorch may reserve on a GPU.")]
Price = Annotated[float | None, typer.Option(metavar="DOLLARS", help="What an hour of one GPU costs.")]
Seconds = Annotated[float | None, typer.Option(min=1.0, help="Stop the search after this many seconds.")]
Samples = Annotated[int | None, typer.Option(min=1, help="Samples in a step of all GPUs together; default: any.")]
Fixed = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of every plan; may be repeated.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; default: one for each core, of large steps.")]
OnRay = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Use the Ray cluster at this address; local starts one.")
]
Top = Annotated[int, typer.Option(min=1, help="How many plans to list.")]


def advise(
    words: What,
    on: Platform = "h200",
    world: World = 1,
    goal: GoalOption = Goal.fastest,
    target: Target = None,
    memory: Memory = None,
    price: Price = None,
    fabric: OtherFabric = None,
    gpus_per_node: PerNode = None,
    samples: Samples = None,
    sets: Fixed = None,
    seconds: Seconds = None,
    workers: Workers = None,
    ray: OnRay = None,
    top: Top = 10,
    format: Format = "tables",
) -> None:
    """Search for the best ways to train a step on some GPUs.

    Parallelism, batch, checkpointing, precision, optimizer. Only promising plans are simulated; Ctrl-C prints the best
    so far. Each plan comes with why it helps and how to apply it.
    """
    what = what_of(words)
    from foretrace.whatif.advise import advise as search

    wanted = Goal.fewest if target is not None and goal is Goal.fastest else goal
    with progress_bar() as on_progress:
        found = search(
            what, on, world, wanted.value, _milliseconds(target), memory_limit(memory),
            price, fabric, gpus_per_node, top, seconds, samples, sets or (), workers, ray, on_progress,
        )  # fmt: skip

    show(found, format, top=top)


def _milliseconds(text: str | None) -> float | None:
    """A time as ``250ms``, ``250`` or ``1.5s``.

    >>> _milliseconds("250ms"), _milliseconds("1.5s")
    (250.0, 1500.0)
    """
    if text is None:
        return None
    from foretrace.errors import ForetraceError

    number, unit = (text[:-2], 1.0) if text.endswith("ms") else (text[:-1], 1e3) if text.endswith("s") else (text, 1.0)
    try:
        found = float(number) * unit
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise ForetraceError(f"{text!r} is no time", "Write it as 250ms, or 1.5s.")
    return found
