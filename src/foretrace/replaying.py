"""Benchmarks from whatever a user has at hand, and replays of it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from foretrace.graph import ForetraceError, Graph, Job
from foretrace.loading import load
from foretrace.replay.folder import Choices
from foretrace.replay.ranks import write_job
from foretrace.replay.running import How, Replay, is_benchmark, run_benchmark
from foretrace.replay.suite import Member, Suite


def benchmark(what: Graph | Job | str | Path, out: str | Path, choices: Choices | None = None) -> Path:
    """Write a benchmark of a training step: a folder that runs anywhere, with neither the model's code nor its data.

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
    return write_job(_job(what), Path(out), choices or Choices())


def replay(
    what: Graph | Job | str | Path,
    choices: Choices | None = None,
    how: How | None = None,
    keep: str | Path | None = None,
) -> Replay:
    """Run a training step again from its recording alone, and hold it against the original.

    Parameters
    ----------
    what
        A loaded recording or trace, its path, or the folder of a benchmark.
    choices
        Which calls to take; all where it is left out.
    how
        How many steps to time, where, and whether to spend the original's host time between calls.
    keep
        Folder to leave the benchmark in.
    """
    if isinstance(what, (str, Path)) and is_benchmark(Path(what)):
        return run_benchmark(Path(what), how)
    with tempfile.TemporaryDirectory() as folder:
        made = benchmark(what, keep or Path(folder) / "benchmark", choices)
        return run_benchmark(made, how)


def replay_suite(
    members: Sequence[Member],
    choices: Choices | None = None,
    how: How | None = None,
    keep: str | Path | None = None,
) -> Suite:
    """Replay many recordings, one after the other. One that can't be replayed does not end the others.

    Parameters
    ----------
    members
        The recordings, benchmarks or traces, with their weights.
    choices, how
        As for `replay`, the same for all.
    keep
        Folder to leave the benchmarks in, each in a folder of its own.
    """
    results: list[Replay | ForetraceError] = []
    for number, member in enumerate(members):
        place = None if keep is None else Path(keep) / f"{number}-{member.name}"
        try:
            results.append(replay(member.what, choices, how, place))
        except ForetraceError as problem:
            results.append(problem)
    return Suite(tuple(members), tuple(results))


def _job(what: Graph | Job | str | Path) -> Job:
    if isinstance(what, Graph):
        return Job([what], what.source)
    return what if isinstance(what, Job) else load(what)
