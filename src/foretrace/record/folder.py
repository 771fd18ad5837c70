"""A recording on disk: a folder a rank, and ``job.json`` that says how it was made.

``rank-N/`` holds ``rank.json`` (timings, machine, groups), ``ops.jsonl.gz`` (the structure), ``storages.json.gz``,
``indices.json``, ``profile.json.gz`` (the light profile, as PyTorch's profiler writes it) and, where something was
compiled, ``et.json.gz`` (PyTorch's execution trace). Each is written under a temporary name and renamed.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foretrace import __version__
from foretrace.graph import ForetraceError, Graph, Indices, Op, Storage
from foretrace.graph.codec import from_lines, to_lines

VERSION = 1
RANK, OPS, STORAGES, INDICES = "rank.json", "ops.jsonl.gz", "storages.json.gz", "indices.json"
PROFILE, EXECUTION_TRACE, JOB = "profile.json.gz", "et.json.gz", "job.json"


def write_structure(folder: Path, ops: Iterable[Op], storages: dict[int, Storage]) -> None:
    """Write the ops of a step and the storages they touch.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> write_structure(folder, [Op("aten::relu")], {0: Storage(0, 64, "cpu", birth=0)})
    >>> read_ops(folder)[0].name, read_storages(folder)[0].nbytes
    ('aten::relu', 64)
    """
    _write(folder / OPS, "".join(line + "\n" for line in to_lines(ops)))
    rows = [[s.id, s.nbytes, s.device, s.birth, s.death] for s in storages.values()]
    _write(folder / STORAGES, json.dumps(rows))


def write_indices(folder: Path, seen: Iterable[tuple[str, int, Indices]]) -> None:
    """Write index statistics: each with the op's name and how many of that name came before it."""
    rows = [
        {"op": name, "nth": nth, "rows": i.rows, "count": i.count, "unique": i.unique, "bags": i.bags, "reuse": i.reuse}
        for name, nth, i in seen
    ]
    _write(folder / INDICES, json.dumps(rows))


def write_rank(folder: Path, facts: dict[str, Any]) -> None:
    """Write what is known of a rank: last, since its presence says that the rank is complete."""
    _write(folder / RANK, json.dumps({"version": VERSION, **facts}, indent=1))


def write_job(folder: Path, facts: dict[str, Any]) -> None:
    """Write how the recording was made."""
    made = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    job = {"format": "foretrace recording", "version": VERSION, "foretrace": __version__, "made": made, **facts}
    _write(folder / JOB, json.dumps(job, indent=1))


def read_ops(folder: Path) -> list[Op]:
    """The ops of a rank's structure step."""
    path = folder / OPS
    return from_lines(_read(path).splitlines(), str(path))


def read_storages(folder: Path) -> dict[int, Storage]:
    """The storages its ops touch, by id."""
    return {int(row[0]): Storage(*row) for row in _rows(folder / STORAGES, list)}


def read_indices(folder: Path, ops: list[Op]) -> list[Indices]:
    """The index statistics, each with the row of the op it belongs to."""
    if not (folder / INDICES).exists():
        return []
    places: dict[str, list[int]] = {}
    for row, op in enumerate(ops):
        places.setdefault(op.name, []).append(row)
    found = []
    for entry in _rows(folder / INDICES, dict):
        of_name = places.get(entry["op"], [])
        row = of_name[entry["nth"]] if entry["nth"] < len(of_name) else -1
        numbers = {key: int(entry[key]) for key in ("rows", "count", "unique", "bags")}
        found.append(Indices(op=row, reuse=tuple(entry["reuse"]), **numbers))
    return found


def read_rank(folder: Path) -> dict[str, Any]:
    """What is known of a rank."""
    return _versioned(folder / RANK)


def read_job(folder: Path) -> dict[str, Any]:
    """How a recording was made."""
    return _versioned(folder / JOB)


def is_recording(path: Path) -> bool:
    """Whether a path is a recording's folder.

    >>> is_recording(Path("nowhere"))
    False
    """
    return (path / JOB).is_file()


def structure_of(folder: Path) -> Graph:
    """A rank's structure step as a graph without times."""
    from foretrace.graph import OpTable

    ops = read_ops(folder)
    return Graph(ops=OpTable.of(ops), storages=read_storages(folder), indices=read_indices(folder, ops))


def _versioned(path: Path) -> dict[str, Any]:
    facts = _json(path)
    if not isinstance(facts, dict) or "version" not in facts:
        raise ForetraceError(f"{path} is not a file of a recording", "Record the job again.")
    if facts["version"] != VERSION:
        raise ForetraceError(
            f"{path} is of format version {facts['version']}, this Foretrace reads version {VERSION}",
            "Read it with the Foretrace that made it, or record the job again.",
        )
    return facts


def _rows(path: Path, kind: type) -> list[Any]:
    rows = _json(path)
    if not isinstance(rows, list) or not all(isinstance(row, kind) for row in rows):
        raise ForetraceError(f"{path} does not hold what it should", "Record the job again.")
    return rows


def _json(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except ValueError as error:
        raise ForetraceError(f"{path} is damaged ({error})", "Record the job again.") from None


def _read(path: Path) -> str:
    from foretrace.formats.files import pieces

    return b"".join(pieces(path)).decode("utf-8", "replace")


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    data = text.encode()
    temporary.write_bytes(gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)
    temporary.replace(path)
