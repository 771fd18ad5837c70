"""The recordings of a fleet, where they lie: found in folders and object stores, and known by their contents."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from glob import escape, has_magic
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from foretrace.errors import ForetraceError
from foretrace.files import read_chunks
from foretrace.formats.load import PACKED, RANK_IN_NAME, SUFFIXES, format_of
from foretrace.processes import temporary_folder
from foretrace.record.folder import is_recording

REMOTE = "://"
"""What tells the address of an object store from a path."""
KINDS = ("chakra", "dtrace", "et", "execution", "host", "kineto", "profile", "profiler", "pt", "trace", "traces")
"""Words of file names that say what kind of trace it is, not of which job."""
CHAKRA_SUFFIXES = ("et", "chakra")
_WORDS, _NUMBERS = re.compile(r"[-_.]"), re.compile(r"\d+")
Item = TypeVar("Item")


class Found(NamedTuple):
    """A recording that was found."""

    path: str
    """A file or folder, or its address in an object store."""
    name: str
    stamp: str
    """Hash of names, sizes and times of its files."""


def find_recordings(path: str, store: Path | None = None) -> Iterator[Found]:
    """The recordings at a path: itself, or all in a folder and the folders inside it.

    Traces that lie in one folder are of one job or of several: `split_by_job`.
    """
    if REMOTE in path:
        yield from _remote_recordings(path)
        return
    place = Path(path)
    if not os.path.lexists(place):
        raise ForetraceError(f"{path} does not exist", "Check the path.")
    if place.is_file() or is_recording(place):
        yield _found(place)
        return
    members = sorted(one for one in place.iterdir() if not one.name.startswith(".") and one != store)
    folders = [one for one in members if one.is_dir()]
    jobs = split_by_job([one for one in members if one.name.lower().endswith(SUFFIXES) and one.is_file()])
    if folders and all(one.name.startswith("rank") for one in folders):
        yield _found(place)
        return
    inside = [found for folder in folders for found in find_recordings(str(folder), store)]
    if len(jobs) == 1 and not inside:
        yield _found(place)
        return
    for files in jobs:
        if any(map(_is_trace, files)):
            yield from map(_found, _places(files))
    yield from inside


def split_by_job(files: Sequence[Path]) -> list[list[Path]]:
    """The trace files of a folder, those of one job together.

    Of one job are files whose names differ in nothing but the rank and the kind of trace; and in other numbers, where
    the traces say that they are ranks of one job.

    >>> names = "a.rank0.json a.rank1.json b.kineto.json b.et.json.gz c.0.et c.1.et"
    >>> [[file.name for file in files] for files in split_by_job([Path(name) for name in names.split()])]
    [['a.rank0.json', 'a.rank1.json'], ['b.kineto.json', 'b.et.json.gz'], ['c.0.et', 'c.1.et']]
    """
    by_name = _grouped(files, _job_name)
    if len(by_name) > 1 and "" in by_name:  # names of kinds alone: what lies beside them may be no traces
        by_name = {name: some for name, some in by_name.items() if not name or any(map(_is_trace, some))}
    jobs = []
    for alike in _grouped(by_name, lambda name: _NUMBERS.sub("#", name)).values():
        members = [by_name[name] for name in alike]
        files_of_all = [file for some in members for file in some]
        jobs += [files_of_all] if len(members) > 1 and _are_ranks(files_of_all) else members
    return jobs


def _split_by_name(files: Sequence[Path]) -> list[list[Path]]:
    """The same where files are not opened: what their names leave open is one job."""
    by_name = _grouped(files, _job_name)
    open_ = "" in by_name or len(_grouped(by_name, lambda name: _NUMBERS.sub("#", name))) == 1
    return [[*files]] if open_ else [*by_name.values()]


def _grouped(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _job_name(file: Path) -> str:
    """What of a file's name is neither its rank nor the kind of trace."""
    whole = file.name.lower()
    packed = next((suffix for suffix in PACKED if suffix and whole.endswith(suffix)), "")
    *name, last = _WORDS.split(RANK_IN_NAME.sub("", whole.removesuffix(packed)))
    if last in CHAKRA_SUFFIXES and name and name[-1].isdigit():  # ASTRA-sim's: job.RANK.et
        name.pop()
    return ".".join(word for word in name if word and word not in KINDS)


def _is_trace(file: Path) -> bool:
    try:
        return format_of(file) is not None
    except ForetraceError:  # damaged: said when it is read
        return True


def _are_ranks(files: Sequence[Path]) -> bool:
    """Whether profiler traces say that they are of different ranks of one job."""
    ranks = []
    for file in files:
        try:
            head = next(read_chunks(file), b"")
        except ForetraceError:
            return False
        world, rank = (re.search(rb'"%b"\s*:\s*(\d+)' % key, head) for key in (b"world_size", b"rank"))
        if not world or not rank or int(world[1]) < 2:
            return False
        ranks.append(int(rank[1]))
    return len(set(ranks)) == len(ranks)


def _places(files: Sequence[Path]) -> list[Path]:
    """What names the files of one job in a folder with others: a file, a pattern; or each alone where none does."""
    pattern = _pattern(files)
    return [pattern] if files_of(pattern) == sorted(files) else [*files]


def _pattern(files: Sequence[Path]) -> Path:
    """The pattern that some files of a folder fit; one file as it is."""
    if len(files) == 1:
        return files[0]
    prefix = _common_start([file.name for file in files])
    suffix = _common_start([file.name[len(prefix) :][::-1] for file in files])[::-1]
    return files[0].with_name(f"{escape(prefix)}*{escape(suffix)}")


def _common_start(texts: Sequence[str]) -> str:
    return "".join(same[0] for same in takewhile(lambda some: len(set(some)) == 1, zip(*texts)))


def _found(place: Path) -> Found:
    return Found(str(place.absolute()), place.name or place.absolute().name, _stamp(place))


def files_of(place: Path) -> list[Path]:
    """The files of a recording: itself, those in its folder, or those that fit its pattern."""
    if place.is_dir():
        return sorted(one for one in place.rglob("*") if one.is_file())
    return [place] if place.exists() else sorted(place.parent.glob(place.name))


def _stamp(place: Path) -> str:
    seen = hashlib.blake2b(digest_size=12)
    for file in files_of(place):
        about = file.stat()
        seen.update(f"{name_in(place, file) or '.'} {about.st_size} {about.st_mtime_ns}\n".encode())
    return seen.hexdigest()


def name_in(place: Path, file: Path) -> str:
    """The name of a recording's file within it; what it is called itself makes no other recording of it."""
    if place.is_dir():
        return str(file.relative_to(place))
    return "" if file == place else file.name


def content_id(place: Path) -> str:
    """The hash of a recording's files and of their names in it, wherever it lies."""
    seen = hashlib.blake2b(digest_size=16)
    for file in files_of(place):
        seen.update(f"{name_in(place, file)} {file.stat().st_size}\n".encode())
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
    """Recordings of an object store: folders with a job.json, and traces, told apart by their names alone."""
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
    traces: dict[str, list[Path]] = {}
    for path in sorted(files):
        owner = next((one for one in recordings if path.startswith(f"{one}/")), None)
        if owner is not None:
            inside.setdefault(owner, []).append(path)
        elif path.lower().endswith(SUFFIXES):
            traces.setdefault(path.rpartition("/")[0], []).append(Path(path))
    for folder, some in traces.items():
        for job in _split_by_name(some):
            whole = folder if job == some and [*map(str, job)] != [root] else str(_pattern(job))
            inside[whole] = [*map(str, job)]
    for place, members in inside.items():
        seen = hashlib.blake2b(digest_size=12)
        for path in members:
            about = files[path]
            change = next((about[key] for key in ("etag", "ETag", "mtime", "LastModified") if about.get(key)), "")
            seen.update(f"{path} {about.get('size')} {change}\n".encode())
        address = place if scheme == "file" else place.lstrip("/")
        yield Found(f"{scheme}{REMOTE}{address}", Path(place).name, seen.hexdigest())


@contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """A recording as files of this machine: those that it is, or copies of an object store's."""
    if REMOTE not in path:
        yield Path(path)
        return
    system, there = _remote(path)
    with temporary_folder() as folder:
        if has_magic(there):
            system.get(there, f"{folder}/")
            yield folder
            return
        place = folder / Path(there).name
        system.get(there, str(place), recursive=True)
        yield place
