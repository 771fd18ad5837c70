"""Sweeps: a step with many values of its settings, on many platforms."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import product
from multiprocessing import active_children, get_context
from os import cpu_count
from pathlib import Path
from typing import Any

from foretrace.changes import Change, Edited
from foretrace.forecast.quick import figures
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.graph.edits.batch import batch_of
from foretrace.graph.edits.texts import size_of
from foretrace.platforms import platform
from foretrace.predicting import at_hand
from foretrace.whatifs import one_step

FEW = 4
"""Combinations that are not worth starting processes for."""
Combination = tuple[Change, ...]
Task = tuple[Combination, list[str]]
"""A combination, and the platforms on which it is to be predicted."""


@dataclass
class Point:
    """A step with some changes on a platform: its forecast, or why there is none."""

    changes: list[str]
    platform: str
    step_ms: float | None = None
    next_ms: float | None = None
    device_ms: float | None = None
    memory_bytes: int | None = None
    fits: bool | None = None
    samples: int | None = None
    """In a batch."""
    sample_us: float | None = None
    """From step to step, for each sample."""
    cost: float | None = None
    """Dollars for a million samples."""
    front: bool = False
    """Whether no other point is better in time, memory and cost."""
    error: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from others of its sweep."""
        return (*self.changes, self.platform)


@dataclass
class Sweep:
    """The points of a sweep, fastest for a sample first."""

    source: str
    points: list[Point] = field(default_factory=list)
    memory_limit: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Point | None:
        """The fastest for a sample that fits."""
        return next((point for point in self.points if _fits(point, self.memory_limit)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "best": asdict(self.best) if self.best else None}


def sweep(
    what: Graph | Job | str | Path,
    on: Sequence[str] = ("h200",),
    sets: Mapping[str, Sequence[object]] | None = None,
    prices: Mapping[str, float] | None = None,
    memory_limit: int | None = None,
    out: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> Sweep:
    """Predict a step with every combination of some settings, on several platforms.

    Parameters
    ----------
    what
        As in `foretrace.predict`. Only a path is read by several processes; a graph at hand is swept in this one.
    on
        Names or folders of platforms.
    sets
        Values of each setting: ``{"batch": [256, 512], "dtype": ["bf16", "fp32"]}``.
    prices
        Dollars an hour, by platform.
    memory_limit
        Bytes that the best point may take; its device's memory where it is left out.
    out
        A file of JSON lines that takes each point as it is done; points that it already holds are not predicted again.
    workers
        Processes; as many as there are cores where it is left out.
    ray
        The address of a Ray cluster that shall do it, ``"local"`` for one on this machine; every machine of it has to
        be able to read ``what``.
    told
        Told how many combinations are done, of how many.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> x, y = (Tensor((64, 1024), "float32", "cuda:0", (1024, 1), id=n, storage=n) for n in (0, 1))
    >>> relu = Op("aten::relu", (x,), outputs=(y,), overload="default", phase="forward")
    >>> found = sweep(Graph(OpTable.of([relu])), sets={"batch": [64, 65536]})
    >>> found.best.changes
    ['batch=65536']
    """
    combinations = _combinations(sets or {})
    unknown = sorted(set(prices or {}) - set(on))
    if unknown:
        raise ForetraceError(
            f"a price is given for {', '.join(unknown)}", f"Platforms of the sweep are {', '.join(on)}."
        )
    source = what.source if isinstance(what, (Graph, Job)) else str(what)
    known = _kept(out, source) if out else {}
    wanted = [
        (combination, [name for name in on if (*map(str, combination), name) not in known])
        for combination in combinations
    ]
    todo = [(combination, names) for combination, names in wanted if names]
    points = [known[key] for key in ((*map(str, c), name) for c in combinations for name in on) if key in known]
    longest = max((size_of("seq", c.value)[0] for each in combinations for c in each if c.name == "seq"), default=0)
    with closing(_predicted(what, on, todo, workers, longest, ray)) as predicted:
        for number, made in enumerate(predicted, 1):
            points += made
            if out:
                _keep(out, source, made)
            told(number, len(todo))
    return _judged(Sweep(source, points, memory_limit), prices or {})


def _combinations(sets: Mapping[str, Sequence[object]]) -> list[Combination]:
    """Every combination of values; those with sizes that are found once come last, so that they change fastest."""
    names = sorted(sets, key=lambda name: name in ("batch", "seq"))
    values = [[Change.read(f"{name}={value}") for value in sets[name]] for name in names]
    return list(product(*values))


def _predicted(
    what: Graph | Job | str | Path,
    on: Sequence[str],
    todo: Sequence[Task],
    workers: int | None,
    longest: int,
    ray: str | None,
) -> Generator[list[Point], None, None]:
    """The points of each task, as they are done."""
    if ray is not None:
        from foretrace.on_ray import predicted_on_ray

        if isinstance(what, (Graph, Job)):
            raise ForetraceError("a step at hand can't be sent to a Ray cluster", "Give the path of a recording.")
        yield from predicted_on_ray(ray, str(what), on, todo, workers, longest) if todo else ()
        return
    count = min(workers or cpu_count() or 1, len(todo))
    if isinstance(what, (Graph, Job)) or count < 2 or (workers is None and len(todo) <= FEW):
        if todo:
            swept = Swept(what, on, longest)
            yield from (swept.points(*task) for task in todo)
        return
    yield from _in_processes(count, todo, str(what), list(on), longest)


def _in_processes(count: int, todo: Sequence[Task], what: str, on: list[str], longest: int) -> Iterator[list[Point]]:
    others = set(active_children())
    pool = ProcessPoolExecutor(count, get_context("spawn"), _start, (what, on, longest))
    try:
        with _uninterrupted():
            tasks = [pool.submit(_work, task) for task in todo]
        for task in as_completed(tasks):
            yield task.result()
    except BrokenProcessPool:
        raise ForetraceError(
            "a process of the sweep was killed", "Memory may have run out: give fewer --workers."
        ) from None
    finally:
        # What is still to be done when somebody interrupts is not waited for. The pool is left to find its processes
        # ended: were its tasks cancelled as well, it would complain of them, or still be there when Python ends.
        for process in set(active_children()) - others:
            process.terminate()
        pool.shutdown()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes started meanwhile never hear of Ctrl-C, which a terminal sends to all of them; this one does later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Swept:
    """A step that is read once, and predicted again and again."""

    def __init__(self, what: Graph | Job | str | Path, on: Sequence[str], longest: int) -> None:
        self._platforms = {name: platform(name) for name in on}
        kind = next(iter(self._platforms.values())).device.kind
        self._graph = one_step(at_hand(what, kind)).graphs[0]
        self._edited = Edited(self._graph, longest)
        self._samples = batch_of(self._graph)

    def points(self, combination: Combination, on: Sequence[str]) -> list[Point]:
        """The points of a combination, one for each platform."""
        changes = [str(change) for change in combination]
        try:
            graph = self._edited.by(combination)
        except ForetraceError as error:
            return [Point(changes, name, error=error.what) for name in on]
        sizes = [size_of("batch", change.value)[0] for change in combination if change.name == "batch"]
        samples = sizes[-1] if sizes else self._samples
        return [Point(changes, name, **figures(graph, self._platforms[name])._asdict(), samples=samples) for name in on]


_given: list[tuple[str, list[str], int]] = []
"""What a process of a sweep works on."""


def _start(what: str, on: list[str], longest: int) -> None:
    import gc

    gc.disable()  # as the command line does: objects are made, and looking through them finds nothing
    _given.append((what, on, longest))


@cache
def _swept() -> Swept:
    """Read with the first task and not before: what is wrong with a file is then told like any other error."""
    return Swept(*_given[0])


def _work(task: Task) -> list[Point]:
    return _swept().points(*task)


def _judged(found: Sweep, prices: Mapping[str, float]) -> Sweep:
    """The sweep with costs, its front, and its order."""
    for point in found.points:
        if point.next_ms is not None and point.samples:
            point.sample_us = point.next_ms * 1e3 / point.samples
            if point.platform in prices:
                point.cost = prices[point.platform] * point.sample_us / 3600
    found.points.sort(key=lambda p: (p.sample_us is None, p.sample_us or 0.0, p.step_ms or 0.0, p.key))
    least: list[tuple[float, ...]] = []
    for point in found.points:
        figures_ = _goals(point)
        point.front = point.error is None and not any(_beats(other, figures_) for other in least)
        if point.front:
            least.append(figures_)
    return found


def _goals(point: Point) -> tuple[float, ...]:
    time = point.sample_us if point.sample_us is not None else point.step_ms or 0.0
    return (time, float(point.memory_bytes or 0), point.cost or 0.0)


def _beats(other: tuple[float, ...], mine: tuple[float, ...]) -> bool:
    """Whether another is nowhere worse; of equal ones the first stands for all."""
    return all(theirs <= ours for theirs, ours in zip(other, mine))


def _fits(point: Point, limit: int | None) -> bool:
    if point.error is not None:
        return False
    return point.fits is not False if limit is None else point.memory_bytes is not None and point.memory_bytes <= limit


def _kept(out: Path, source: str) -> dict[tuple[str, ...], Point]:
    """Points that a file holds; what a process that was killed left half-written is left out."""
    if not out.exists():
        return {}
    found: dict[tuple[str, ...], Point] = {}
    for line in out.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            point = Point(**entry["point"])
        except (ValueError, TypeError, KeyError):
            continue
        if entry.get("source") != source:
            raise ForetraceError(f"{out} holds a sweep of {entry.get('source')}", "Choose another file.")
        found[point.key] = point
    return found


def _keep(out: Path, source: str, points: Iterable[Point]) -> None:
    lines = [json.dumps({"source": source, "point": asdict(point)}) + "\n" for point in points if point.error is None]
    try:
        ended = not out.exists() or not out.stat().st_size or out.read_bytes().endswith(b"\n")
        with out.open("a", encoding="utf-8") as file:
            file.write(("" if ended else "\n") + "".join(lines))
    except OSError as error:
        raise ForetraceError(f"{out} can't be written ({error.strerror})", "Choose another file.") from None
