"""Files of a recording: one folder per rank, and ``job.json`` that says how it was made.

``rank-N/`` holds ``rank.json`` (timings, machine, groups), ``ops.jsonl.gz`` (the structure), ``storages.json.gz``,
``indices.json``, ``contents.json.gz`` (summaries of tensors from before the step), ``profile.json.gz`` (the light
profile, as PyTorch's profiler writes it) and, where something was compiled, ``et.json.gz`` (PyTorch's execution trace)
and ``programs.jsonl.gz`` (the graphs of compiled programs).
Each is written under a temporary name and renamed.
"""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretrace import __version__
from foretrace.graph import MAX_RANKS, Content, ForetraceError, Indices, Op, Storage, Timings
from foretrace.graph.codec import DAMAGE, from_lines, to_lines
from foretrace.graph.programs import Program, programs_of

VERSION = 1
RANK, OPS, STORAGES, INDICES = "rank.json", "ops.jsonl.gz", "storages.json.gz", "indices.json"
PROFILE, EXECUTION_TRACE, JOB, CONTENTS = "profile.json.gz", "et.json.gz", "job.json", "contents.json.gz"
PROGRAMS = "programs.jsonl.gz"
NOT_FINITE = ("inf", "-inf", "nan")
MAX_BYTES = 1 << 62
MAX_COUNT, MAX_DOUBLINGS = 1 << 53, 64
"""Largest count that floats represent exactly, and accesses of one row, in doublings."""


@dataclass(frozen=True)
class Rank:
    """Contents of ``rank.json``: timings, machine and groups of a rank."""

    rank: int
    world: int
    device: str
    groups: dict[str, tuple[int, ...]]
    plain: Timings
    slowdown: float
    settings: dict[str, bool | int | str]
    compiled: dict[str, Any] = field(default_factory=dict)
    """What torch.compile did: graphs, graph breaks and recompilations by their reasons, and what kernels do."""


def write_structure(folder: Path, ops: Iterable[Op], storages: dict[int, Storage]) -> None:
    """Write the ops of a step and the storages they touch.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> write_structure(folder, [Op("aten::relu")], {0: Storage(0, 64, "cpu", birth=0)})
    >>> read_ops(folder)[0].name, read_storages(folder, 1)[0].nbytes
    ('aten::relu', 64)
    """
    _write(folder / OPS, "".join(line + "\n" for line in to_lines(ops)))
    rows = [[s.id, s.nbytes, s.device, s.birth, s.death, *([1] if s.held else [])] for s in storages.values()]
    _write(folder / STORAGES, json.dumps(rows))


def write_programs(folder: Path, ops: Iterable[Op]) -> None:
    """Write the graphs of compiled programs: for each a head, and its calls."""
    _write(folder / PROGRAMS, "".join(line + "\n" for line in to_lines(ops)))


def read_programs(folder: Path) -> tuple[Program, ...]:
    """The compiled programs of a rank; none where nothing was compiled, or by an older Foretrace."""
    path = folder / PROGRAMS
    return programs_of(from_lines(_read(path).splitlines(), str(path)), str(path)) if path.exists() else ()


def write_indices(folder: Path, seen: Iterable[tuple[str, int, Indices]]) -> None:
    """Write index statistics: each with the op's name and how many of that name came before it."""
    rows = [
        {"op": name, "nth": nth, "rows": i.rows, "count": i.count, "unique": i.unique, "bags": i.bags, "reuse": i.reuse}
        for name, nth, i in seen
    ]
    _write(folder / INDICES, json.dumps(rows))


def write_contents(folder: Path, held: Iterable[tuple[str, int, int, Content]]) -> None:
    """Write summaries of tensors from before the step, each with the first op that used it and its position there."""
    rows = [
        {
            "op": name,
            "nth": nth,
            "tensor": position,
            "kind": c.kind,
            "facts": {k: _finite(v) for k, v in c.facts.items()},
        }
        for name, nth, position, c in held
    ]
    _write(folder / CONTENTS, json.dumps(rows))


def _finite(fact: Any) -> Any:
    """A value that JSON can represent: infinities and NaN are written as text."""
    if isinstance(fact, list):
        return [_finite(item) for item in fact]
    return str(fact) if isinstance(fact, float) and not math.isfinite(fact) else fact


def write_rank(folder: Path, facts: dict[str, Any]) -> None:
    """Write ``rank.json``: last, since its presence marks the rank as complete."""
    _write(folder / RANK, json.dumps({"version": VERSION, **facts}, indent=1))


def write_job(folder: Path, facts: dict[str, Any]) -> None:
    """Write ``job.json``: how the recording was made."""
    made = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    job = {"format": "foretrace recording", "version": VERSION, "foretrace": __version__, "made": made, **facts}
    _write(folder / JOB, json.dumps(job, indent=1))


def read_ops(folder: Path) -> list[Op]:
    """The ops of a rank's structure step."""
    path = folder / OPS
    return from_lines(_read(path).splitlines(), str(path))


def read_storages(folder: Path, calls: int) -> dict[int, Storage]:
    """The storages of a structure step of so many calls, by id."""
    with _checked_json(folder / STORAGES) as rows:
        return {storage.id: storage for storage in (_storage(row, calls) for row in rows)}


def _storage(row: Any, calls: int) -> Storage:
    number, nbytes, device, birth, death, *held = row
    if not (-1 <= birth < calls and -1 <= death <= calls):
        raise ValueError(f"storage {number} lives from call {birth} to {death} of {calls}")
    if held not in ([], [1]):
        raise ValueError(f"storage {number} is held by {held}")
    if not 0 <= nbytes < MAX_BYTES:
        raise ValueError(f"storage {number} has {nbytes} bytes")
    return Storage(int(number), int(nbytes), str(device), int(birth), int(death), bool(held))


def read_indices(folder: Path, ops: list[Op]) -> list[Indices]:
    """The index statistics, each with the row of the op it belongs to."""
    if not (folder / INDICES).exists():
        return []
    places = _places(ops)
    found = []
    with _checked_json(folder / INDICES) as entries:
        for entry in entries:
            of_name, nth = places.get(entry["op"], []), entry["nth"]
            row = of_name[nth] if 0 <= nth < len(of_name) else -1
            numbers = {key: _counted(entry[key]) for key in ("rows", "count", "unique", "bags")}
            if len(entry["reuse"]) > MAX_DOUBLINGS:
                raise ValueError(f"rows are hit in {len(entry['reuse'])} doublings")
            found.append(Indices(op=row, reuse=tuple(map(_counted, entry["reuse"])), **numbers))
    return found


def _counted(number: Any) -> int:
    """A number of rows or of ids."""
    if not 0 <= int(number) < MAX_COUNT:
        raise ValueError(f"a count of {str(number)[:40]}")
    return int(number)


def read_contents(folder: Path, ops: list[Op]) -> dict[int, Content]:
    """Summaries of tensors from before the step, by tensor id; older recordings have none."""
    if not (folder / CONTENTS).exists():
        return {}
    places = _places(ops)
    found: dict[int, Content] = {}
    with _checked_json(folder / CONTENTS) as rows:
        for row in rows:
            of_name, nth, position = places.get(row["op"], []), row["nth"], row["tensor"]
            tensors = ops[of_name[nth]].tensors if 0 <= nth < len(of_name) else []
            if 0 <= position < len(tensors):
                facts = {str(name): _number(fact) for name, fact in row["facts"].items()}
                found.setdefault(tensors[position].id, Content(str(row["kind"]), facts))
    return found


def _number(fact: Any) -> Any:
    if isinstance(fact, list):
        return [_number(item) for item in fact]
    if fact in NOT_FINITE:
        return float(fact)
    if not isinstance(fact, (bool, int, float)):
        raise TypeError(f"{fact!r} is no number")
    return fact


def _places(ops: list[Op]) -> dict[str, list[int]]:
    """The rows of the ops of each name."""
    places: dict[str, list[int]] = {}
    for row, op in enumerate(ops):
        places.setdefault(op.name, []).append(row)
    return places


def read_rank(folder: Path) -> Rank:
    """Read ``rank.json``."""
    with _checked_json(folder / RANK) as facts:
        _check_version(facts, folder / RANK)
        synced, back_to_back = (tuple(map(float, facts[name])) for name in ("synced_ms", "back_to_back_ms"))
        peak = facts.get("peak_memory_bytes")
        return Rank(
            rank=int(facts["rank"]),
            world=int(facts["world"]),
            device=str(facts["device"]),
            groups={name: tuple(int(member) for member in members) for name, members in facts["groups"].items()},
            plain=Timings(synced, back_to_back, None if peak is None else int(peak)),
            slowdown=float(facts["slowdown"]["profile"] or 1.0),
            settings={str(name): value for name, value in facts.get("settings", {}).items()},
            compiled={str(name): value for name, value in facts.get("compiled", {}).items()},
        )


def read_world(folder: Path) -> int:
    """The world size of a recorded job."""
    with _checked_json(folder / JOB) as facts:
        _check_version(facts, folder / JOB)
        if not 0 < facts["world"] <= MAX_RANKS:
            raise ValueError(f"a job of {facts['world']} ranks")
        return int(facts["world"])


def is_recording(path: Path) -> bool:
    """Whether a path is a recording's folder.

    >>> is_recording(Path("nowhere"))
    False
    """
    return (path / JOB).is_file()


def refuse_headless(path: Path) -> None:
    """Refuse a recording's folder that has lost its ``job.json``: its profiles alone would pass for others' traces."""
    if not is_recording(path) and any(path.glob(f"rank-*/{OPS}")):
        raise ForetraceError(f"{path} is a recording without its {JOB}", "Restore it, or record the job again.")


def _check_version(facts: Any, path: Path) -> None:
    if facts["version"] != VERSION:
        raise ForetraceError(
            f"{path} is of format version {facts['version']}, this Foretrace reads version {VERSION}",
            "Read it with the Foretrace that made it, or record the job again.",
        )


@contextmanager
def _checked_json(path: Path) -> Iterator[Any]:
    """The contents of a JSON file; errors of the reader name the file."""
    try:
        yield json.loads(_read(path))
    except DAMAGE as error:
        what = f"{path} does not hold what it should ({type(error).__name__}: {error})"
        raise ForetraceError(what, "Restore it, or record the job again.") from None


def _read(path: Path) -> str:
    from foretrace.files import read_chunks

    if not path.exists():
        raise ForetraceError(f"{path} does not exist", "The recording lacks it: restore it, or record the job again.")
    return b"".join(read_chunks(path)).decode("utf-8", "replace")


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    data = text.encode()
    temporary.write_bytes(gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)
    temporary.replace(path)
