"""Adding recordings to a store: reduced in parallel, skipped where they are known."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from foretrace._progress import OnProgress, Progress
from foretrace.analysis.report import NotebookDocument
from foretrace.api import load, observe, predict
from foretrace.errors import ForetraceError
from foretrace.fleet.labels import HOURS, NAMED, Labels, check_agree, labelled, labels_for, unmatched
from foretrace.fleet.record import StepRecord
from foretrace.fleet.recordings import Found, content_id, files_of, find_recordings, local_copy, name_in
from foretrace.fleet.reduction import reduce_step
from foretrace.fleet.store import ORIGINALS, Store, from_table
from foretrace.output import atomic_folder
from foretrace.platform.registry import DEFAULT_PLATFORM
from foretrace.processes import map_in_processes
from foretrace.whatif.workers import ray_cluster

PART_RECORDS, PART_S = 64, 15.0
"""Records that are written at once, and seconds after which fewer are: what a killed process loses at most."""
PER_TASK = 8
"""Recordings that a worker is given at once."""


@dataclass(frozen=True, order=True)
class Broken:
    """A recording that could not be read."""

    path: str
    why: str


class Task(NamedTuple):
    """Recordings for a worker to reduce."""

    found: tuple[Found, ...]
    known: frozenset[str]
    """Ids in the store."""
    copies: str
    """Folder for copies of the originals; empty for none."""
    on: str
    """Where steps without measured times are predicted."""


@dataclass
class Added(NotebookDocument):
    """The result of `fleet add`."""

    store: str
    added: int = 0
    there: int = 0
    """Recordings that the store had already."""
    relabelled: int = 0
    broken: list[Broken] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def add_recordings(
    store: Store,
    paths: Iterable[str],
    labels: Labels | None = None,
    by_recording: Mapping[str, Labels] | None = None,
    copy: bool = False,
    relabel: bool = False,
    on: str = DEFAULT_PLATFORM,
    workers: int | None = None,
    ray: str | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> Added:
    """Add recordings to a store; those that it has are skipped, those that can't be read are listed.

    Parameters
    ----------
    store
        Where to.
    paths
        Recordings, traces, folders with any number of them, or addresses of object stores.
    labels, by_recording
        Labels of all of them, and of single ones by name or path.
    copy
        Keep a copy of each in the store.
    relabel
        Whether labels may replace others.
    on
        Where steps that were not timed are predicted.
    workers, ray
        Processes to reduce with, as many as there are cores by default; or the address of a Ray cluster.
    on_progress
        Called with what is being done.
    """
    on_progress(Progress("looking for recordings"))
    found = list({one.path: one for path in paths for one in find_recordings(path, store.path)}.values())
    given = {one.path: labels_for(one.path, one.name, labels or {}, by_recording or {}) for one in found}
    done = Added(str(store.path))
    done.notes += [f"no recording is called {name}" for name in unmatched(by_recording or {}, _names(found))[:8]]
    todo = _not_there(store, found, given, relabel, done)
    known = frozenset(store.table(["id"]).column("id").to_pylist())
    copies = str(store.path / ORIGINALS) if copy else ""
    tasks = [Task(tuple(todo[first : first + PER_TASK]), known, copies, on) for first in range(0, len(todo), PER_TASK)]
    waiting, written = list[StepRecord](), time.monotonic()
    on_progress(Progress("adding recordings", 0, len(todo)))
    try:
        for finished, results in enumerate(_reduced(tasks, workers, ray), 1):
            for path, result in results:
                if isinstance(result, StepRecord):
                    waiting.append(labelled(result, given[path]))
                    done.added += 1
                elif isinstance(result, Broken):
                    done.broken.append(result)
                else:
                    done.there += 1
            if len(waiting) >= PART_RECORDS or time.monotonic() > written + PART_S:
                store.add(waiting)
                waiting, written = [], time.monotonic()
            on_progress(Progress("adding recordings", min(finished * PER_TASK, len(todo)), len(todo)))
    finally:
        store.add(waiting)
    store.merge()
    done.broken.sort()
    return done


def _names(found: Sequence[Found]) -> list[str]:
    return [name for one in found for name in (one.path, one.name)]


def _not_there(
    store: Store, found: Sequence[Found], given: Mapping[str, Labels], relabel: bool, done: Added
) -> list[Found]:
    """The recordings that the store does not have from the same place; those that it has get new labels."""
    table = store.table(["stamp", HOURS, *NAMED, "name", "labels"])
    rows = {(row["source"], row["stamp"]): row for row in table.to_pylist()}
    todo, changed = [], {}
    for one in found:
        row = rows.get((one.path, one.stamp))
        if row is None:
            todo.append(one)
            continue
        done.there += 1
        had = {name: row[name] for name in NAMED} | {label["_0"]: label["_1"] for label in row["labels"]}
        had[HOURS] = "" if row[HOURS] is None else str(row[HOURS])
        if relabel:
            changed[row["id"]] = given[one.path]
        else:
            check_agree(row["name"], had, given[one.path])
            if any(not had.get(name) for name in given[one.path] if name != "date"):
                changed[row["id"]] = given[one.path]
    if changed:
        import pyarrow.compute as pc

        whole = store.table()
        relabelled = from_table(whole.filter(pc.is_in(whole.column("id"), value_set=_array(changed))))
        after = [replace(labelled(one, changed[one.id]), revision=one.revision + 1) for one in relabelled]
        after = [new for new, old in zip(after, relabelled) if replace(new, revision=old.revision) != old]
        store.add(after)
        done.relabelled = len(after)
    return todo


def _array(values: Iterable[str]) -> Any:
    import pyarrow as pa

    return pa.array(list(values), pa.string())


Result = tuple[str, "StepRecord | Broken | None"]
"""A path and what became of it; None where the store has it from elsewhere."""


def _reduced(tasks: Sequence[Task], workers: int | None, ray: str | None) -> Iterator[list[Result]]:
    """What becomes of each task's recordings, as they become ready."""
    if ray is not None:
        yield from _reduced_on_ray(tasks, workers, ray)
        return
    count = min(workers or len(os.sched_getaffinity(0)), len(tasks))
    if count < 2:
        yield from map(reduce_task, tasks)
        return
    try:
        yield from map_in_processes(reduce_task, tasks, count)
    except BrokenProcessPool:
        raise ForetraceError(
            "a process was killed while it read a recording",
            "Memory may have run out: give fewer --workers. What was added is kept, and the same command goes on.",
        ) from None


def _reduced_on_ray(tasks: Sequence[Task], workers: int | None, address: str) -> Iterator[list[Result]]:
    with ray_cluster(address, workers) as (ray, count):
        work, pending = ray.remote(num_cpus=1, max_retries=3)(reduce_task), []
        for task in tasks:
            pending.append(work.remote(task))
            if len(pending) >= 2 * count:
                ready, pending = ray.wait(pending)
                yield from ray.get(ready)
        while pending:
            ready, pending = ray.wait(pending)
            yield from ray.get(ready)


def reduce_task(task: Task) -> list[Result]:
    """Reduce some recordings, one after the other."""
    results = [(one.path, _reduce_one(one, task)) for one in task.found]
    gc.collect()  # the command line has switched it off, and thousands of steps would stay in memory
    return results


def _reduce_one(found: Found, task: Task) -> StepRecord | Broken | None:
    try:
        with local_copy(found.path) as place:
            number = content_id(place)
            if number in task.known:
                return None
            record = reduce_recording(str(place), task.on)
            if task.copies:
                _copy(place, Path(task.copies) / number)
            return replace(record, id=number, name=found.name, source=found.path, stamp=found.stamp)
    except ForetraceError as error:
        return Broken(found.path, str(error))
    except Exception as error:  # one bad file of thousands must not end the others
        return Broken(found.path, f"{type(error).__name__}: {error}")


def reduce_recording(path: str, on: str = DEFAULT_PLATFORM) -> StepRecord:
    """The record of a recording or trace; steps that were not timed are predicted on a platform."""
    job = load(path)
    timed = any(graph.has_times and (len(graph.kernels) or not graph.device) for graph in job.graphs)
    return reduce_step(observe(job) if timed else predict(job, on), job)


def _copy(place: Path, target: Path) -> None:
    if target.exists():
        return
    with atomic_folder(target) as folder:
        for file in files_of(place):
            inside = name_in(place, file) or file.name
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / inside)
