"""Predicting what a user has at hand, on a platform by whatever it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretrace.errors import check_count, check_path
from foretrace.forecast.forecast import Forecast
from foretrace.forecast.jobs.supposed import Supposed
from foretrace.forecast.predict import predict as predict_rank
from foretrace.graph import MAX_RANKS, ForetraceError, Graph, Job
from foretrace.loading import load
from foretrace.platform.host import Host
from foretrace.platform.platform import Platform
from foretrace.platforms import joined_by, platform

if TYPE_CHECKING:
    from foretrace.forecast.jobs.scaling import Scaling
    from foretrace.platform.fabric import Fabric
    from foretrace.stages import Told

USUAL = "h200"
"""The platform where nobody names one, and the step was not measured on all ranks of a job."""


def predict(
    what: Graph | Job | str | Path,
    on: Platform | str | Path | None = None,
    kernels: str | None = None,
    step: str | None = None,
    host: Host | Platform | str | Path | None = None,
    fabric: Fabric | Platform | str | Path | None = None,
    gpus_per_node: int | None = None,
    world: int | None = None,
    slow_host: Mapping[int, float] | None = None,
    host_of: Mapping[int, int] | None = None,
    slow_link: Mapping[int, float] | None = None,
    told: Told | None = None,
) -> Forecast:
    """How long a training step takes on a platform, and why.

    Parameters
    ----------
    what
        A sketch, a loaded recording or trace; or the path of a recording, of a trace, or of a script, ``train.py`` or
        ``train.py:function``, whose step is sketched. Of a job, all ranks that have a graph are simulated together.
    on
        A platform, its name, or its folder. Left out, a job that was profiled on several ranks stays on its own
        machine: hosts and kernels as measured, collectives by a fabric; so does one profiled rank of a job where it
        shall stand for a ``world`` of them. Anything else, and what asks for the models of a platform or for another
        host, is predicted on an ``h200``.
    kernels
        ``"measured"`` takes the kernel times of the recording, ``"model"`` those of the platform's models. Left out,
        the recording's are taken where it was made on the platform's own device.
    step
        Which step of a trace that holds several; the one of median length where it is left out.
    host, fabric
        As in `foretrace.platform`: those of another platform. Left out, the fabric is the platform's own, or else the
        shipped one that fits its device and the number of ranks.
    gpus_per_node
        Ranks that share a node; as many as the fabric's nodes have, where left out.
    world
        Predict a job of so many ranks that all do what the first one does: weak scaling. A script that asks for a
        process group finds one of so many.
    slow_host
        For some ranks, how many times as long their hosts take.
    host_of
        For some ranks of a measured job, the rank whose host times they are given.
    slow_link
        For some ranks, the part of the speed that their links have.
    told
        Told how far the measuring is, where a machine has to be measured first.

    Returns
    -------
    The forecast: step time with its range, device time, idle time and its causes, memory, critical path, what each rank
    waits for, and how much of the device time is known in which way.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> square = Tensor((4096, 4096), "bfloat16", "cuda:0")
    >>> forecast = predict(Graph(OpTable.of([Op("aten::mm", (square, square), outputs=(square,))])), on="h200")
    >>> 0.1 < forecast.device_active_ms < 1.0
    True
    """
    supposed = Supposed(slow_host or {}, host_of or {}, slow_link or {})
    if gpus_per_node is not None:
        check_count(gpus_per_node, "gpus_per_node", MAX_RANKS)
    if world is not None:
        check_count(world, "world", MAX_RANKS)
        supposed.check_alike()
    where = None if on is None else platform(on, host, fabric, told)
    job = at_hand(what, where.device.kind if where else "cuda", world)
    if where is None and host is None and kernels != "model" and _is_measured(job, world):
        forecast = _on_own_machine(job, fabric, gpus_per_node, step, supposed, world)
    else:
        where = where or platform(USUAL, host, fabric, told)
        forecast = on_platform(job, where, kernels, step, gpus_per_node, world, supposed)
    if forecast.workings is not None and world is None:  # who draws it shows what was measured beside it
        forecast.workings = replace(forecast.workings, job=job, step=step)
    return forecast


def scaling(
    what: Graph | Job | str | Path, worlds: Sequence[int], on: Platform | str | Path | None = None, **options: object
) -> Scaling:
    """The forecasts of jobs of several sizes, all of ranks that do what the first one of this job does.

    Parameters
    ----------
    what, on
        As in `predict`.
    worlds
        Numbers of ranks, one at least.
    options
        The others of `predict`.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> square = Tensor((4096, 4096), "bfloat16", "cuda:0")
    >>> step = Graph(OpTable.of([Op("aten::mm", (square, square), outputs=(square,))]))
    >>> [row["world"] for row in scaling(step, [1, 2]).rows]
    [1, 2]
    """
    from foretrace.forecast.jobs.scaling import scaling_of

    if isinstance(worlds, (str, int)) or not worlds:
        raise ForetraceError(f"no curve can be made of {worlds!r}", "Give some worlds, for instance [1, 2, 4, 8].")
    for world in worlds:
        check_count(world, "a world", MAX_RANKS)
    host, told = options.pop("host", None), options.pop("told", None)
    several = [world for world in worlds if world > 1]
    where = None
    if on is not None or host is not None:
        where = platform(on or USUAL, host, options.pop("fabric", None), told)  # type: ignore[arg-type]
    fewest = min(several or worlds)
    job = at_hand(what, where.device.kind if where else "cuda", fewest)
    joined, notes = _joined_alike(job, where, worlds, options)
    if isinstance(what, (str, Path)) and script_of(what) and job.graphs[0].collectives:
        notes.append(f"the script was sketched as one of {fewest:,} ranks: more of them do what that one does")
    each = [predict(job, where, world=world, **{**options, "fabric": one}) for world, one in zip(worlds, joined)]  # type: ignore[arg-type]
    curve = scaling_of(each)
    return replace(curve, notes=[*curve.notes, *notes])


def _joined_alike(
    job: Job, where: Platform | None, worlds: Sequence[int], options: Mapping[str, object]
) -> tuple[Sequence[object], list[str]]:
    """The fabrics of jobs of several sizes: those that are said, or shipped ones for machines of one kind."""
    said, several = options.get("fabric"), [world for world in worlds if world > 1]
    exchanges = any(graph.collectives for graph in job.graphs)
    if said is not None or (where and where.fabric) or not several or not exchanges:
        return [said] * len(worlds), []
    if where is None and not _is_measured(job, max(several)):
        where = platform(USUAL)
    from foretrace.forecast.fabric_of import fabrics_of

    device = where.device.matches if where else job.graphs[0].device
    found = dict(zip(several, fabrics_of(device, several, options.get("gpus_per_node"))))  # type: ignore[arg-type]
    names = ", ".join(dict.fromkeys(fabric.name for fabric in found.values()))
    return [found.get(world) for world in worlds], [
        f"fabric {names}: shipped, of machines of one kind; --fabric names another"
    ]


def _on_own_machine(
    job: Job,
    fabric: Fabric | Platform | str | Path | None,
    gpus_per_node: int | None,
    step: str | None,
    but: Supposed,
    world: int | None,
) -> Forecast:
    """A measured job where it was measured, but for what is supposed of it; or one of another size, made of that."""
    from foretrace.forecast.jobs.predict import NO_FABRIC, keep_machine
    from foretrace.forecast.jobs.world import at_world

    measured, job = (None, job) if world is None else (job, at_world(job, world))
    joined, notes = NO_FABRIC, list[str]()
    if fabric is not None or job.world > 1:
        joined, notes = joined_by(fabric, None, job.graphs[0].device, job.world, gpus_per_node)
    return _noted(keep_machine(job, joined, step, but, gpus_per_node, measured), notes)


def on_platform(
    job: Job,
    where: Platform,
    kernels: str | None,
    step: str | None,
    gpus_per_node: int | None,
    world: int | None,
    supposed: Supposed,
) -> Forecast:
    """A job at hand on a platform at hand; the rest is as in `predict`."""
    if world is not None:
        from foretrace.forecast.jobs.world import of_ranks

        job = of_ranks(job, world)
    try:
        where, notes = with_fabric(where, job, gpus_per_node)
    except ForetraceError:
        # What one rank alone exchanges may take no time; what a job does may not.
        if len(job.graphs) > 1 or job.alike or supposed.ranks:
            raise
        notes = []
    if len(job.graphs) > 1 or supposed.ranks or gpus_per_node or (job.alike and where.fabric):
        from foretrace.forecast.jobs.predict import predict_job  # what one rank does without

        return _noted(predict_job(job, where, kernels, step, supposed, gpus_per_node), notes)
    return _noted(predict_rank(job, where, kernels, step), notes)


def with_fabric(where: Platform, job: Job, gpus_per_node: int | None) -> tuple[Platform, list[str]]:
    """The platform with what joins its devices, where a job exchanges anything; and what to say of that.

    >>> from foretrace.graph import OpTable
    >>> with_fabric(platform("h200"), Job([Graph(OpTable.of([]))]), None)[0].fabric
    """
    if where.fabric is not None or job.world == 1 or not any(graph.collectives for graph in job.graphs):
        return where, []
    joined, notes = joined_by(None, None, where.device.matches, job.world, gpus_per_node)
    return where.having(fabric=joined), notes


def _is_measured(job: Job, world: int | None) -> bool:
    """Whether a job was profiled: several of its ranks; or one, where that shall stand for all."""
    ranks = job.graphs if world is None else job.graphs[:1]
    enough = job.world > 1 and (len(ranks) > 1 or world is not None)
    return enough and not job.alike and all(np.isfinite(graph.ops.start).any() for graph in ranks)


def _noted(forecast: Forecast, notes: list[str]) -> Forecast:
    return replace(forecast, notes=[*forecast.notes, *notes])


def at_hand(what: Graph | Job | str | Path, device: str = "cuda", world: int | None = None) -> Job:
    """What is predicted, as a job; the rest is as in `read`.

    >>> from foretrace.graph import OpTable
    >>> at_hand(Graph(OpTable.of([]), source="mine")).source
    'mine'
    """
    if isinstance(what, Graph):
        return Job([what], what.source)
    if isinstance(what, Job):
        return what
    check_path(what, "what is predicted")
    return read(what, device, world)


def read(what: str | Path, device: str = "cuda", world: int | None = None) -> Job:
    """Read or sketch a step.

    Parameters
    ----------
    what
        A recording's folder; a trace; or a script, ``train.py`` or ``train.py:function``, whose step is sketched.
    device
        The kind of device that a script shall find: ``"cuda"``, with or without a GPU, or ``"cpu"``.
    world
        How many ranks the process group has that a script shall find, where it asks for one.
    """
    script = script_of(what)
    if script is None:
        return load(what)
    from foretrace.record.script import sketch_script  # here, since it brings torch

    graph = sketch_script(*script, "cuda" if device == "cuda" else None, world)
    return Job([graph], graph.source)


def script_of(what: str | Path) -> tuple[Path, str | None] | None:
    """A script and the function in it, where one is named; None for anything else.

    >>> script_of("train.py:build"), script_of("run")
    ((PosixPath('train.py'), 'build'), None)
    """
    path, _, function = str(what).partition(".py:")
    if function:
        return Path(f"{path}.py"), function
    return (Path(path), None) if path.endswith(".py") else None
