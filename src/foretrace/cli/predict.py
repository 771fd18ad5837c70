"""`foretrace predict`: how long a step takes on a machine that may not be here."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.cli.choices import AsJson
from foretrace.cli.outputs import check_outputs
from foretrace.cli.progress import progress_bar

if TYPE_CHECKING:
    from foretrace._progress import OnProgress
    from foretrace.analysis.report import StepReport
    from foretrace.graph import Job


class Kernels(StrEnum):
    """Where kernel times come from."""

    measured = "measured"
    model = "model"


What = Annotated[
    str, typer.Argument(metavar="WHAT", help="A recording, a trace, or a script with a make_step function.")
]
On = Annotated[
    str | None,
    typer.Option(help="The platform: its name, or its folder. Without it a profiled job keeps its own machine."),
]
OtherHost = Annotated[str | None, typer.Option(help="Take the host of this platform instead.")]
OtherFabric = Annotated[
    str | None, typer.Option(help="What joins the ranks: a fabric's or a platform's name, or a fabric's file.")
]
PerNode = Annotated[int | None, typer.Option(min=1, help="Ranks that share a node.")]
Worlds = Annotated[
    str | None,
    typer.Option(metavar="N,…", help="Ranks that all do the same: 64, or 1,2,4,...,1024 for a scaling curve."),
]
Parallel = Annotated[
    str | None,
    typer.Option(metavar="WAYS", help="Share the step of one rank: data=8,tensor=2,pipeline=4,microbatches=16."),
]
SlowHosts = Annotated[
    list[str] | None, typer.Option(metavar="RANK=TIMES", help="This rank's host takes so many times as long.")
]
HostsOf = Annotated[
    list[str] | None, typer.Option(metavar="RANK=RANK", help="The first rank is given the host of the second.")
]
SlowLinks = Annotated[
    list[str] | None, typer.Option(metavar="RANK=PART", help="This rank's link has so much of its speed.")
]
Trace = Annotated[Path | None, typer.Option(help="Write the predicted timeline to this file, for Perfetto.")]
Html = Annotated[Path | None, typer.Option(help="Write a page to this file: it opens from disk.")]
KernelTimes = Annotated[
    Kernels | None,
    typer.Option(help="Take measured or modelled kernel times; without it measured ones where they are its own."),
]
Step = Annotated[str | None, typer.Option(help="Which step of a trace, for instance ProfilerStep#3.")]
Top = Annotated[int | None, typer.Option(min=1, help="How many rows of each table: 10, and of a curve all.")]
ROWS = 10


def predict(
    what: What,
    on: On = None,
    host: OtherHost = None,
    fabric: OtherFabric = None,
    gpus_per_node: PerNode = None,
    world: Worlds = None,
    parallel: Parallel = None,
    slow_host: SlowHosts = None,
    host_of: HostsOf = None,
    slow_link: SlowLinks = None,
    json: AsJson = False,
    trace: Trace = None,
    html: Html = None,
    kernels: KernelTimes = None,
    step: Step = None,
    top: Top = None,
) -> None:
    """Predict how long a training step takes on a platform, and why.

    A script (train.py, or train.py:make_step to name the function that builds or does a step) is sketched: it is imported,
    so its top level runs, and its step is called, on fake tensors and without side effects.
    """
    check_outputs([what, on, host, fabric], html=html, trace=trace)
    sizes = _sizes(world, trace)
    options: dict[str, Any] = {
        "host": host, "fabric": fabric, "gpus_per_node": gpus_per_node, "step": step,
        "kernels": kernels.value if kernels else None, **_overrides(slow_host, host_of, slow_link),
    }  # fmt: skip
    answer = _predicted(what, on, parallel, sizes, options)
    if trace is not None:
        _write_trace(answer, trace)
    from foretrace.report import show

    show(answer, json, html, top or (ROWS if len(sizes) <= 1 else None))


def _sizes(world: str | None, trace: Path | None) -> list[int]:
    """Numbers of ranks that are asked for."""
    if world is None:
        return []
    from foretrace.graph import ForetraceError
    from foretrace.prediction.scaling import parse_worlds

    sizes = parse_worlds(world)
    if len(sizes) > 1 and trace is not None:
        raise ForetraceError("--trace is the timeline of one job, and --world lists several", "Give one of them.")
    return sizes


def _overrides(slow_host: list[str] | None, host_of: list[str] | None, slow_link: list[str] | None) -> dict[str, Any]:
    """What is supposed of some ranks: nonsense is refused before a script is sketched for it."""
    from foretrace.prediction.overrides import RankOverrides

    overrides = RankOverrides(_numbers(slow_host, float), _numbers(host_of, int), _numbers(slow_link, float))
    return vars(overrides)


def _predicted(what: str, on: str | None, parallel: str | None, sizes: list[int], options: dict[str, Any]) -> Any:
    """The forecast; the curve, where several sizes are asked for."""
    from foretrace import api
    from foretrace.graph import ForetraceError

    try:
        with progress_bar() as on_progress:  # a machine that was never measured is measured now
            given = what if parallel is None else _parallelized(what, parallel, on, on_progress)
            if len(sizes) > 1:
                return api.scaling(given, sizes, on, on_progress=on_progress, **options)
            return api.predict(given, on, world=sizes[0] if sizes else None, on_progress=on_progress, **options)
    except ForetraceError as error:
        print_frames(error)
        raise


def _parallelized(what: str, parallel: str, on: str | None, on_progress: OnProgress) -> Job:
    """The job that the step of one rank becomes."""
    from foretrace.api import DEFAULT_PLATFORM, read
    from foretrace.platforms import platform
    from foretrace.transforms.parallel.parallelize import parallelize
    from foretrace.whatif.changes import parallel_options
    from foretrace.whatif.grammar import read_parallel

    options = parallel_options(read_parallel(parallel))  # refuses contradictions before anything is sketched
    job = read(what, platform(on or DEFAULT_PLATFORM, on_progress=on_progress).device.kind)
    return parallelize(job, **options)


def _write_trace(report: StepReport, path: Path) -> None:
    """Write the predicted timeline for Perfetto."""
    from foretrace.formats.perfetto import write_perfetto
    from foretrace.graph import Job

    assert report.workings is not None
    write_perfetto(Job(report.workings.graphs, report.source), path)


def _numbers(said: list[str] | None, kind: type) -> dict[int, Any]:
    """The ranks that options name, and the number of each."""
    from foretrace.graph import ForetraceError

    found = {}
    for one in said or ():
        rank, _, number = one.partition("=")
        try:
            named, value = int(rank), kind(number)
        except ValueError:
            example = "3=1 for the host of rank 1" if kind is int else "3=0.5"
            raise ForetraceError(f"{one!r} names no rank and its number", f"Say for instance {example}.") from None
        if named in found:
            raise ForetraceError(f"rank {named} is named twice", "Say it once.")
        found[named] = value
    return found


def print_frames(error: Exception) -> None:
    """Where in a user's script something went wrong, if it was there."""
    from foretrace.report.formatting import printable

    for line in getattr(error, "frames", "").splitlines():
        print(printable(line), file=sys.stderr)
