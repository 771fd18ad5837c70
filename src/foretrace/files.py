"""Files by the names that users give them: opened only where reading ends, written whole or not at all.

Every package reads and writes through here, so that a pipe, a device node, a link or a full disk is met in one place.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from foretrace.errors import ForetraceError

GZIP_MAGIC = b"\x1f\x8b"
PIECE = 1 << 20
MAX_PIPED_BYTES = 2 << 30
"""What is kept of a pipe such as ``<(zcat trace.json.gz)``: no trace that could be shown is larger, and some processes
write for ever."""
NAMED_DESCRIPTORS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|thread-self|(\d+)))/fd/(\d+)")
MAX_LINKS = 40
"""Links that a path may lead through, as Linux counts them."""
_piped: dict[tuple[int, int], BinaryIO] = {}
"""What was read from pipes, by device and inode: a trace is read twice, and a pipe can be only once."""


def descriptor_of(path: Path) -> int | None:
    """The open file of this process that a path such as ``/dev/stdout`` or ``/dev/fd/63`` stands for; None for others.

    Links are followed, since ``/dev/stdout`` may itself be named by one.

    >>> descriptor_of(Path("/dev/stdout")), descriptor_of(Path("/dev/fd/63")), descriptor_of(Path("page.html"))
    (1, 63, None)
    """
    place = os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps ".."
    for _ in range(MAX_LINKS):
        if place in NAMED_DESCRIPTORS:
            return NAMED_DESCRIPTORS[place]
        found = _DESCRIPTOR.fullmatch(place)
        if found:
            return int(found[2]) if found[1] in (None, str(os.getpid())) else None
        try:
            led_to = os.readlink(place)  # noqa: PTH115 - its answer may be relative
        except OSError:
            return None
        place = os.path.abspath(Path(place).parent / led_to)  # noqa: PTH100
    return None


def kind_of_node(mode: int) -> str:
    """What a path is that is neither file nor folder, in a word.

    >>> kind_of_node(stat.S_IFIFO), kind_of_node(stat.S_IFCHR)
    ('a pipe', 'a device')
    """
    return {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}.get(stat.S_IFMT(mode), "a device")


def opened(path: Path) -> BinaryIO:
    """A file to read, which can be read again: plain files, and what a shell's ``<(command)`` or ``|`` gives.

    A named pipe or a device may have no end, or nobody to write to it: they are refused.

    >>> opened(Path("/dev/zero"))
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: /dev/zero is a device: reading it may never end. Give a file.
    """
    there = path.stat()
    if stat.S_ISREG(there.st_mode) or stat.S_ISDIR(there.st_mode):  # opening a folder raises what says so
        return path.open("rb")
    if stat.S_ISFIFO(there.st_mode) and descriptor_of(path) is not None:
        return _from_pipe(path, (there.st_dev, there.st_ino))
    what = kind_of_node(there.st_mode)
    advice = f"Give a file, or <(cat {path})." if stat.S_ISFIFO(there.st_mode) else "Give a file."
    raise ForetraceError(f"{path} is {what}: reading it may never end", advice)


def _from_pipe(path: Path, pipe: tuple[int, int]) -> BinaryIO:
    """All that a pipe gives, from a temporary file that goes with this process."""
    if pipe not in _piped:
        kept: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as we run
        with path.open("rb", buffering=0) as source:
            while piece := source.read(PIECE):
                kept.write(piece)
                if kept.tell() > MAX_PIPED_BYTES:
                    kept.close()
                    raise ForetraceError(
                        f"{path} gives more than {MAX_PIPED_BYTES >> 20:,} MB", "Write it to a file, and give that."
                    )
        kept.flush()
        _piped[pipe] = kept
    folder = "/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd"  # the first gives a position of its own
    again = os.open(f"{folder}/{_piped[pipe].fileno()}", os.O_RDONLY | os.O_CLOEXEC)
    os.lseek(again, 0, os.SEEK_SET)
    return os.fdopen(again, "rb")


def read_bounded(path: Path, most: int, what: str) -> bytes:
    """All of a file, unpacked where it is gzipped; one that holds more than a file of its kind does is refused.

    Parameters
    ----------
    path
        The file.
    most
        How many bytes such a file may have.
    what
        What it should be, for the message: ``"a log of nccl-tests"``.

    Raises
    ------
    OSError, EOFError, zlib.error
        Where it can't be read or unpacked, for the caller to say so.

    >>> folder = Path(tempfile.mkdtemp()); _ = (folder / "a.json").write_bytes(b"{}")
    >>> read_bounded(folder / "a.json", 10, "a plan")
    b'{}'
    >>> read_bounded(folder / "a.json", 1, "a plan")
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: ...a.json is too large for a plan (more than 1 byte). Give another file.
    """
    with opened(path) as file:
        data = file.read(most + 1)
        if data.startswith(GZIP_MAGIC):
            data = _unpacked(data, most)
        elif path.suffix == ".gz":
            raise OSError("it is called .gz but is not gzipped")
    if len(data) > most:
        size = f"{most >> 20:,} MB" if most >= 1 << 20 else f"{most:,} byte{'s' * (most != 1)}"
        raise ForetraceError(f"{path} is too large for {what} (more than {size})", "Give another file.")
    return data


def _unpacked(data: bytes, most: int) -> bytes:
    """What gzip members hold; of more than ``most`` bytes, one too many."""
    found = b""
    while data and len(found) <= most:
        member = zlib.decompressobj(wbits=31)
        found += member.decompress(data, most + 1 - len(found))
        if not member.eof and len(found) <= most:
            raise EOFError("it ends in the middle of its gzip data")
        data = member.unused_data.lstrip(b"\0")  # padding between members
    return found


def check_place(path: Path) -> None:
    """Refuse a path whose folder is none, or may not be written to; folders that are not there yet can be made."""
    place = Path(os.path.realpath(path)).parent
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise ForetraceError(f"{path} can't be written: {place} is no folder", "Name another place.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ForetraceError(f"{path} can't be written: {place} is read-only", "Name another place.")


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, under another name until it is complete; folders around it are made.

    Where the path is a link, what it leads to is written and the link stays. A file that was there keeps its owner and
    who may read it. Raises what the system says; `foretrace.formats.output.replaced` says it to a user.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with written_whole(folder / "new" / "a.txt") as file:
    ...     _ = file.write(b"whole")
    >>> (folder / "new" / "a.txt").read_bytes(), len(list((folder / "new").iterdir()))
    (b'whole', 1)
    """
    target = Path(os.path.realpath(path))
    unfinished = _unfinished(target)
    with _folders_around(target):
        try:
            made = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with os.fdopen(made, "wb") as file:
                _like_before(file, target)
                yield file
            unfinished.replace(target)
        finally:
            with suppress(OSError):
                unfinished.unlink()


def _like_before(file: BinaryIO, target: Path) -> None:
    """Give a new file the owner and the permissions of the one that it will replace."""
    with suppress(OSError):
        before = target.stat()
        os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
        os.fchown(file.fileno(), before.st_uid, before.st_gid)


def _unfinished(target: Path) -> Path:
    """A hidden name beside it that is nobody's: a guessable one might be somebody's link."""
    return target.with_name(f".{target.name[:40]}.{os.urandom(4).hex()}")


@contextmanager
def _folders_around(target: Path) -> Iterator[None]:
    """The folders above a path, made; those that were not there before are gone again where what needed them fails."""
    made = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # somebody else may have put something there meanwhile
            for folder in made:
                folder.rmdir()
        raise


def check_new_folder(path: Path) -> None:
    """Refuse a folder that is there already, or that can't be made.

    >>> check_new_folder(Path("/"))
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: / is there already. Choose another folder, or remove it first.
    """
    if os.path.lexists(path):
        raise ForetraceError(f"{path} is there already", "Choose another folder, or remove it first.")
    check_place(path)


@contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill, under another name until it is complete: on a full disk nothing is left of it.

    >>> place = Path(tempfile.mkdtemp()) / "kept"
    >>> with written_folder(place) as folder:
    ...     _ = (folder / "run.py").write_text("")
    >>> [file.name for file in place.iterdir()], len(list(place.parent.iterdir()))
    (['run.py'], 1)
    """
    check_new_folder(path)
    target = Path(os.path.realpath(path))
    unfinished = _unfinished(target)
    try:
        with _folders_around(target):
            try:
                unfinished.mkdir()
                yield unfinished
                unfinished.rename(target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise ForetraceError(
            f"{path} can't be written ({reason(error)})", "Make room there, or choose another folder: nothing was kept."
        ) from None


def reason(error: OSError) -> str:
    """Why the system would not, in its words; copying a folder collects several reasons, of which the first is given.

    >>> reason(OSError(28, "No space left on device"))
    'No space left on device'
    >>> reason(shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]))
    "No space left on device: 'b'"
    """
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return re.sub(r"^\[Errno \d+\] ", "", str(error.args[0][0][-1]))
    return error.strerror or str(error)
