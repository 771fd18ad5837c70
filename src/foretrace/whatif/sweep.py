"""Sweeps: a step or a job with many values of its settings, on many platforms."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise, product
from math import inf
from os import cpu_count
from pathlib import Path
from typing import NamedTuple

from foretrace._progress import OnProgress, Progress
from foretrace.api import as_job, script_of
from foretrace.errors import ForetraceError, parse_size
from foretrace.graph import Graph, Job
from foretrace.graph.graph import cautions
from foretrace.platform.platform import Platform
from foretrace.platform.registry import load_platform
from foretrace.platform.stack import AUTO, Stack, named_stack
from foretrace.prediction.notes import recorded_notes
from foretrace.prediction.predict import step_figures
from foretrace.prediction.scaling import NOT_COMMUNICATING
from foretrace.prediction.target import find_fabric_and_stack
from foretrace.whatif.changes import EditedJob, JobChanges
from foretrace.whatif.grammar import JOB_CHANGES, RESIZABLE, Change
from foretrace.whatif.points import Point, Sweep, with_pareto_front
from foretrace.whatif.stored_points import Key, append_points, key_of, read_points, reusable_points, step_digest
from foretrace.whatif.what_if import one_step, strange_batch

MODELLED = (
    "points have no ranges, and are predicted by the platform's models also where the step was measured; `foretrace "
    "whatif` gives the range of one"
)
MAX_IN_PROCESS = 4
"""Combinations that are not worth starting processes for."""


def sweep(
    what: Graph | Job | str | Path,
    on: Iterable[str | Path] | str | Path = ("h200",),
    sets: Mapping[str, Iterable[object] | object] | None = None,
    prices: Mapping[str, float] | None = None,
    memory_limit: int | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    fabric: str | None = None,
    gpus_per_node: int | None = None,
    drop_gaps: bool = False,
    stack: Stack | str | Path = AUTO,
    on_progress: OnProgress = lambda progress: None,
) -> Sweep:
    """Predict a step, or the job whose ranks do it, with every combination of some settings, on several platforms.

    Parameters
    ----------
    what
        As in `foretrace.predict`. Only a path is read by several processes; a graph at hand is swept in this one.
    on
        Names or folders of platforms, or one.
    sets
        Values of each setting: ``{"batch": [256, 512], "tensor": [1, 2, 4], "world": [8]}``. Combinations that
        contradict themselves, or that the step can't be made into, are left out, with the reason.
    prices
        Dollars for an hour of one device, by platform.
    memory_limit
        Bytes that the best point may take on a device; the device's memory where it is left out.
    out
        A file of JSON lines that takes each point as it is done. Points that it already holds are not predicted again,
        where the content of the step and of the platform and the version of Foretrace are still the same.
    workers
        Processes; as many as there are cores where it is left out.
    ray
        The address of a Ray cluster that shall do it, ``"local"`` for one on this machine; every machine of it has to
        be able to read ``what``.
    fabric, gpus_per_node
        What joins the ranks of a job, as in `foretrace.predict`.
    drop_gaps
        Leave out measured host time that no model covers, as in `foretrace.predict`.
    stack
        The software of the cluster, as in `foretrace.predict`.
    on_progress
        Called with how many combinations are done, of how many.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> x, y = (Tensor((64, 1024), "float32", "cuda:0", (1024, 1), id=n, storage=n) for n in (0, 1))
    >>> relu = Op("aten::relu", (x,), outputs=(y,), overload="default", phase="forward")
    >>> found = sweep(Graph(OpTable.of([relu])), sets={"batch": [64, 65536]})
    >>> found.best.changes
    ['batch=65536']
    """
    combinations, names = _combinations(sets or {}), _names(on)
    _check_prices(prices or {}, names)
    source = what.source if isinstance(what, (Graph, Job)) else str(what)
    lengths = (parse_size("seq", change.value)[0] for each in combinations for change in each if change.name == "seq")
    smallest = _smallest_world(combinations)
    subject = Subject(
        what, names, fabric, gpus_per_node, max(lengths, default=0), smallest,
        drop_gaps=drop_gaps, stack=named_stack(stack),
    )  # fmt: skip
    file = Path(out) if out else None
    known, keys, notes = dict[tuple[str, ...], Point](), dict[str, Key](), list[str]()
    if file:
        stored = read_points(file)
        append_points(file, source, [], {})  # a file that can't be written is refused before anything is sketched
        subject, keys = subject.sketched().keyed()
        known, notes = reusable_points(stored, keys, file)
    points, todo = _planned(combinations, names, known)
    if todo:
        subject = subject.sketched()  # once: a script may do something else each time, and takes seconds
    if isinstance(subject.what, (Graph, Job)):
        notes += recorded_notes(as_job(subject.what))
    with closing(_predicted(subject, todo, workers, ray, isinstance(what, (Graph, Job)))) as predicted:
        for number, made in enumerate(predicted, 1):
            points += made
            if file:
                append_points(file, source, made, keys)
            on_progress(Progress("sweeping", number, len(todo)))
    return with_pareto_front(
        Sweep(source, points, memory_limit, [*_strange_batches(points), *notes, MODELLED]), prices or {}
    )


def _strange_batches(points: Iterable[Point]) -> list[str]:
    """A caution where steps of other batches do not take as long as they should, of the first two that show it."""
    alike: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        if point.error is None and point.samples and not any(change.startswith("world=") for change in point.changes):
            others = (change for change in point.changes if not change.startswith("batch="))
            alike.setdefault((*others, point.platform), []).append(point)
    for some in alike.values():
        for one, other in pairwise(sorted(some, key=lambda point: point.samples or 0)):
            if found := strange_batch(one.samples, other.samples, one.step_ms or 0.0, other.step_ms or 0.0):
                return [found]
    return []


def _names(on: Iterable[str | Path] | str | Path) -> tuple[str, ...]:
    """Platforms that are swept, each once."""
    given = [on] if isinstance(on, (str, Path)) else list(on)
    if other := next((each for each in given if not isinstance(each, (str, Path))), None):
        raise ForetraceError(f"a sweep can't take a {type(other).__name__}", "Give names or folders of platforms.")
    return tuple(dict.fromkeys(map(str, given)))


def _check_prices(prices: Mapping[str, float], names: Sequence[str]) -> None:
    if unknown := sorted(set(prices) - set(names)):
        raise ForetraceError(
            f"a price is given for {', '.join(unknown)}", f"Platforms of the sweep are {', '.join(names)}."
        )
    for name, price in prices.items():
        if not isinstance(price, (int, float)) or not 0 <= price < inf:
            raise ForetraceError(f"{price!r} is no price of {name}", "Give dollars for an hour, like 3.5.")


def _combinations(sets: Mapping[str, Iterable[object] | object]) -> list[Combination]:
    """Every combination of values; what is made of an edited step changes fastest, then sizes that are found once."""
    names = sorted(sets, key=lambda name: (name in JOB_CHANGES, name in RESIZABLE))
    values = [[Change.read(f"{name}={value}") for value in dict.fromkeys(_several(sets[name]))] for name in names]
    return list(product(*values))


def _several(values: Iterable[object] | object) -> Iterable[object]:
    """Values of a setting; a single one need not be in a list."""
    return values if isinstance(values, Iterable) and not isinstance(values, str) else [values]


def _planned(
    combinations: Sequence[Combination], on: Sequence[str], known: Mapping[tuple[str, ...], Point]
) -> tuple[list[Point], list[Task]]:
    """Points that are known already or can't be made, and what is left to do."""
    points, todo = list[Point](), list[Task]()
    for combination in combinations:
        keys = {name: (*map(str, combination), name) for name in on}
        points += [known[key] for key in keys.values() if key in known]
        names = [name for name, key in keys.items() if key not in known]
        try:
            JobChanges.of(combination)
        except ForetraceError as error:
            points += skipped_points(combination, names, error)
        else:
            todo += [(combination, names)] if names else []
    return points, todo


def _smallest_world(combinations: Sequence[Combination]) -> int | None:
    """Ranks that a script is sketched with that asks for a process group: more of them do the same."""
    worlds = set()
    for combination in combinations:
        try:
            asked = JobChanges.of(combination)
        except ForetraceError:
            continue
        worlds.add(None if asked.parallelism else asked.world)
    return min((world for world in worlds if world is not None and world > 1), default=None)


def _predicted(
    subject: Subject, todo: Sequence[Task], workers: int | None, ray: str | None, in_memory: bool
) -> Generator[list[Point], None, None]:
    """The points of each task, as they are done."""
    if ray is not None and in_memory:
        raise ForetraceError("a step in memory can't be sent to a Ray cluster", "Give the path of a recording.")
    if ray is not None:
        from foretrace.whatif.workers import predicted_on_ray

        yield from predicted_on_ray(ray, subject, todo, workers) if todo else ()
        return
    count = min(workers or cpu_count() or 1, len(todo))
    if in_memory or count < 2 or (workers is None and len(todo) <= MAX_IN_PROCESS):
        if todo:
            swept = Swept(subject)
            yield from (swept.points(*task) for task in todo)
        return
    from foretrace.whatif.workers import predicted_in_processes

    yield from predicted_in_processes(subject, todo, count)


Combination = tuple[Change, ...]
Task = tuple[Combination, list[str]]
"""A combination, and the platforms on which it is to be predicted."""


class Subject(NamedTuple):
    """The subject of a sweep: a path, a graph or a job."""

    what: Graph | Job | str | Path
    """A script is sketched once, and its job sent to all processes that work on it."""
    on: tuple[str, ...]
    fabric: str | None = None
    gpus_per_node: int | None = None
    longest: int = 0
    """The longest sequence that will be asked for."""
    world: int | None = None
    """Ranks of the process group that a script shall find."""
    digest: str = ""
    """Digest of the files at a path; empty where it is not compared."""
    drop_gaps: bool = False
    """Whether measured host time that no model covers is left out."""
    stack: Stack | str = AUTO
    """The software of the cluster."""
    share: float = 1.0
    """How much of a model it is, where some blocks were left out."""

    def sketched(self) -> Subject:
        """The subject with its script sketched into a job; itself where it is no script."""
        if isinstance(self.what, (Graph, Job)) or script_of(self.what) is None:
            return self
        return self._replace(
            what=as_job(self.what, self.platforms()[self.on[0]].device.kind, self.world, programs=True)
        )

    def keyed(self) -> tuple[Subject, dict[str, Key]]:
        """The subject with its digest, and by platform what its points depend on."""
        digest = step_digest(self.what)
        platforms = self.platforms().items()
        given = self.gpus_per_node, self.stack, self.drop_gaps
        keys = {name: key_of(digest, where, *given) for name, where in platforms}
        return (self if isinstance(self.what, (Graph, Job)) else self._replace(digest=digest)), keys

    def platforms(self) -> dict[str, Platform]:
        """The platforms, with the fabric; hosts take for a part of a model what they take for it in the whole."""
        found = {name: load_platform(name, fabric=self.fabric) for name in self.on}
        if self.share == 1.0:
            return found
        return {name: replace(one, step_share=self.share) for name, one in found.items()}


class Swept:
    """A step or a job that is read once, and predicted again and again."""

    def __init__(self, subject: Subject) -> None:
        self._platforms = subject.platforms()
        self._per_node, self._stack = subject.gpus_per_node, subject.stack
        kind = next(iter(self._platforms.values())).device.kind
        job = as_job(subject.what, kind, subject.world, programs=True)
        if subject.digest and step_digest(subject.what) != subject.digest:
            raise ForetraceError(f"{subject.what} changed while it was swept", "Start the sweep again.")
        self._edited = EditedJob(one_step(job, drop_gaps=subject.drop_gaps), subject.longest)
        self._drop_gaps = subject.drop_gaps

    def points(self, combination: Combination, on: Sequence[str]) -> list[Point]:
        """The points of a combination, one for each platform."""
        changes = [str(change) for change in combination]
        try:
            job = self._edited.by(combination)
        except ForetraceError as error:
            return skipped_points(combination, on, error)
        points, samples = list[Point](), self._edited.samples(combination, job)
        notes = self._edited.batch_notes(combination)
        for name in on:
            try:
                points.append(self._point(Point(changes, name, job.world, samples=samples, notes=notes), job))
            except ForetraceError as error:
                points += skipped_points(combination, [name], error)
        return points

    def _point(self, point: Point, job: Job) -> Point:
        """The point of a job, with its figures."""
        where, alone = self._platforms[point.platform], len(job.graphs) == 1 and not job.alike
        where, _ = find_fabric_and_stack(where, job, self._per_node, self._stack, must_communicate=not alone)
        found, notes = step_figures(job, where, self._per_node, self._drop_gaps)
        if where.stack is not None:
            notes = [where.stack.note(), *notes]
        communicates = any(graph.collectives for graph in job.graphs)
        fabric = where.fabric.name if where.fabric and communicates else None
        if job.world > 1 and not communicates:
            notes = [*notes, NOT_COMMUNICATING]
        notes += point.notes
        notes += cautions([*job.notes, *(note for graph in job.graphs for note in graph.notes)])
        return replace(point, fabric=fabric, notes=notes, **found._asdict())


def skipped_points(combination: Combination, on: Sequence[str], error: ForetraceError) -> list[Point]:
    """The points of a combination that can't be predicted, with the reason: one for each platform."""
    return [Point([str(change) for change in combination], name, error=error.what, notes=[error.advice]) for name in on]
