"""Whatever a user has at hand, as a job."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from foretrace.formats.load import load as load_traces
from foretrace.graph import ForetraceError, Job
from foretrace.record.folder import is_recording, refuse_headless

STANDARD_INPUT = Path("/dev/stdin")


def load(*paths: str | Path, ranks: Collection[int] | None = None) -> Job:
    """Read a recording of ours or traces of others.

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
    refuse_nameless(paths)
    paths = tuple(STANDARD_INPUT if str(path) == "-" else path for path in paths)
    wanted = None if ranks is None else set(ranks)
    recordings = [path for path in paths if is_recording(Path(path))]
    if recordings and len(paths) > 1:
        raise ForetraceError(f"{recordings[0]} is a recording, and a whole job by itself", "Show it alone.")
    if recordings:
        from foretrace.record.recording import load_recording

        job = load_recording(recordings[0], wanted)
    else:
        for path in paths:
            refuse_headless(Path(path))
        job = load_traces(paths, wanted)
    absent = sorted((wanted or set()) - {graph.rank for graph in job.graphs})
    if absent:
        lacks, has = (", ".join(map(str, ranks)) for ranks in (absent, [graph.rank for graph in job.graphs]))
        raise ForetraceError(f"{job.source} has no rank {lacks}", f"Of those asked for it has {has}.")
    return job


def refuse_nameless(paths: Collection[str | Path]) -> None:
    """Refuse an empty name, which as a path would be the folder one is in.

    >>> refuse_nameless(["run", ""])
    Traceback (most recent call last):
    foretrace.errors.ForetraceError: the name of what to read is empty. Give a recording or a trace.
    """
    if not all(map(str, paths)):
        raise ForetraceError("the name of what to read is empty", "Give a recording or a trace.")
