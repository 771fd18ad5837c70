"""What lies in the folder that is shown, and the only way from a name to a path: nothing outside of it is read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from foretrace.graph import ForetraceError
from foretrace.record.folder import is_recording

RECORDING, TRACE, DOCUMENT = "recording", "trace", "document"
TRACES = (".json.gz", ".et", ".et.gz", ".chakra", ".chakra.gz")
DEEPEST, MOST = 4, 1000
"""How far down and up to how many things are listed."""
SMALL = 8 << 20
"""Bytes up to which a plain JSON file may be a forecast or a plan; a larger one is a trace."""
OF_TRACES = (b'"traceEvents"', b'"nodes"', b'"ctrl_deps"')
BEGINNING = 64 << 10


@dataclass(frozen=True)
class Item:
    """Something in the folder that can be opened."""

    name: str
    """Its path from the folder on."""
    kind: str
    nbytes: int
    changed: str


class Folder:
    """A folder, and what may be read of it.

    >>> import tempfile
    >>> folder = Folder(Path(tempfile.mkdtemp()))
    >>> folder.path("../somewhere")
    Traceback (most recent call last):
    foretrace.errors.ForetraceError: ../somewhere is not in the folder. Open what the list shows.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise ForetraceError(f"{root} is no folder", "Name one that holds recordings, traces or forecasts.")
        self.root = root.resolve()

    def path(self, name: str) -> Path:
        """The path of something in the folder; what leads out of it, by dots or by links, is refused."""
        refused = ForetraceError(f"{name} is not in the folder", "Open what the list shows.")
        if not name or "\0" in name or Path(name).is_absolute():
            raise refused
        path = self.root / name
        try:
            inside = self._holds(path) and path.exists()
            readable = inside and all(_is_plain(file) for file in [path, *_below(path)])
        except (OSError, RuntimeError):  # a loop of links
            inside = readable = False
        if not inside:
            raise refused
        if not readable:
            raise ForetraceError(f"{name} is, or holds, what is neither file nor folder", "Open what the list shows.")
        if path.is_dir() and not all(self._holds(file) for file in _below(path)):
            raise ForetraceError(f"{name} holds links that lead out of the folder", "Open the files they lead to.")
        return path

    def _holds(self, path: Path) -> bool:
        real = path.resolve()
        return real != self.root and real.is_relative_to(self.root)

    def items(self) -> list[Item]:
        """What can be opened, the newest first; links are left out."""
        found = []
        for path, kind in islice(_found(self.root, 0), MOST):
            with suppress(OSError):  # it may just have been taken away
                found.append((path.stat().st_mtime, self._item(path, kind)))
        return [item for _, item in sorted(found, key=lambda one: -one[0])]

    def _item(self, path: Path, kind: str) -> Item:
        files = [path] if path.is_file() else [file for file in _below(path) if file.is_file()]
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
        return Item(str(path.relative_to(self.root)), kind, sum(file.stat().st_size for file in files), changed)


def _found(folder: Path, depth: int) -> Iterator[tuple[Path, str]]:
    for path in _visible(folder):
        if kind := _kind(path):
            yield path, kind
        elif depth < DEEPEST:
            yield from _found(path, depth + 1)


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, by name: nothing in one that may not be read, and no name that an address can't hold."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if not e.name.startswith(".") and not e.is_symlink()]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if _is_text(name)]


def _is_text(name: str) -> bool:
    r"""Whether a file's name is UTF-8; Python keeps the bytes of one that is not as lone surrogates.

    >>> _is_text("größe"), _is_text("gr\udcff")
    (True, False)
    """
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _kind(path: Path) -> str | None:
    """What can be opened there; None for nothing, and for what may not be read."""
    with suppress(OSError):
        if path.is_file():
            return _kind_of_file(path, path.stat().st_size)
        if is_recording(path):
            return RECORDING
        if _holds_traces(path):
            return TRACE
    return None


def _kind_of_file(path: Path, nbytes: int) -> str | None:
    if path.name.lower().endswith(TRACES):
        return TRACE
    if path.suffix.lower() != ".json":
        return None
    return DOCUMENT if nbytes <= SMALL and not _begins_as_trace(path) else TRACE


def _begins_as_trace(path: Path) -> bool:
    """Whether a JSON file is a profiler's or an execution trace, by its beginning."""
    with path.open("rb") as file:
        beginning = file.read(BEGINNING)
    return any(word in beginning for word in OF_TRACES)


def _holds_traces(folder: Path) -> bool:
    """Whether it holds the traces of a job: files of all ranks, or a folder for each."""
    return any(file.name.lower().endswith(TRACES) and file.is_file() for file in _below(folder))


def _is_plain(path: Path) -> bool:
    """Whether it is a file or a folder, or a link to nothing: who reads a pipe or a device may wait for ever."""
    return path.is_file() or path.is_dir() or not path.exists()


def _below(folder: Path) -> Iterator[Path]:
    """As far down as traces and recordings go."""
    yield from folder.glob("*")
    yield from folder.glob("*/*")
