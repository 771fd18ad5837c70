"""Reading files named by users: plain, compressed or from a shell's pipe, bounded in size, refused with one line.

Every package reads through here, so that pipes, device nodes, links and decompression bombs are handled in one place.
Standard library only, plus ISA-L's faster gunzip and Zstandard where they are installed.
"""

from __future__ import annotations

import gc
import gzip
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from foretrace.errors import ForetraceError

GZIP_MAGIC = b"\x1f\x8b"
FIRST_CHUNK_BYTES, CHUNK_BYTES = 1 << 16, 1 << 22
"""The first chunk is small: it often suffices to recognise a file's format."""
BOMB_BYTES, BOMB_RATIO = 64 << 20, 200
"""A file that has unpacked to more bytes than this, and to more than this many times what was read of it, is a
bomb: traces shrink 10 to 60 times. What was read counts, not the file's size: else most of a bomb would be unpacked."""
MAX_PIPED_BYTES = 2 << 30
"""Limit for a pipe such as ``<(zcat trace.json.gz)``: no trace that could be shown is larger, and some processes write
for ever."""
NAMED_DESCRIPTORS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
MAX_LINKS = 40
"""Links that a path may lead through: Linux's own limit."""
_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|thread-self|(\d+)))/fd/(\d+)")
_piped: dict[tuple[int, int], BinaryIO] = {}
"""Temporary copies of pipes, by device and inode: a trace is read twice, and a pipe only once."""


def read_chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked if it is compressed (gzip, bzip2, xz, Zstandard, zip), a few megabytes at a time.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()); _ = (folder / "a.json").write_bytes(b"{}")
    >>> list(read_chunks(folder / "a.json"))
    [b'{}']
    """
    try:
        with open_input(path) as file:
            magic = file.read(MAGIC_BYTES)
            file.seek(0)
            if not magic:
                raise ForetraceError(f"{path} is empty (0 bytes)", "Record it again, or leave it out.")
            compression = next((known for start, known in COMPRESSIONS.items() if magic.startswith(start)), None)
            if compression is not None:
                yield from _unpacked_chunks(path, file, compression)
            elif path.suffix == ".gz":
                raise ForetraceError(
                    f"{path} is called .gz but is not gzipped", "Rename it without .gz, or gzip it and try again."
                )
            else:
                size = FIRST_CHUNK_BYTES
                while chunk := file.read(size):
                    yield chunk
                    size = CHUNK_BYTES
    except OSError as error:
        raise read_error(path, error) from None


def read_json_chunks(path: Path) -> Iterator[bytes]:
    """Like `read_chunks`, for a file that must hold JSON: refused at once if it starts with something else.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()); _ = (folder / "a.json").write_bytes(b"  [1]")
    >>> b"".join(read_json_chunks(folder / "a.json"))
    b'[1]'
    """
    chunks = read_chunks(path)
    for chunk in chunks:
        text = chunk.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not text[:1] or text[0] not in b"{[":
            break
        yield text
        yield from chunks
        return
    raise ForetraceError(f"{path} is not JSON", "Give a PyTorch profiler trace, an execution trace or a Chakra trace.")


def read_bounded(path: Path, limit: int, what: str) -> bytes:
    """All of a file, unpacked if it is gzipped; a file with more than ``limit`` bytes is refused.

    Parameters
    ----------
    path
        The file.
    limit
        How many bytes a file of its kind may have.
    what
        What it should be, for the message: ``"a log of nccl-tests"``.

    Raises
    ------
    OSError, EOFError, zlib.error
        If it can't be read or unpacked, for the caller to report.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()); _ = (folder / "a.json").write_bytes(b"{}")
    >>> read_bounded(folder / "a.json", 10, "a plan")
    b'{}'
    >>> read_bounded(folder / "a.json", 1, "a plan")
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: ...a.json is too large for a plan (more than 1 byte). Give another file.
    """
    with open_input(path) as file:
        data = file.read(limit + 1)
        if data.startswith(GZIP_MAGIC):
            data = _unpacked(data, limit)
        elif path.suffix == ".gz":
            raise OSError("it is called .gz but is not gzipped")
    if len(data) > limit:
        size = f"{limit >> 20:,} MB" if limit >= 1 << 20 else f"{limit:,} byte{'s' * (limit != 1)}"
        raise ForetraceError(f"{path} is too large for {what} (more than {size})", "Give another file.")
    return data


def open_input(path: Path) -> BinaryIO:
    """Open a file that can be read more than once: a plain file, or what a shell's ``<(command)`` or ``|`` gives.

    Named pipes and devices are refused: they may have no end, or no writer.

    >>> open_input(Path("/dev/zero"))
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: /dev/zero is a device: reading it may never end. Give a file.
    """
    there = path.stat()
    if stat.S_ISREG(there.st_mode) or stat.S_ISDIR(there.st_mode):  # opening a folder raises the right error
        return path.open("rb")
    if stat.S_ISFIFO(there.st_mode) and descriptor_of(path) is not None:
        return _copy_of_pipe(path, (there.st_dev, there.st_ino))
    advice = f"Give a file, or <(cat {path})." if stat.S_ISFIFO(there.st_mode) else "Give a file."
    raise ForetraceError(f"{path} is {special_file(there.st_mode)}: reading it may never end", advice)


def read_error(path: Path, error: OSError) -> ForetraceError:
    """The error to raise for a path that the system can't read."""
    if isinstance(error, FileNotFoundError):
        return ForetraceError(f"{path} does not exist", "Check the path.")
    if isinstance(error, IsADirectoryError):
        return ForetraceError(f"{path} is a folder", "Name a file in it.")
    return ForetraceError(f"{path} can't be read ({error.strerror or error})", "Check its permissions.")


def descriptor_of(path: Path) -> int | None:
    """The open file of this process that a path such as ``/dev/stdout`` or ``/dev/fd/63`` refers to; None for others.

    Links are followed, since ``/dev/stdout`` may itself be the target of one.

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
            target = os.readlink(place)  # noqa: PTH115 - may be relative
        except OSError:
            return None
        place = os.path.abspath(Path(place).parent / target)  # noqa: PTH100
    return None


def special_file(mode: int) -> str:
    """A name for what is neither file nor folder.

    >>> special_file(stat.S_IFIFO), special_file(stat.S_IFCHR)
    ('a pipe', 'a device')
    """
    return {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}.get(stat.S_IFMT(mode), "a device")


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause Python's garbage collector while a file is read.

    Reading makes millions of small objects without cycles, and the collector would visit each of them repeatedly.

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _copy_of_pipe(path: Path, pipe: tuple[int, int]) -> BinaryIO:
    """All that a pipe gives, from a temporary file that is removed with this process."""
    if pipe not in _piped:
        import tempfile  # here: few commands read a pipe

        copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        with path.open("rb", buffering=0) as source:
            while chunk := source.read(CHUNK_BYTES):
                copy.write(chunk)
                if copy.tell() > MAX_PIPED_BYTES:
                    copy.close()
                    raise ForetraceError(
                        f"{path} gives more than {MAX_PIPED_BYTES >> 20:,} MB", "Write it to a file, and give that."
                    )
        copy.flush()
        _piped[pipe] = copy
    folder = "/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd"  # the first has a position of its own
    descriptor = os.open(f"{folder}/{_piped[pipe].fileno()}", os.O_RDONLY | os.O_CLOEXEC)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.fdopen(descriptor, "rb")


def _unpacked(data: bytes, limit: int) -> bytes:
    """Contents of gzip members; of more than ``limit`` bytes, one too many."""
    found = b""
    while data and len(found) <= limit:
        member = zlib.decompressobj(wbits=31)
        found += member.decompress(data, limit + 1 - len(found))
        if not member.eof and len(found) <= limit:
            raise EOFError("it ends in the middle of its gzip data")
        data = member.unused_data.lstrip(b"\0")  # padding between members
    return found


Unpacker = tuple[Callable[..., Any], tuple[Any, ...]]
"""What opens a compressed file, and the errors it raises for damaged data."""


def _gunzip() -> Unpacker:
    damaged = (gzip.BadGzipFile, zlib.error)
    try:
        from isal import igzip, isal_zlib
    except ImportError:  # there is no wheel of it for some machines
        return lambda file, mode: gzip.GzipFile(fileobj=file, mode=mode), damaged
    return lambda file, mode: igzip.GzipFile(fileobj=file, mode=mode), (*damaged, isal_zlib.error)


def _bunzip() -> Unpacker:
    import bz2

    return bz2.BZ2File, (OSError, ValueError)


def _unxz() -> Unpacker:
    import lzma

    return lzma.LZMAFile, (lzma.LZMAError,)


def _unzstd() -> Unpacker:
    import zstandard

    def opened(file: BinaryIO, mode: str) -> Any:
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)

    return opened, (zstandard.ZstdError,)


def _unzip() -> Unpacker:
    import zipfile

    def opened(file: BinaryIO, mode: str) -> Any:
        try:
            archive = zipfile.ZipFile(file)
            inside = [one for one in archive.infolist() if not one.is_dir()]
            if len(inside) == 1:
                return archive.open(inside[0])
        except (*damaged, EOFError) as error:
            raise ForetraceError(f"{file.name} is not a sound zip file ({error})", "Copy it again.") from None
        raise ForetraceError(f"{file.name} holds {len(inside):,} files", "Unpack it, and give what it holds.")

    damaged = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError, ValueError)
    return opened, damaged


class Compression(NamedTuple):
    """A way to compress a file."""

    name: str
    suffix: str
    unpacker: Callable[[], Unpacker]


COMPRESSIONS = {
    GZIP_MAGIC: Compression("gzip", ".gz", _gunzip),
    b"BZh": Compression("bzip2", ".bz2", _bunzip),
    b"\xfd7zXZ\0": Compression("xz", ".xz", _unxz),
    b"\x28\xb5\x2f\xfd": Compression("Zstandard", ".zst", _unzstd),
    b"PK\x03\x04": Compression("zip", ".zip", _unzip),
}
"""By the bytes that a file begins with."""
MAGIC_BYTES = max(map(len, COMPRESSIONS))


def _unpacked_chunks(path: Path, file: BinaryIO, compression: Compression) -> Iterator[bytes]:
    packed = os.fstat(file.fileno()).st_size
    total, size = 0, FIRST_CHUNK_BYTES
    try:
        unpacker, damaged = compression.unpacker()
    except ImportError:
        raise ForetraceError(
            f"{path} is compressed with {compression.name}, which Python does not read by itself",
            "Install zstandard (pip install zstandard), or unpack the file.",
        ) from None
    with unpacker(file, mode="rb") as stream:
        while True:
            try:
                chunk: bytes = stream.read(size)
            except EOFError:
                raise ForetraceError(
                    f"{path} ends in the middle of its {compression.name} data (byte {packed:,})",
                    "The program that wrote or copied it probably stopped: record or copy it again, or leave it out.",
                ) from None
            except damaged as error:
                raise ForetraceError(
                    f"{path} is not a sound {compression.name} file ({error}, near byte {file.tell():,})",
                    "Copy it again.",
                ) from None
            if not chunk:
                return
            total += len(chunk)
            if total > BOMB_BYTES and total > BOMB_RATIO * file.tell():
                raise ForetraceError(
                    f"{path} unpacks to over {total >> 20} MB from {file.tell() >> 10} kB, which no trace does",
                    "Nothing more was read. Check where the file comes from.",
                )
            yield chunk
            size = CHUNK_BYTES
