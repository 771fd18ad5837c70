"""The recordings of a fleet, where they lie: found in folders and object stores, and known by their contents."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from foretrace.errors import ForetraceError
from foretrace.formats.load import SUFFIXES
from foretrace.processes import temporary_folder
from foretrace.record.folder import is_recording

REMOTE = "://"
"""What tells the address of an object store from a path."""


class Found(NamedTuple):
    """A recording that was found."""

    path: str
    """A file or folder, or its address in an object store."""
    name: str
    stamp: str
    """Hash of names, sizes and times of its files."""


def find_recordings(path: str, store: Path | None = None) -> Iterator[Found]:
    """The recordings at a path: itself, or all in a folder and the folders inside it.

    A folder that holds traces is one recording, of several ranks where it has several files.
    """
    if REMOTE in path:
        yield from _remote_recordings(path)
        return
    place = Path(path)
    if not os.path.lexists(place):
        raise ForetraceError(f"{path} does not exist", "Check the path.")
    if place.is_file() or is_recording(place) or _holds_traces(place):
        yield Found(str(place.absolute()), place.name or place.absolute().name, _stamp(place))
        return
    for inner in sorted(place.iterdir()):
        if inner.is_dir() and not inner.name.startswith(".") and inner != store:
            yield from find_recordings(str(inner), store)


def _holds_traces(folder: Path) -> bool:
    """Whether a folder holds traces itself, or only folders of its ranks."""
    inside = [one for one in folder.iterdir() if not one.name.startswith(".")]
    if any(one.name.lower().endswith(SUFFIXES) and one.is_file() for one in inside):
        return True
    folders = [one for one in inside if one.is_dir()]
    return bool(folders) and all(one.name.startswith("rank") for one in folders)


def files_of(place: Path) -> list[Path]:
    """The files of a recording."""
    return [place] if place.is_file() else sorted(one for one in place.rglob("*") if one.is_file())


def _stamp(place: Path) -> str:
    seen = hashlib.blake2b(digest_size=12)
    for file in files_of(place):
        about = file.stat()
        seen.update(f"{file.relative_to(place)} {about.st_size} {about.st_mtime_ns}\n".encode())
    return seen.hexdigest()


def content_id(place: Path) -> str:
    """The hash of a recording's files and of their names in it, wherever it lies."""
    seen = hashlib.blake2b(digest_size=16)
    for file in files_of(place):
        seen.update(f"{file.relative_to(place) if place.is_dir() else ''} {file.stat().st_size}\n".encode())
        with file.open("rb") as content:
            while chunk := content.read(1 << 20):
                seen.update(chunk)
    return seen.hexdigest()


def _remote(url: str) -> tuple[Any, str]:
    """The file system of an address, and the path there."""
    try:
        import fsspec
    except ImportError:
        raise ForetraceError(
            f"{url} is in an object store, which needs fsspec", "pip install fsspec, and the package for that store."
        ) from None
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ForetraceError(f"{url} can't be opened ({error})", "Install what fsspec asks for.") from None
    return system, path


def _remote_recordings(url: str) -> Iterator[Found]:
    """Recordings of an object store: folders with a job.json, and other folders with traces."""
    system, root = _remote(url)
    scheme = url.partition(REMOTE)[0]
    try:
        files: dict[str, Any] = system.find(root, detail=True)
    except OSError as error:
        raise ForetraceError(f"{url} can't be listed ({error})", "Check the address and your credentials.") from None
    if not files:
        raise ForetraceError(f"{url} does not exist", "Check the address.")
    recordings = {path.rpartition("/")[0] for path in files if path.rpartition("/")[2] == "job.json"}
    inside: dict[str, list[str]] = {}
    for path in sorted(files):
        owner = next((one for one in recordings if path.startswith(f"{one}/")), None)
        if owner is None and path.lower().endswith(SUFFIXES):
            owner = path if path == root else path.rpartition("/")[0]
        if owner is not None:
            inside.setdefault(owner, []).append(path)
    for owner, members in inside.items():
        seen = hashlib.blake2b(digest_size=12)
        for path in members:
            about = files[path]
            change = next((about[key] for key in ("etag", "ETag", "mtime", "LastModified") if about.get(key)), "")
            seen.update(f"{path} {about.get('size')} {change}\n".encode())
        address = owner if scheme == "file" else owner.lstrip("/")
        yield Found(f"{scheme}{REMOTE}{address}", Path(owner).name, seen.hexdigest())


@contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """A recording as files of this machine: those that it is, or copies of an object store's."""
    if REMOTE not in path:
        yield Path(path)
        return
    system, there = _remote(path)
    with temporary_folder() as folder:
        place = folder / Path(there).name
        system.get(there, str(place), recursive=True)
        yield place
