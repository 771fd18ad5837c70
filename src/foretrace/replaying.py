"""Benchmarks from whatever a user has at hand, and replays of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from foretrace.api import load
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.output import check_new_folder
from foretrace.processes import temporary_folder
from foretrace.replay.folder import Choices
from foretrace.replay.ranks import write_job
from foretrace.replay.running import How, Replay, is_benchmark, run_benchmark
from foretrace.replay.suite import Member, Suite

DEVICES = ("cpu", "cuda", "meta")


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
    if _benchmark(what) is not None:
        raise ForetraceError(f"{what} is a benchmark already", f"Run it with: python {what}/run.py")
    check_new_folder(Path(out))
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
        Which calls to take; all where it is left out. A benchmark's are what they are.
    how
        How many steps to time, where, and whether to spend the original's host time between calls.
    keep
        Folder to leave the benchmark in.
    """
    how = how or How()
    _check_device(how)
    written = _benchmark(what)
    if written is not None:
        _check_whole(written, choices, keep)
        if how.delayed:
            _check_delay(_world(written), str(written))
        return run_benchmark(written, how)
    if keep is not None:
        check_new_folder(Path(keep))
    job = _job(what)
    if how.delayed:
        _check_delay(job.world, job.source)
    with temporary_folder() as folder:
        made = benchmark(job, keep or folder / "benchmark", choices)
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
    _check_device(how or How())
    results: list[Replay | ForetraceError] = []
    for number, member in enumerate(members):
        place = None if keep is None else Path(keep) / f"{number}-{member.name}"
        try:
            results.append(replay(member.what, choices, how, place))
        except ForetraceError as problem:
            results.append(problem)
    return Suite(tuple(members), tuple(results))


def _benchmark(what: Graph | Job | str | Path) -> Path | None:
    """The folder of a benchmark, where that is what it is."""
    return Path(what) if isinstance(what, (str, Path)) and is_benchmark(Path(what)) else None


def _check_device(how: How) -> None:
    if how.device not in (None, *DEVICES):
        raise ForetraceError(f"a replay can't run on {how.device!r}", f"It runs on {', '.join(DEVICES)}.")


def _check_whole(folder: Path, choices: Choices | None, keep: str | Path | None) -> None:
    """Nothing is asked of a benchmark that was settled when it was written."""
    if choices not in (None, Choices()):
        raise ForetraceError(
            f"{folder} is a benchmark: what it takes of the step, and how, was chosen when it was written",
            "Write another one from the recording, with foretrace benchmark and these options.",
        )
    if keep is not None:
        raise ForetraceError(f"{folder} is a benchmark already", "Leave out --keep, or copy the folder.")


def _check_delay(world: int, source: str) -> None:
    if world == 1:
        raise ForetraceError(f"{source} is of one rank: it has no collectives to delay", "Leave out --delayed.")


def _world(folder: Path) -> int:
    """How many ranks the job had that a benchmark was made of."""
    path = next(path for path in (folder / "ranks.json", folder / "calls.json") if path.is_file())
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return len(facts["ranks"]) if path.name == "ranks.json" else int(facts["world"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ForetraceError(f"{path} does not hold what it should", "Write the benchmark again.") from None


def _job(what: Graph | Job | str | Path) -> Job:
    if isinstance(what, Graph):
        return Job([what], what.source)
    return what if isinstance(what, Job) else load(what)
