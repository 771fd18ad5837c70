"""The folder that the server shows: what can be opened in it, and checked paths. Nothing outside of it is read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from foretrace.errors import ForetraceError
from foretrace.record.folder import is_recording

RECORDING, TRACE, DOCUMENT = "recording", "trace", "document"
TRACES = (".json.gz", ".json.bz2", ".json.xz", ".json.zst", ".et", ".et.gz", ".chakra", ".chakra.gz")
MAX_DEPTH, MAX_ITEMS = 4, 1000
"""How far down, and how many items are listed."""
MAX_DOCUMENT_BYTES = 8 << 20
"""Size up to which a plain JSON file may be a prediction or a plan; a larger one is a trace."""
TRACE_KEYS = (b'"traceEvents"', b'"nodes"', b'"ctrl_deps"')
BEGINNING = 64 << 10
"""Bytes of a file that say what it is."""


@dataclass(frozen=True)
class Item:
    """An item of the folder that can be opened."""

    name: str
    """Its path in the folder."""
    kind: str
    nbytes: int
    changed: str


class Folder:
    """A folder, and what may be read in it.

    >>> import tempfile
    >>> folder = Folder(Path(tempfile.mkdtemp()))
    >>> folder.path("../somewhere")
    Traceback (most recent call last):
    foretrace.errors.ForetraceError: ../somewhere is not in the folder. Open what the list shows.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise ForetraceError(f"{root} is no folder", "Name one that holds recordings, traces or predictions.")
        self.root = root.resolve()

    def path(self, name: str) -> Path:
        """The path of an item in the folder; one that leads out of it, by dots or by links, is refused."""
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
        for path, kind in islice(_found(self.root, 0), MAX_ITEMS):
            with suppress(OSError):  # it may just have been removed
                nbytes = sum(file.stat().st_size for file in (path, *_below(path)) if file.is_file())
                modified = path.stat().st_mtime
                changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(modified))
                found.append((modified, Item(str(path.relative_to(self.root)), kind, nbytes, changed)))
        return [item for _, item in sorted(found, key=lambda one: -one[0])]


def _found(folder: Path, depth: int) -> Iterator[tuple[Path, str]]:
    for path in _visible(folder):
        if kind := _kind(path):
            yield path, kind
        elif depth < MAX_DEPTH:
            yield from _found(path, depth + 1)


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, sorted by name: nothing in an unreadable one, and no name that an address can't hold."""
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
    """The kind of item at a path; None for none, and for an unreadable one."""
    with suppress(OSError):
        if is_recording(path):
            return RECORDING
        if any(map(is_recording, path.glob("*"))):
            return None  # each is an item
        # The traces of a job are files of all ranks, or a folder for each.
        if any(file.name.lower().endswith(TRACES) and file.is_file() for file in (path, *_below(path))):
            return TRACE
        if path.is_file() and path.suffix.lower() == ".json":
            with path.open("rb") as file:
                beginning = file.read(BEGINNING)
            is_trace = path.stat().st_size > MAX_DOCUMENT_BYTES or any(key in beginning for key in TRACE_KEYS)
            return TRACE if is_trace else DOCUMENT
    return None


def _is_plain(path: Path) -> bool:
    """Whether it is a file, a folder, or a broken link: reading a pipe or a device may block for ever."""
    return path.is_file() or path.is_dir() or not path.exists()


def _below(folder: Path) -> Iterator[Path]:
    """Files and folders as deep as recordings have them."""
    yield from folder.glob("*")
    yield from folder.glob("*/*")
