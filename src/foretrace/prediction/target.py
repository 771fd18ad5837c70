"""Where a job is predicted: on its own machine as measured, or on a platform with its fabric and software stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from foretrace.errors import ForetraceError
from foretrace.platform.registry import DEFAULT_PLATFORM, load_platform
from foretrace.prediction.overrides import RankOverrides
from foretrace.prediction.predict import predict_on_own_machine, predict_on_platform

if TYPE_CHECKING:
    from foretrace.analysis.report import StepReport
    from foretrace.graph import Job
    from foretrace.platform.fabric import Fabric
    from foretrace.platform.host import Host
    from foretrace.platform.platform import Platform
    from foretrace.platform.stack import Stack

OWN = "own"
"""What stands for a platform where the machine that a job was profiled on is meant."""


class Target(NamedTuple):
    """The machine that a prediction is asked for."""

    platform: Platform | None = None
    """None leaves it to the job: one that was measured stays on its own machine, any other goes to the default."""
    fabric: Fabric | Platform | str | Path | None = None
    """The fabric that was named, which the platform has already."""
    own_machine: bool = False
    """Whether the job's own machine was asked for."""
    has_named_host: bool = False
    """Whether the platform's host was named."""

    @property
    def device_kind(self) -> str:
        """The kind of device that a script finds there."""
        return self.platform.device.kind if self.platform else "cuda"


@dataclass(frozen=True)
class PredictionOptions:
    """What a prediction is asked for besides its machine; the fields are those of `foretrace.predict`."""

    kernels: str | None = None
    step: str | None = None
    gpus_per_node: int | None = None
    world: int | None = None
    overrides: RankOverrides = field(default_factory=RankOverrides)
    drop_gaps: bool = False
    stack: Stack | str | Path = "auto"


def find_target(
    on: Platform | str | Path | None,
    host: Host | Platform | str | Path | None,
    fabric: Fabric | Platform | str | Path | None,
    kernels: str | None,
    power_limit: float | None,
    alloc_conf: str,
) -> Target:
    """The machine that the parameters of `foretrace.predict` name."""
    changed = host is not None or power_limit is not None or bool(alloc_conf)
    if on == OWN:
        if changed or kernels == "model":
            raise ForetraceError(
                "on its own machine a job keeps the hosts and kernels that were measured",
                "Leave out what changes them, or name the platform that is like it: --on a100.",
            )
        return Target(None, fabric, own_machine=True)
    if on is None and not changed:
        return Target(None, fabric)
    platform = load_platform(DEFAULT_PLATFORM if on is None else on, host, fabric)
    if power_limit is not None:
        from foretrace.platform.power import with_power_limit

        platform = with_power_limit(platform, power_limit)
    if alloc_conf:
        from foretrace.simulation.caching_allocator import AllocatorSettings

        AllocatorSettings.parse(alloc_conf)
        platform = replace(platform, device=replace(platform.device, alloc_conf=alloc_conf))
    return Target(platform, fabric, has_named_host=host is not None)


def predict_job(job: Job, target: Target, options: PredictionOptions) -> StepReport:
    """Predict a job on the machine that is asked for, or that it was measured on."""
    where = target.platform
    if target.own_machine:
        _check_measured(job)
    if target.own_machine or (where is None and options.kernels != "model" and _is_measured(job, options.world)):
        report = _on_own_machine(job, target.fabric, options)
    elif where is not None and options.world is None and not target.has_named_host and _ran_on(job, where, options):
        report = _as_measured_on(where, job, target.fabric, options)
    else:
        where = where or load_platform(DEFAULT_PLATFORM, fabric=target.fabric)
        report = predict_on(job, where, options)
    if report.workings is not None and options.world is None:  # charts show the measured step, too
        report.workings = replace(report.workings, job=job, step=options.step)
    return report


def predict_on(job: Job, where: Platform, options: PredictionOptions) -> StepReport:
    """Predict a job on a platform, which is given the fabric and the software stack that it lacks."""
    if len(job.graphs) > 1:
        job = for_device(job, where.device.kind)
    if options.world is not None:
        from foretrace.prediction.scaling import at_world_resharded

        job = at_world_resharded(job, options.world)
    must_communicate = len(job.graphs) > 1 or bool(job.alike or options.overrides.ranks)
    where, notes = find_fabric_and_stack(where, job, options.gpus_per_node, options.stack, must_communicate)
    report = predict_on_platform(
        job, where, options.kernels, options.step, options.overrides, options.gpus_per_node, options.drop_gaps
    )
    return replace(report, notes=[*report.notes, *notes])


def find_fabric_and_stack(
    where: Platform, job: Job, gpus_per_node: int | None, stack: Stack | str | Path, must_communicate: bool
) -> tuple[Platform, list[str]]:
    """The platform with the fabric and the software stack of a job, and notes on the fabric.

    A stack is named, or read from its file; ``auto`` is as `foretrace.platform.stack` has it. Without
    ``must_communicate`` a job whose GPUs no shipped fabric connects has none: the collectives of one rank alone may
    take no time.
    """
    notes: list[str] = []
    try:
        where, notes = with_fabric(where, job, gpus_per_node)
    except ForetraceError:
        if must_communicate:
            raise
    if stack == "auto" and where.cross_device is None:  # measured here: most predictions
        return where, notes
    from foretrace.platform.stack import find_stack

    found = find_stack(stack, where, job.world, job.graphs)
    return where if found is None else found.applied(where), notes


def with_fabric(where: Platform, job: Job, gpus_per_node: int | None) -> tuple[Platform, list[str]]:
    """The platform with a fabric, where a job communicates; and notes on that.

    >>> from foretrace.graph import Graph, Job, OpTable
    >>> with_fabric(load_platform("h200"), Job([Graph(OpTable.of([]))]), None)[0].fabric
    """
    if where.fabric is not None or job.world == 1 or not any(graph.collectives for graph in job.graphs):
        return where, []
    from foretrace.prediction.fabric_choice import choose_fabric  # here, since most jobs are of one rank

    chosen, notes = choose_fabric(None, None, where.device.matches, job.world, gpus_per_node)
    return where.having(fabric=chosen), notes


def fabrics_of_one_kind(
    job: Job, where: Platform | None, worlds: Sequence[int], options: Mapping[str, object]
) -> tuple[Sequence[object], list[str]]:
    """The fabrics of jobs of several sizes: the one named in the options, or shipped ones for machines of one kind."""
    named, several = options.get("fabric"), [world for world in worlds if world > 1]
    communicates = any(graph.collectives for graph in job.graphs)
    if named is not None or (where and where.fabric) or not several or not communicates:
        return [named] * len(worlds), []
    from foretrace.prediction.fabric_choice import device_of, fabrics_of

    if where is None and not _is_measured(job, max(several)):
        where = load_platform(DEFAULT_PLATFORM)
    device = where.device.matches if where else device_of(job)
    found = dict(zip(several, fabrics_of(device, several, options.get("gpus_per_node"))))  # type: ignore[arg-type]
    names = ", ".join(dict.fromkeys(fabric.name for fabric in found.values()))
    return [found.get(world) for world in worlds], [
        f"fabric {names}: shipped, the same kind of machine for all sizes; --fabric names another"
    ]


def for_device(job: Job, device: str, sketched: bool = False) -> Job:
    """A job as it is; one of CPUs that is asked for on GPUs, with its tensors there and a note."""
    if device == "cpu" or any(len(graph.kernels) for graph in job.graphs):
        return job
    if not all(graph.lies_on_host for graph in job.graphs):
        return job
    from foretrace.transforms.to_gpu import on_gpu  # here, since most steps lie there already

    return replace(job, graphs=[on_gpu(graph, sketched) for graph in job.graphs])


def _on_own_machine(job: Job, fabric: Fabric | Platform | str | Path | None, options: PredictionOptions) -> StepReport:
    """A measured job where it was measured, with overrides; or one of another size, made of that."""
    measured, notes = None, list[str]()
    if options.world is not None:
        from foretrace.prediction.scaling import at_world

        measured, job = job, at_world(job, options.world)
    chosen = None
    if fabric is not None or (job.world > 1 and (len(job.graphs) > 1 or measured)):
        from foretrace.prediction.fabric_choice import choose_fabric, device_of

        chosen, notes = choose_fabric(fabric, None, device_of(measured or job), job.world, options.gpus_per_node)
    report = predict_on_own_machine(
        job, chosen, options.step, options.overrides, options.gpus_per_node, measured, options.drop_gaps
    )
    return replace(report, notes=[*report.notes, *notes])


def _as_measured_on(
    where: Platform, job: Job, fabric: Fabric | Platform | str | Path | None, options: PredictionOptions
) -> StepReport:
    """A job that was measured on the platform's GPU, whose host was not: hosts and kernels stay as measured."""
    report = _on_own_machine(job, fabric or where.fabric, options)
    report.platform = where.name
    is_of = "is" if job.graphs[0].device else "is taken to be"
    report.notes.append(
        f"hosts and kernels as measured: the trace {is_of} of this GPU, and the host of {where.name} was not "
        "measured; --host names another, --kernels model models both"
    )
    return report


def _check_measured(job: Job) -> None:
    if job.alike or not all(np.isfinite(graph.ops.start).any() or len(graph.kernels) for graph in job.graphs):
        raise ForetraceError(
            f"{job.source} was not measured on any machine: it has no times", "Name a platform, as --on h200."
        )


def _is_measured(job: Job, world: int | None) -> bool:
    """Whether a job was profiled: several of its ranks; or one, where that shall stand for all."""
    ranks = job.graphs if world is None else job.graphs[:1]
    enough = job.world > 1 and (len(ranks) > 1 or world is not None)
    return enough and not job.alike and all(np.isfinite(graph.ops.start).any() for graph in ranks)


def _ran_on(job: Job, where: Platform, options: PredictionOptions) -> bool:
    """Whether a profiled job ran on the GPU of a platform that only has a description: what was measured is then known
    better. Where its trace names no GPU, ``kernels`` as measured say that it did.
    """
    if where.cross_device is None or options.kernels == "model" or job.alike or not job.graphs:
        return False
    if not all(graph.has_times and len(graph.kernels) for graph in job.graphs):
        return False
    device = job.graphs[0].device
    if where.device.matches.endswith("scaled") or (options.kernels is None and not where.device.is_named(device)):
        return False
    return not device or where.device.may_be(device)
