"""The public functions that join the packages: reading a job, reporting a measured step, replaying and predicting one.

``import foretrace as ft`` re-exports these, and the public functions of the packages, lazily.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.errors import ForetraceError, check_count, check_path, check_price
from foretrace.graph import MAX_RANKS, Graph, Job

if TYPE_CHECKING:
    from foretrace._progress import OnProgress
    from foretrace.analysis.compare import StepDifference
    from foretrace.analysis.report import StepReport
    from foretrace.platform.fabric import Fabric
    from foretrace.platform.host import Host
    from foretrace.platform.platform import Platform
    from foretrace.platform.stack import Stack
    from foretrace.prediction.scaling import Scaling
    from foretrace.record.command import Script
    from foretrace.replay import Choices, How, Member, Replay, Suite

MS_PER_HOUR = 3.6e6
STANDARD_INPUT = Path("/dev/stdin")
RECORDING_FILE = "job.json"
"""What tells a recording's folder from one of traces."""
MAX_NAME = 255
"""Bytes that the name of a file may have."""


def load(*paths: str | Path, ranks: Collection[int] | None = None) -> Job:
    """Read a recording, or traces of others.

    Parameters
    ----------
    paths
        A recording's folder; or profiler, execution or Chakra traces, gzipped or not: a file, a folder, a glob, or the
        files of several ranks; ``-`` is standard input.
    ranks
        Read only these; all where it is left out.

    Returns
    -------
    The graphs of all ranks, on one clock.
    """
    check_names(paths)
    paths = tuple(STANDARD_INPUT if str(path) == "-" else path for path in paths)
    wanted = None if ranks is None else set(ranks)
    recordings = [path for path in paths if (Path(path) / RECORDING_FILE).is_file()]
    if recordings and len(paths) > 1:
        raise ForetraceError(f"{recordings[0]} is a recording, and a whole job by itself", "Show it alone.")
    if recordings:
        from foretrace.record.recording import load_recording

        job = load_recording(recordings[0], wanted)
    else:
        from foretrace.formats.load import load_traces

        for path in paths:
            _refuse_several_recordings(Path(path))
        if any(any(Path(path).glob("rank-*")) for path in paths):
            from foretrace.record.folder import refuse_headless

            for path in paths:
                refuse_headless(Path(path))
        job = load_traces(paths, wanted)
    absent = sorted((wanted or set()) - {graph.rank for graph in job.graphs})
    if absent:
        lacks, has = (", ".join(map(str, some)) for some in (absent, [graph.rank for graph in job.graphs]))
        raise ForetraceError(f"{job.source} has no rank {lacks}", f"Of those asked for it has {has}.")
    return job


def _refuse_several_recordings(folder: Path) -> None:
    """Refuse a folder of recordings: any traces beside them are of other jobs."""
    inside = sorted(file.parent for file in folder.glob(f"*/{RECORDING_FILE}")) if folder.is_dir() else []
    if inside:
        raise ForetraceError(
            f"{folder} is no recording, and holds {len(inside)}",
            f"Name one: {', '.join(map(str, inside[:3]))}{', …' if len(inside) > 3 else ''}. "
            f"`foretrace ui {folder}` shows all of them.",
        )


def check_names(paths: Collection[str | Path]) -> None:
    """Refuse an empty name, which as a path would be the current folder, and one that no file can have.

    >>> check_names(["run", ""])
    Traceback (most recent call last):
    foretrace.errors.ForetraceError: the name of what to read is empty. Give a recording or a trace.
    """
    if not all(map(str, paths)):
        raise ForetraceError("the name of what to read is empty", "Give a recording or a trace.")
    for name in map(str, paths):
        if "\0" in name or any(len(os.fsencode(part)) > MAX_NAME for part in Path(name).parts):
            raise ForetraceError(f"no file can be called {name[:40]!r}…", "Give a recording or a trace.")


def observe(what: Graph | Job | str | Path, step: str | None = None) -> StepReport:
    """Where the time of a measured step goes.

    Parameters
    ----------
    what
        A loaded recording or trace, or its path; a graph is a job of one rank.
    step
        Which step of a trace that holds several; the one of median length where it is left out.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=800.0), Op("aten::relu", start_us=900.0, end_us=1500.0)])
    >>> observe(Graph(ops)).step_ms
    1.5
    """
    from foretrace.analysis.measure import measure_step

    return measure_step(what if isinstance(what, (Graph, Job)) else load(what), step)


def difference(before: StepReport, after: StepReport) -> StepDifference:
    """What got slower from one step to another, op by op: as `foretrace.analysis.compare_steps`."""
    from foretrace.analysis.compare import compare_steps

    return compare_steps(before, after)


def benchmark(what: Graph | Job | str | Path, out: str | Path, choices: Choices | None = None) -> Path:
    """Write a benchmark of a training step: a folder that needs torch alone, without the model's code and its data.

    Parameters
    ----------
    what
        A loaded recording or trace, or its path. Of a job of several ranks, all of them.
    out
        The folder to write; must not be there yet.
    choices
        Which calls to take, and how they are written; all of them, readably, where it is left out.

    Returns
    -------
    The folder.
    """
    from foretrace.output import check_new_folder
    from foretrace.replay import Choices, is_benchmark, write_job

    if isinstance(what, (str, Path)) and is_benchmark(Path(what)):
        raise ForetraceError(f"{what} is a benchmark already", f"Run it with: python {what}/run.py")
    check_new_folder(Path(out))
    return write_job(_loaded(what), Path(out), choices or Choices())


def replay_step(
    what: Graph | Job | str | Path,
    choices: Choices | None = None,
    how: How | None = None,
    keep: str | Path | None = None,
) -> Replay:
    """Run a training step again from its recording alone, and compare it with the original.

    Parameters
    ----------
    what
        A loaded recording or trace, its path, or the folder of a benchmark.
    choices
        Which calls to take; all where it is left out. Those of a benchmark were chosen when it was written.
    how
        How many steps to time, where, and whether to spend the original's host time between calls.
    keep
        Folder to leave the benchmark in.
    """
    from foretrace.output import check_new_folder
    from foretrace.processes import temporary_folder
    from foretrace.replay.running import How, is_benchmark, run_benchmark, run_written

    how = how or How()
    how.check_device()
    if isinstance(what, (str, Path)) and is_benchmark(Path(what)):
        return run_written(Path(what), how, choices, keep)
    if keep is not None:
        check_new_folder(Path(keep))
    job = _loaded(what)
    how.check_delay(job.world, job.source)
    with temporary_folder() as folder:
        return run_benchmark(benchmark(job, keep or folder / "benchmark", choices), how)


def replay_suite(
    members: Sequence[Member],
    choices: Choices | None = None,
    how: How | None = None,
    keep: str | Path | None = None,
) -> Suite:
    """Replay several recordings, one after the other. One that can't be replayed does not end the others.

    Parameters
    ----------
    members
        The recordings, benchmarks or traces, with their weights.
    choices, how
        As for `replay_step`, the same for all.
    keep
        Folder to leave the benchmarks in, each in a folder of its own.
    """
    from foretrace.replay import Suite

    if how is not None:
        how.check_device()
    results: list[Replay | ForetraceError] = []
    for number, member in enumerate(members):
        folder = None if keep is None else Path(keep) / f"{number}-{member.name}"
        try:
            results.append(replay_step(member.what, choices, how, folder))
        except ForetraceError as problem:
            results.append(problem)
    return Suite(tuple(members), tuple(results))


def _loaded(what: Graph | Job | str | Path) -> Job:
    """A job as it is, a graph as a job of one rank, a path as `load` reads it."""
    if isinstance(what, Graph):
        return Job([what], what.source)
    return what if isinstance(what, Job) else load(what)


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
    drop_gaps: bool = False,
    alloc_conf: str = "",
    stack: Stack | str | Path = "auto",
    power_limit: float | None = None,
    price: float | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> StepReport:
    """How long a training step takes on a platform, and why.

    Parameters
    ----------
    what
        A sketch, a loaded recording or trace; or the path of a recording, of a trace, or of a script, ``train.py`` or
        ``train.py:function``, whose step is sketched; or the command that starts a script, ``python train.py --batch
        32``, whose own loop is sketched. Of a job, all ranks that have a graph are simulated together.
    on
        A platform, its name, or its folder; ``"own"`` is the machine that a profiled job ran on, whatever that is. Left
        out, a job that was profiled on several ranks stays on its own machine: hosts and kernels as measured,
        collectives by a fabric; so does one profiled rank of a job where it shall stand for a ``world`` of them.
        Anything else, and what asks for the models of a platform or for another
        host, is predicted on an ``h200``.
    kernels
        ``"measured"`` takes the kernel times of the recording, ``"model"`` those of the platform's models. Left out,
        the recording's are taken where it was made on the platform's own device.
    step
        Which step of a trace that holds several; the one of median length where it is left out.
    host, fabric
        As in `load_platform`: those of another platform. Left out, the fabric is the platform's own, or else the
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
    drop_gaps
        Leave out measured host time that no model covers: data loading, checkpoints, work of the CPU, long pauses.
        Without it such time is carried over from the trace, scaled by the hosts where both are known.
    alloc_conf
        ``PYTORCH_CUDA_ALLOC_CONF`` of the processes, as ``"expandable_segments:True"``: what is reserved depends on it.
    stack
        The software of the cluster: the name of a shipped stack, the file of one that `foretrace check-table` fitted,
        ``"none"``; ``"auto"`` takes the shipped one for jobs on devices that were not measured here.
    power_limit
        Watts that each GPU is limited to, below its own limit: steps that would draw more are slower.
    price
        Of an hour and GPU: the report then has the price of a step.
    on_progress
        Called with what is being done, where that takes long.

    Returns
    -------
    The report: step time with its range, device time, idle time and its causes, memory, critical path, what each rank
    waits for, and how much of the device time is known in which way.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> square = Tensor((4096, 4096), "bfloat16", "cuda:0")
    >>> report = predict(Graph(OpTable.of([Op("aten::mm", (square, square), outputs=(square,))])), on="h200")
    >>> 0.1 < report.device_active_ms < 1.0
    True
    """
    from foretrace._progress import Progress
    from foretrace.prediction.overrides import RankOverrides
    from foretrace.prediction.target import PredictionOptions, find_target, predict_job

    overrides = RankOverrides(slow_host or {}, host_of or {}, slow_link or {})
    if price is not None:
        check_price(price)
    if gpus_per_node is not None:
        check_count(gpus_per_node, "gpus_per_node", MAX_RANKS)
    world = launched_world(what) if world is None else world
    if world is not None:
        check_count(world, "world", MAX_RANKS)
        overrides.check_alike()
    target = find_target(on, host, fabric, kernels, power_limit, alloc_conf)
    options = PredictionOptions(kernels, step, gpus_per_node, world, overrides, drop_gaps, stack)
    on_progress(Progress(f"sketching {what}" if isinstance(what, (str, Path)) and script_of(what) else "reading"))
    job = as_job(what, target.device_kind, world)
    on_progress(Progress("predicting"))
    report = predict_job(job, target, options)
    if price is not None:
        report.price_of_1000 = 1000 * price * report.world * (report.sustained_ms or report.period_ms) / MS_PER_HOUR
    return report


def scaling(
    what: Graph | Job | str | Path, worlds: Sequence[int], on: Platform | str | Path | None = None, **options: object
) -> Scaling:
    """Predictions of jobs of several sizes, all of ranks that do what the first one of this job does.

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
    >>> [row.world for row in scaling(step, [1, 2]).rows]
    [1, 2]
    """
    from foretrace.platform.registry import DEFAULT_PLATFORM, load_platform
    from foretrace.prediction.scaling import scaling_curve
    from foretrace.prediction.target import fabrics_of_one_kind

    if isinstance(worlds, (str, int)) or not worlds:
        raise ForetraceError(f"no curve can be made of {worlds!r}", "Give some worlds, for instance [1, 2, 4, 8].")
    for world in worlds:
        check_count(world, "a world", MAX_RANKS)
    host = options.pop("host", None)
    several = [world for world in worlds if world > 1]
    where = None
    if on is not None or host is not None:
        where = load_platform(on or DEFAULT_PLATFORM, host, options.pop("fabric", None))  # type: ignore[arg-type]
    fewest = min(several or worlds)
    job = as_job(what, where.device.kind if where else "cuda", fewest)
    fabrics, notes = fabrics_of_one_kind(job, where, worlds, options)
    if isinstance(what, (str, Path)) and script_of(what) and job.graphs[0].collectives:
        notes.append(
            f"the script was sketched as one of {fewest:,} ranks: with more of them, all are assumed to do the same"
        )
    each = [
        predict(job, where, world=world, **{**options, "fabric": one})  # type: ignore[arg-type]
        for world, one in zip(worlds, fabrics)
    ]
    curve = scaling_curve(each)
    return replace(curve, notes=[*curve.notes, *notes])


def as_job(
    what: Graph | Job | str | Path,
    device: str = "cuda",
    world: int | None = None,
    compile: str | None = None,
    programs: bool = False,
) -> Job:
    """What is predicted, as a job: a graph is a job of one rank, a path is read or sketched as in `read`.

    >>> from foretrace.graph import OpTable
    >>> as_job(Graph(OpTable.of([]), source="mine")).source
    'mine'
    """
    if compile is not None and not (isinstance(what, (str, Path)) and script_of(what)):
        raise ForetraceError(
            "only a script can be compiled, or not, for a prediction: a step is recorded as it was",
            "Give the script, as in foretrace whatif train.py --set compile=on.",
        )
    if isinstance(what, Graph):
        return Job([what], what.source)
    if isinstance(what, Job):
        return what
    check_path(what, "what is predicted")
    return read(what, device, world, compile, programs)


def read(
    what: str | Path,
    device: str = "cuda",
    world: int | None = None,
    compile: str | None = None,
    programs: bool = False,
) -> Job:
    """Read or sketch a step.

    Parameters
    ----------
    what
        A recording's folder; a trace; a script, ``train.py`` or ``train.py:function``, whose step is sketched; or the
        command that starts one.
    device
        The kind of device that a script shall find: ``"cuda"``, with or without a GPU, or ``"cpu"``.
    world
        How many ranks the process group has that a script shall find, where it asks for one.
    compile
        Whether a script's models are compiled, whatever it says itself: ``"on"``, ``"reduce-overhead"``, ``"off"``.
    programs
        Whether a script's graph shall have the graphs of compiled programs, which edits of a compiled step need.
    """
    from foretrace.prediction.target import for_device

    script = script_of(what)
    if script is None:
        job = load(what)
        return for_device(job, device) if job.world == len(job.graphs) == 1 else job
    script = script._replace(compile=compile, programs=programs)
    from foretrace.record.script import sketch_command  # here, since it brings torch

    graph = sketch_command(script, "cuda" if device == "cuda" else None, world or script.world)
    job = Job([graph], graph.source)
    if graph.world > 1 or graph.programs:
        return job
    return for_device(job, device, sketched=True)


def script_of(what: str | Path) -> Script | None:
    """A script to sketch, and how it is started; None for anything else.

    >>> script_of("train.py:build").function, script_of("python train.py --batch 32").arguments, script_of("run")
    ('build', ('--batch', '32'), None)
    """
    text = str(what)
    if ".py" not in text and " " not in text:
        return None
    from foretrace.record.command import find_script

    return find_script(text)


def launched_world(what: object) -> int | None:
    """Ranks that the launcher of a command starts; None for anything else.

    >>> launched_world("torchrun --nproc-per-node 8 train.py"), launched_world("train.py")
    (8, None)
    """
    script = script_of(what) if isinstance(what, str) else None
    return script.world if script else None
