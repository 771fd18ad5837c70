"""Sweeps: a step or a job with many values of its settings, on many platforms."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import product
from math import inf
from os import cpu_count
from pathlib import Path

from foretrace.errors import parse_size
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.questions.arranging import Arrangement
from foretrace.questions.changes import ANY_SIZE, Change
from foretrace.questions.job_words import OF_JOBS
from foretrace.questions.sweep_keys import Key
from foretrace.questions.sweep_points import Point, Sweep, judged, keep, read_kept, reused
from foretrace.questions.swept import Combination, Subject, Swept, Task, left_out

FEW = 4
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
    on_progress: Callable[[int, int], None] = lambda done, of: None,
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
    subject = Subject(what, names, fabric, gpus_per_node, _longest(combinations), _smallest_world(combinations))
    kept = Path(out) if out else None
    known, keys, notes = dict[tuple[str, ...], Point](), dict[str, Key](), list[str]()
    if kept:
        held = read_kept(kept)
        keep(kept, source, [], {})  # a file that can't be written is refused before anything is sketched
        subject, keys = subject.sketched().keyed()
        known, notes = reused(held, keys, kept)
    points, todo = _planned(combinations, names, known)
    with closing(_predicted(subject, todo, workers, ray, isinstance(what, (Graph, Job)))) as predicted:
        for number, made in enumerate(predicted, 1):
            points += made
            if kept:
                keep(kept, source, made, keys)
            on_progress(number, len(todo))
    return judged(Sweep(source, points, memory_limit, notes), prices or {})


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
    names = sorted(sets, key=lambda name: (name in OF_JOBS, name in ANY_SIZE))
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
            Arrangement.of(combination)
        except ForetraceError as error:
            points += left_out(combination, names, error)
        else:
            todo += [(combination, names)] if names else []
    return points, todo


def _longest(combinations: Sequence[Combination]) -> int:
    sizes = (parse_size("seq", change.value)[0] for each in combinations for change in each if change.name == "seq")
    return max(sizes, default=0)


def _smallest_world(combinations: Sequence[Combination]) -> int | None:
    """Ranks that a script is sketched with that asks for a process group: more of them do the same."""
    worlds = set()
    for combination in combinations:
        try:
            asked = Arrangement.of(combination)
        except ForetraceError:
            continue
        worlds.add(None if asked.ways else asked.world)
    return min((world for world in worlds if world is not None and world > 1), default=None)


def _predicted(
    subject: Subject, todo: Sequence[Task], workers: int | None, ray: str | None, at_hand_already: bool
) -> Generator[list[Point], None, None]:
    """The points of each task, as they are done."""
    if ray is not None and at_hand_already:
        raise ForetraceError("a step at hand can't be sent to a Ray cluster", "Give the path of a recording.")
    if todo:
        subject = subject.sketched()  # once: a script may do something else each time, and takes seconds
    if ray is not None:
        from foretrace.questions.on_ray import predicted_on_ray

        yield from predicted_on_ray(ray, subject, todo, workers) if todo else ()
        return
    count = min(workers or cpu_count() or 1, len(todo))
    if at_hand_already or count < 2 or (workers is None and len(todo) <= FEW):
        if todo:
            swept = Swept(subject)
            yield from (swept.points(*task) for task in todo)
        return
    from foretrace.questions.in_processes import predicted_in_processes

    yield from predicted_in_processes(subject, todo, count)
