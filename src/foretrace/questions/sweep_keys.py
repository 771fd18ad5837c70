"""What the points of a sweep depend on, by content: the step, the platform, and Foretrace itself.

A point that was kept is taken again only where all three are the same. The step of a script is known by the graph that
sketching it gives: that also changes with modules, files and settings that the script reads, and stays the same where
the script is moved or its comments are edited. Recordings, traces and platforms are known by their files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import foretrace
from foretrace.formats.load import trace_files
from foretrace.graph import ForetraceError, Graph, Job, Op, OpTable
from foretrace.platform.platform import Platform
from foretrace.record.folder import is_recording

CHUNK = 1 << 20
NO_PART_OF_A_STEP = ("source", "notes", "world")
"""What a graph holds besides its step: where it came from, and of how many ranks somebody says it is one."""
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


def key_of(step: str, where: Platform, gpus_per_node: int | None) -> Key:
    """The key of a step, known by its digest, on a platform with its fabric.

    >>> from foretrace.platforms import platform
    >>> slow, same = (key_of("1234", platform(name), None) for name in ("h200:host=0.5", "h200"))
    >>> slow.joined == same.joined, slow.platform == same.platform
    (True, False)
    """
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
    return _digest([where.device, where.host, where.carry, files])


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
        one = hashlib.sha256()
        try:
            with file.open("rb") as opened:
                while chunk := opened.read(CHUNK):
                    one.update(chunk)
        except OSError as error:
            raise ForetraceError(f"{file} can't be read ({error.strerror})", "Check its permissions.") from None
        whole.update(f"{name}\0{one.hexdigest()}\n".encode())
    return whole.hexdigest()


def _digest(values: Iterable[Any]) -> str:
    """The digest of plain data, of arrays, and of dataclasses made of them.

    >>> _digest([1, "a", np.zeros(2)]) == _digest([1, "a", np.zeros(2)]) != _digest([1, "a", np.zeros(3)])
    True
    """
    digest = hashlib.sha256()
    for value in values:
        _feed(digest.update, value)
    return digest.hexdigest()


def _feed(take: Callable[[bytes], object], value: Any) -> None:
    if isinstance(value, np.ndarray):
        take(f"{value.dtype.str}{value.shape}".encode())
        take(np.ascontiguousarray(value).tobytes() if value.dtype != object else repr(value.tolist()).encode())
    elif isinstance(value, OpTable):
        take("".join(f"{op!r}\n" for op in value).encode("utf-8", "surrogatepass"))
    elif is_dataclass(value) and not isinstance(value, (type, Op)):
        take(type(value).__name__.encode())
        left_out = NO_PART_OF_A_STEP if isinstance(value, Graph) else ()
        for field in fields(value):
            if field.name not in left_out:
                take(field.name.encode())
                _feed(take, getattr(value, field.name))
    elif isinstance(value, Mapping):
        take(f"{{{len(value)}".encode())
        for name, item in value.items():
            _feed(take, name)
            _feed(take, item)
    elif isinstance(value, (list, tuple)):
        take(f"[{len(value)}".encode())
        for item in value:
            _feed(take, item)
    elif hasattr(value, "items") and isinstance(value.items, list):  # the names of a table
        _feed(take, value.items)
    else:
        take(f"{type(value).__name__}:{value!r};".encode("utf-8", "surrogatepass"))
