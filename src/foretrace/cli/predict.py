"""`foretrace predict`: the time of a training step on any platform."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from foretrace.cli.options import (
    DropGaps,
    Html,
    OtherFabric,
    Parallel,
    PerNode,
    StackName,
    Step,
    What,
    check_outputs,
    platform_names,
    what_of,
)
from foretrace.cli.progress import progress_bar
from foretrace.report import Format, show

if TYPE_CHECKING:
    from foretrace.analysis.report import StepReport
    from foretrace.graph import Job


On = Annotated[
    str | None,
    typer.Option(
        metavar="PLATFORM",
        help="A name from `foretrace platform list`, a platform's folder, or a GPU's file. Default: h200; a profiled "
        "job stays on its own machine.",
        autocompletion=platform_names,
    ),
]
OtherHost = Annotated[str | None, typer.Option(metavar="PLATFORM", help="Take the host from this other platform.")]
Worlds = Annotated[
    str | None,
    typer.Option(
        metavar="N,…", help="Number of ranks, all running the same step: 64; or 1,2,4,...,1024 for a scaling curve."
    ),
]
SlowHosts = Annotated[
    list[str] | None,
    typer.Option(metavar="RANK=TIMES", help="Slow down the host of a rank: 3=1.5 takes 1.5 times as long."),
]
HostsOf = Annotated[
    list[str] | None,
    typer.Option(metavar="RANK=RANK", help="Give a rank the host of another: 2=1 gives rank 2 that of rank 1."),
]
SlowLinks = Annotated[
    list[str] | None, typer.Option(metavar="RANK=PART", help="Slow down the link of a rank: 3=0.5 has half its speed.")
]
Trace = Annotated[Path | None, typer.Option(help="Write the predicted timeline to this file, for Perfetto.")]
KernelTimes = Annotated[
    Literal["measured", "model"] | None,
    typer.Option(
        help="Kernel times: measured, as in the recording, or model. Default: measured on the same GPU, else model."
    ),
]
AllocConf = Annotated[
    str,
    typer.Option(
        metavar="OPTION:VALUE,…",
        help="PYTORCH_CUDA_ALLOC_CONF of the job, which decides what memory is reserved: expandable_segments:True, …",
    ),
]
MemoryViz = Annotated[
    Path | None,
    typer.Option(help="Write the allocations of the fullest rank to this file, for pytorch.org/memory_viz."),
]
PowerLimit = Annotated[
    float | None, typer.Option(metavar="WATTS", help="The power limit that each GPU is set to, below its own.")
]
Price = Annotated[float | None, typer.Option(metavar="DOLLARS", help="What an hour of one GPU costs.")]
TopOrAll = Annotated[int | None, typer.Option(min=1, help="Rows of each table; default: 10, and all of a curve.")]
TABLE_ROWS = 10


def predict(
    words: What,
    on: On = None,
    host: OtherHost = None,
    fabric: OtherFabric = None,
    gpus_per_node: PerNode = None,
    world: Worlds = None,
    parallel: Parallel = None,
    stack: StackName = "auto",
    slow_host: SlowHosts = None,
    host_of: HostsOf = None,
    slow_link: SlowLinks = None,
    drop_gaps: DropGaps = False,
    alloc_conf: AllocConf = "",
    power_limit: PowerLimit = None,
    price: Price = None,
    format: Format = "tables",
    trace: Trace = None,
    memory_viz: MemoryViz = None,
    html: Html = None,
    kernels: KernelTimes = None,
    step: Step = None,
    top: TopOrAll = None,
) -> None:
    """Predict how long a training step takes, and why.

    A script (train.py, or train.py:make_step to name the function that builds or does a step) is sketched: it is
    imported, so its top level runs, and its step is called, on fake tensors and without side effects.
    """
    what = what_of(words)
    check_outputs([what, on, host, fabric], html=html, trace=trace, memory_viz=memory_viz)
    sizes = _sizes(world, trace, memory_viz)
    from foretrace.prediction.overrides import RankOverrides

    # Wrong values are refused before a script is sketched.
    overrides = RankOverrides(_numbers(slow_host, float), _numbers(host_of, int), _numbers(slow_link, float))
    options: dict[str, Any] = {
        "host": host, "fabric": fabric, "gpus_per_node": gpus_per_node, "step": step,
        "kernels": kernels, "drop_gaps": drop_gaps, "alloc_conf": alloc_conf,
        "stack": stack, "power_limit": power_limit, "price": price, **vars(overrides),
    }  # fmt: skip
    result = _predicted(what, on, parallel, sizes, options)
    if trace is not None:
        from foretrace.formats.perfetto import write_perfetto
        from foretrace.graph import Job

        write_perfetto(Job(result.workings.graphs, result.source), trace)
    if not sizes and result.memory_verdict == "does not fit":
        _say_what_fits(result)
    if memory_viz is not None:
        from foretrace.formats.memory_viz import write_snapshot
        from foretrace.prediction.memory import memory_events

        write_snapshot(memory_viz, *memory_events(result))

    show(result, format, html, top or (TABLE_ROWS if len(sizes) <= 1 else None))


def _say_what_fits(report: StepReport) -> None:
    """Add the smallest changes with which the step would fit."""
    from foretrace.whatif.fitting import changes_that_fit
    from foretrace.whatif.what_if import one_step

    workings = report.workings
    if workings is None or workings.job is None or workings.device is None:
        return
    found = changes_that_fit(one_step(workings.job, workings.step), workings.device)
    report.to_fit = found or [
        "none of the changes that were tried fits alone: combine several, or take a larger device"
    ]


def _sizes(world: str | None, trace: Path | None, memory_viz: Path | None) -> list[int]:
    """The numbers of ranks of `--world`."""
    if world is None:
        return []
    from foretrace.errors import ForetraceError
    from foretrace.prediction.scaling import parse_worlds

    sizes = parse_worlds(world)
    for option, what, file in (("--trace", "timeline", trace), ("--memory-viz", "memory", memory_viz)):
        if len(sizes) > 1 and file is not None:
            raise ForetraceError(f"{option} is the {what} of one job, and --world lists several", "Give one of them.")
    return sizes


def _predicted(what: str, on: str | None, parallel: str | None, sizes: list[int], options: dict[str, Any]) -> Any:
    """The prediction; the scaling curve for several numbers of ranks."""
    from foretrace import api

    with progress_bar() as on_progress:
        given = what if parallel is None else _parallelized(what, parallel, on, sizes)
        if len(sizes) > 1:
            _refuse_alone(options)
            return api.scaling(given, sizes, on, on_progress=on_progress, **options)
        return api.predict(given, on, world=sizes[0] if sizes else None, on_progress=on_progress, **options)


def _refuse_alone(options: dict[str, Any]) -> None:
    """Refuse options of one prediction where there are several."""
    from foretrace.errors import ForetraceError

    for name in ("power_limit", "price"):
        if options.pop(name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ForetraceError(f"{option} is of one prediction, and --world lists several", "Give one of them.")


def _parallelized(what: str, parallel: str, on: str | None, sizes: list[int]) -> Job:
    """The job that the step of one rank becomes; its data parallel ranks shall grow to some sizes."""
    from foretrace.api import read
    from foretrace.platform.registry import DEFAULT_PLATFORM, load_platform
    from foretrace.transforms.parallel.parallelize import ParallelConfig, parallelize
    from foretrace.whatif.changes import check_worlds, parallel_options
    from foretrace.whatif.grammar import read_parallel

    options = parallel_options(read_parallel(parallel))  # refuses contradictions before anything is sketched
    check_worlds(ParallelConfig(**options), sizes)
    job = read(what, load_platform(on or DEFAULT_PLATFORM).device.kind)
    return parallelize(job, **options)


def _numbers(values: list[str] | None, kind: type) -> dict[int, Any]:
    """A number for each rank that an option names."""
    from foretrace.errors import ForetraceError

    found = {}
    for one in values or ():
        rank, _, number = one.partition("=")
        try:
            named, value = int(rank), kind(number)
        except ValueError:
            example = "3=1 for the host of rank 1" if kind is int else "3=0.5"
            raise ForetraceError(f"{one!r} names no rank and its number", f"Write for instance {example}.") from None
        if named in found:
            raise ForetraceError(f"rank {named} is named twice", "Name it once.")
        found[named] = value
    return found
