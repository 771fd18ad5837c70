"""The points of a sweep: costs, the Pareto front, and the file that holds them, keyed by content."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

import foretrace
from foretrace.analysis.report import NotebookDocument
from foretrace.formats.load import trace_files
from foretrace.graph import ForetraceError, Graph, Job, Names, Op, OpTable
from foretrace.platform.platform import Platform
from foretrace.record.folder import is_recording

MAX_NOTES = 4
"""Notes of points that a sweep shows: large ones have many that differ in a number."""


@dataclass
class Point:
    """A step or a job with some changes on a platform: its prediction, or why there is none."""

    changes: list[str]
    platform: str
    ranks: int = 1
    """Of the job; each has a device."""
    fabric: str | None = None
    """What joins them."""
    step_ms: float | None = None
    next_ms: float | None = None
    device_ms: float | None = None
    memory_bytes: int | None = None
    """Allocated on the fullest device."""
    reserved_bytes: int | None = None
    """Reserved there by PyTorch's allocator."""
    fits: bool | None = None
    samples: int | None = None
    """In a step of all ranks."""
    sample_us: float | None = None
    """From step to step, for each sample."""
    cost: float | None = None
    """Dollars for a million samples, all devices counted."""
    energy_j: float | None = None
    """Joules of a step of all devices, while steps are repeated."""
    sample_j: float | None = None
    """Joules for each sample."""
    front: bool = False
    """Whether no other point is better in time, memory, cost and energy."""
    error: str | None = None
    """Why it is left out."""
    notes: list[str] = field(default_factory=list)
    """What its figures rest on."""

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from others of its sweep."""
        return (*self.changes, self.platform)


@dataclass
class Sweep(NotebookDocument):
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


def with_pareto_front(found: Sweep, prices: Mapping[str, float]) -> Sweep:
    """The sweep with costs, its front, its order, and what joins the ranks of its jobs.

    >>> slow, fast = (Point([f"batch={n}"], "h200", next_ms=2.0, memory_bytes=9, samples=n) for n in (4, 8))
    >>> found = with_pareto_front(Sweep("train.py", [slow, fast]), {"h200": 3.6})
    >>> [(point.changes, point.sample_us, point.cost, point.front) for point in found.points]
    [(['batch=8'], 250.0, 0.25, True), (['batch=4'], 500.0, 0.5, False)]
    """
    if joined := sorted({point.fabric for point in found.points if point.fabric}):
        found.notes.append(f"ranks are connected by {', '.join(joined)}; --fabric names another")
    said = list(dict.fromkeys(note for point in found.points for note in point.notes))
    found.notes += [
        *said[:MAX_NOTES],
        *([f"… and {len(said) - MAX_NOTES} more like these"] * (len(said) > MAX_NOTES)),
    ]
    for point in found.points:
        if found.memory_limit is not None and point.memory_bytes is not None:
            point.fits = point.memory_bytes <= found.memory_limit
        if point.next_ms is not None and point.samples:
            # Rounded, so that sums of the same numbers in another order are equal.
            point.sample_us = round(point.next_ms * 1e3 / point.samples, 9)
            point.sample_j = None if point.energy_j is None else round(point.energy_j / point.samples, 9)
            if point.platform in prices:
                point.cost = prices[point.platform] * point.ranks * point.sample_us / 3600
    found.points.sort(key=_order)
    least: list[tuple[float, ...]] = []
    drawn = all(point.energy_j is not None for point in found.points if point.error is None)
    for point in found.points:
        mine = _goals(point, bool(prices), drawn)
        beaten = any(all(theirs <= ours for theirs, ours in zip(other, mine)) for other in least)
        point.front = point.error is None and not beaten  # of equal ones the first stands for all
        if point.front:
            least.append(mine)
    return found


def _order(point: Point) -> tuple[Any, ...]:
    """Fastest for a sample first; of equally fast ones that which needs least memory."""
    return (point.sample_us is None, point.sample_us or 0.0, point.memory_bytes or 0, point.step_ms or 0.0, point.key)


def _goals(point: Point, priced: bool, drawn: bool) -> tuple[float, ...]:
    """Time, memory, money, and energy where that is known of all points.

    Where no price is known, the time of all devices together stands for money: more of them have to be worth it.
    """
    time = point.sample_us if point.sample_us is not None else point.step_ms or 0.0
    money = (point.cost or 0.0) if priced else time * point.ranks
    energy = (point.energy_j or 0.0) / (point.samples or 1) if drawn else 0.0
    return (time, float(point.memory_bytes or 0), money, energy)


def _fits(point: Point, limit: int | None) -> bool:
    if point.error is not None:
        return False
    return point.fits is not False if limit is None else point.memory_bytes is not None and point.memory_bytes <= limit


class StoredPoint(NamedTuple):
    """A point as a file holds it."""

    point: Point
    key: Key | None
    """What it depends on; None where an older Foretrace wrote it, which did not say."""


def read_points(out: Path) -> list[StoredPoint]:
    """Points that a file holds; what a process that was killed left half-written is left out."""
    if not out.exists():
        return []
    try:
        text = out.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ForetraceError(f"{out} can't be read ({error.strerror})", "Choose another file.") from None
    if text and not text.startswith("{"):
        raise ForetraceError(f"{out} holds no sweep", "Choose another file: points would be added to this one.")
    found: list[StoredPoint] = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            key = msgspec.convert(entry.get("key"), Key | None)
            found.append(StoredPoint(msgspec.convert(entry["point"], Point), key))
        except json.JSONDecodeError:
            continue
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ForetraceError(
                f"{out} holds something else than points: {line[:60]}", "Choose another file."
            ) from None
    return found


def reusable_points(
    stored: Iterable[StoredPoint], keys: Mapping[str, Key], out: Path
) -> tuple[dict[tuple[str, ...], Point], list[str]]:
    """The points that may be taken again, by their own keys; and a note on those that were not reused.

    ``stored`` are those of the file ``out``; ``keys`` are what points depend on today, by platform.
    """
    known: dict[tuple[str, ...], Point] = {}
    aside: Counter[str] = Counter()
    places = {_place(name) for name in keys}
    for point, key in stored:
        names = [name for name, current in keys.items() if current == key]
        known |= {(*point.changes, name): replace(point, platform=name) for name in names}
        if not names and (why := _why_aside(point, key, keys, places)):
            aside[why] += 1
    if not aside:
        return known, []
    number = f"{aside.total():,} point{'s' * (aside.total() > 1)}"
    return known, [f"{number} that {out} holds were not reused: {', '.join(aside)}"]


def _why_aside(point: Point, key: Key | None, keys: Mapping[str, Key], places: Collection[str]) -> str:
    """Why a point is not taken again; empty where its platform is not swept now."""
    if key is None:
        return "an older Foretrace wrote them, and not what they depend on"
    current = next(iter(keys.values()))
    if key.step != current.step:
        return "they are of another step, or of another version of it"
    if key.foretrace != current.foretrace:
        return "another version of Foretrace predicted them"
    if _place(point.platform) not in places:
        return ""
    if key.platform not in {one.platform for one in keys.values()}:
        return "their platform has changed"
    return "their ranks are connected by another fabric"


def _place(name: str) -> str:
    """A platform however its folder is written."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def append_points(out: Path, source: str, points: Iterable[Point], keys: Mapping[str, Key]) -> None:
    """Add points to a file, each on a line of its own with the key of its platform; not those that were left out."""
    made = [point for point in points if point.error is None]
    entries = [{"source": source, "key": asdict(keys[point.platform]), "point": asdict(point)} for point in made]
    lines = [json.dumps(entry) + "\n" for entry in entries]
    try:
        ended = not out.exists() or not out.stat().st_size or out.read_bytes().endswith(b"\n")
        with out.open("a", encoding="utf-8") as file:
            file.write(("" if ended else "\n") + "".join(lines))
    except OSError as error:
        raise ForetraceError(f"{out} can't be written ({error.strerror})", "Choose another file.") from None


NO_PART_OF_A_STEP = ("source", "notes", "world")
"""Fields of a graph that are not its step: where it came from, and its place in the job."""
SHIPPED = ("shipped", "assets", "templates")
"""Folders of Foretrace that no forecast is worked out by, or that are a platform's own."""


@dataclass(frozen=True)
class Key:
    """Digests of all that a point depends on besides its changes."""

    step: str
    platform: str
    joined: str
    """Of what joins the ranks of a job."""
    foretrace: str


def key_of(step: str, where: Platform, gpus_per_node: int | None, drop_gaps: bool = False) -> Key:
    """The key of a step, known by its digest, on a platform with its fabric; with or without measured gaps."""
    step += " without gaps" * drop_gaps
    return Key(step, platform_digest(where), _digest([where.fabric, gpus_per_node]), foretrace_digest())


def step_digest(what: Graph | Job | str | Path) -> str:
    """The digest of a graph at hand, or of the files of a recording or of traces, however their path is written."""
    if isinstance(what, Graph):
        return _digest([what])
    if isinstance(what, Job):
        return _digest([*what.graphs, what.alike])
    path = Path(what)
    if is_recording(path):
        files = [path / "job.json", *sorted(file for file in path.glob("rank-*/*") if file.is_file())]
        return _of_files((str(file.relative_to(path)), file) for file in files)
    # The rank of a trace is in its name, or in that of its folder.
    resolved = (file.resolve() for file in trace_files(path))
    return _of_files((f"{file.parent.name}/{file.name}", file) for file in resolved)


def platform_digest(where: Platform) -> str:
    """The digest of a platform without its fabric: of its parts as they are, and of its models' files."""
    models = sorted(file for file in where.models.rglob("*") if file.is_file())
    files = _of_files((str(file.relative_to(where.models)), file) for file in models)
    return _digest([where.device, where.host, where.cross_device, files])


def foretrace_digest() -> str:
    """The version of Foretrace, and the digest of its code: between two releases the version stays the same."""
    return f"{foretrace.__version__}+{_code_digest()[:16]}"


@cache
def _code_digest() -> str:
    home = Path(foretrace.__file__).parent
    code = (file.relative_to(home) for file in sorted(home.rglob("*")) if file.suffix in (".py", ".json"))
    return _of_files((str(file), home / file) for file in code if not {*SHIPPED} & {*file.parts})


def _of_files(files: Iterable[tuple[str, Path]]) -> str:
    whole = hashlib.sha256()
    for name, file in files:
        try:
            with file.open("rb") as opened:
                whole.update(f"{name}\0{hashlib.file_digest(opened, 'sha256').hexdigest()}\n".encode())
        except OSError as error:
            raise ForetraceError(f"{file} can't be read ({error.strerror})", "Check its permissions.") from None
    return whole.hexdigest()


def _digest(values: Iterable[Any]) -> str:
    """The digest of plain data, of arrays, and of dataclasses made of them.

    >>> _digest([1, "a", np.zeros(2)]) == _digest([1, "a", np.zeros(2)]) != _digest([1, "a", np.zeros(3)])
    True
    """
    return hashlib.sha256(repr(_plain(list(values))).encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: Any) -> Any:
    """What a value holds, in lists: equal for equal values."""
    if isinstance(value, np.ndarray):
        held = repr(value.tolist()).encode() if value.dtype == object else np.ascontiguousarray(value).tobytes()
        return [value.dtype.str, value.shape, hashlib.sha256(held).hexdigest()]
    if isinstance(value, OpTable):
        return [repr(op) for op in value]
    if is_dataclass(value) and not isinstance(value, (type, Op)):
        skipped = NO_PART_OF_A_STEP if isinstance(value, Graph) else ()
        held_fields = [field.name for field in fields(value) if field.name not in skipped]
        return [type(value).__name__, *([name, _plain(getattr(value, name))] for name in held_fields)]
    if isinstance(value, Mapping):
        return [[_plain(name), _plain(item)] for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Names):
        return _plain(value.items)
    return [type(value).__name__, value]
