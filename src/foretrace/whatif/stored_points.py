"""The file of a sweep, which holds its points, and the digests of what each depends on: step, platform and code."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

import foretrace
from foretrace.formats.load import trace_files
from foretrace.graph import ForetraceError, Graph, Job, Names, Op, OpTable
from foretrace.platform.platform import Platform
from foretrace.platform.stack import AUTO, Stack
from foretrace.record.folder import is_recording
from foretrace.whatif.points import Point

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


def key_of(
    step: str, where: Platform, gpus_per_node: int | None, stack: Stack | str = AUTO, drop_gaps: bool = False
) -> Key:
    """The key of a step, known by its digest, on a platform with its fabric and software; with or without gaps."""
    step += " without gaps" * drop_gaps
    return Key(step, platform_digest(where), _digest([where.fabric, gpus_per_node, stack]), foretrace_digest())


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
    if text and not text.startswith('{"'):  # JSON over several lines begins otherwise
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
    places = {_resolved(name) for name in keys}
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
    if _resolved(point.platform) not in places:
        return ""
    if key.platform not in {one.platform for one in keys.values()}:
        return "their platform has changed"
    return "their ranks are connected by another fabric"


def _resolved(name: str) -> str:
    """A platform however its folder is written."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def append_points(out: Path, source: str, points: Iterable[Point], keys: Mapping[str, Key]) -> None:
    """Add points to a file, each on a line of its own with the key of its platform; not those that were left out."""
    made = [point for point in points if point.error is None]
    entries = [{"source": source, "key": asdict(keys[point.platform]), "point": asdict(point)} for point in made]
    lines = [json.dumps(entry) + "\n" for entry in entries]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        ended = not out.exists() or not out.stat().st_size or out.read_bytes().endswith(b"\n")
        with out.open("a", encoding="utf-8") as file:
            file.write(("" if ended else "\n") + "".join(lines))
    except OSError as error:
        raise ForetraceError(f"{out} can't be written ({error.strerror})", "Choose another file.") from None
