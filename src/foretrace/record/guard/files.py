"""Stand-ins for file functions: files are written in the scratch folder, and renamed and deleted in the overlay."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from foretrace.record.guard.guard import (
    REFUSED,
    REPLACED,
    Inert,
    StandInClass,
    applies,
    guard,
    note,
    quietly,
    stands_in_for,
    trusted,
)
from foretrace.record.guard.overlay import PathLike, failure

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
TMPFILE = getattr(os, "O_TMPFILE", 0) & ~getattr(os, "O_DIRECTORY", 0)
OUTPUTS = (1, 2)
"""Numbers of the script's own output; what else it has open for writing is a scratch file."""
STREAM = re.compile(r"/dev/std(?:out|err)|/(?:dev|proc/(?:self|\d+))/fd/[12]")
"""The script's output by other names: to open one of them anew would truncate the file that a shell sends it to."""


def redirected(path: PathLike, action: str, fresh: bool = True) -> str:
    """The scratch file for one that a library would write at a path; noted as that action."""
    files = guard().files
    wanted = files.absolute(path)
    if files.is_safe(wanted) and files.find(wanted) == wanted:
        return wanted
    note(action, os.fsdecode(path), seen=True)
    with quietly():
        return files.to_write(wanted, fresh)


def found(path: PathLike) -> str:
    """The file that a library would read at a path."""
    return guard().files.find(guard().files.absolute(path)) or os.fsdecode(path)


# Opening files.


class _FileIO(io.FileIO, metaclass=StandInClass):
    """A raw file, where it is opened by its class or one that is derived from it."""

    stands_in = True

    def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
        opened = super().__init__

        def initialised(place: Any, mode: str, opener: Any = None) -> _FileIO:
            opened(place, mode, closefd, opener)
            return self

        open_it = partial(_open, initialised) if applies() else initialised
        open_it(file, mode, opener=opener)


REPLACED["io"] = REPLACED["_io"] = [("FileIO", _FileIO)]


@stands_in_for("builtins:open", "io:open", "tarfile:bltn_open", "bz2:_builtin_open")
def _open(original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    if isinstance(file, int) or not isinstance(mode, str):
        return original(file, mode, *args, **kwargs)
    stream = _stream(file)
    if stream is not None:
        return original(stream, mode, *args, **kwargs)
    opener = kwargs.pop("opener", None)
    if opener is not None:  # the name is for show
        return _named(original(opener(file, _flags(mode)), mode, *args, **kwargs), file)
    place = _opened(file, None, any(letter in mode for letter in "wax+"), "w" in mode, "x" in mode, "r" not in mode)
    if place is None:
        return original(file, mode, *args, **kwargs)
    with trusted():
        return _named(original(place, mode, *args, **kwargs), file)


@stands_in_for("io:open_code")
def _open_code(original: Any, path: str) -> Any:
    return original(found(path))


def _named(opened: Any, name: Any) -> Any:
    """A file that goes by the name that the script gave it."""
    with suppress(AttributeError, TypeError):
        raw = getattr(opened, "buffer", opened)
        getattr(raw, "raw", raw).name = name
    return opened


def _flags(mode: str) -> int:
    """The system's flags for a mode of `open`."""
    kinds = {"w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL, "a": os.O_CREAT | os.O_APPEND}
    access = os.O_RDWR if "+" in mode else os.O_RDONLY if "r" in mode else os.O_WRONLY
    return access | next((flags for letter, flags in kinds.items() if letter in mode), 0) | getattr(os, "O_CLOEXEC", 0)


@stands_in_for("os:open")
def _os_open(original: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    stream = _stream(path)
    if stream is not None:
        return stream
    if TMPFILE and flags & TMPFILE:
        with trusted():
            return int(original(guard().files.scratch, flags, mode))
    writes, anew, create = bool(flags & WRITES), bool(flags & os.O_TRUNC), bool(flags & os.O_CREAT)
    place = _opened(path, dir_fd, writes, anew, create and bool(flags & os.O_EXCL), create)
    if place is None:
        return int(original(path, flags, mode, dir_fd=dir_fd))
    with trusted():
        return int(original(place, flags, mode))


def _stream(path: Any) -> int | None:
    """Another number for the script's own output, where a path means that."""
    text = os.fsdecode(path)
    return os.dup(2) if STREAM.fullmatch(text) else None


def _opened(path: Any, dir_fd: int | None, writes: bool, anew: bool, new: bool, create: bool) -> str | None:
    """The file to open in place of one; None where that is the one itself."""
    files = guard().files
    if not writes and files.is_unchanged:
        return None
    wanted = files.absolute(path, dir_fd)
    place = files.find(wanted)
    if not writes:
        if place is None:
            raise failure(errno.ENOENT, os.fsdecode(path))
        return None if place == wanted else place
    if files.is_safe(wanted) and place == wanted:
        return None
    if new and files.exists(wanted):
        raise failure(errno.EEXIST, os.fsdecode(path))
    with trusted():
        # A link is written through.
        resolved = os.path.realpath(place) if place is not None and os.path.islink(place) else wanted
    to = files.to_write(resolved, anew, create)
    if resolved != wanted:
        files.put(wanted, to)
    if not files.is_unremarkable(wanted):
        note("open {} for writing", os.fsdecode(path), seen=True)
    return to


# Looking at files.


@stands_in_for("os:stat", "os:lstat", "os:readlink", "os:chdir", "os:statvfs", "os:getxattr", "os:listxattr")
def _look(original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    files = guard().files
    if isinstance(path, int) or files.is_unchanged:
        return original(path, *args, **kwargs)
    wanted = files.absolute(path, kwargs.get("dir_fd"))
    place = files.find(wanted)
    if place is None:
        raise failure(errno.ENOENT, os.fsdecode(path))
    if place == wanted:
        return original(path, *args, **kwargs)
    kwargs.pop("dir_fd", None)
    return original(place, *args, **kwargs)


@stands_in_for("os:access")
def _access(original: Any, path: Any, mode: int, **kwargs: Any) -> bool:
    try:
        return bool(_look(original, path, mode, **kwargs))
    except FileNotFoundError:
        return False


@stands_in_for("os:listdir")
def _list(original: Any, path: Any = ".") -> list[Any]:
    if isinstance(path, int) or guard().files.is_unchanged:
        return list(original(path))
    names = guard().files.names_in(guard().files.absolute(path))
    return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)


@stands_in_for("os:scandir")
def _scan(original: Any, path: Any = ".") -> Any:
    if isinstance(path, int) or path is None or guard().files.is_unchanged:
        return original(path)
    folder = os.fsdecode(path)
    return _Entries(_Entry(folder, name) for name in guard().files.names_in(guard().files.absolute(folder)))


class _Entries(Inert):
    """The result of `os.scandir` for a folder that the script has changed."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        super().__init__(_entries=iter(list(entries)))

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries  # type: ignore[no-any-return]

    def __next__(self) -> _Entry:
        return next(self._entries)  # type: ignore[no-any-return]


class _Entry:
    """An `os.DirEntry` of the overlay."""

    def __init__(self, folder: str, name: str) -> None:
        self.name, self.path = name, os.path.join(folder, name)
        self.stat, self.is_symlink = partial(os.stat, self.path), partial(os.path.islink, self.path)
        self.is_dir, self.is_file = partial(self._is, stat.S_ISDIR), partial(self._is, stat.S_ISREG)

    def __fspath__(self) -> str:
        return self.path

    def inode(self) -> int:
        """Its number in the file system."""
        return self.stat().st_ino

    def _is(self, kind: Any, *, follow_symlinks: bool = True) -> bool:
        try:
            return bool(kind(self.stat(follow_symlinks=follow_symlinks).st_mode))
        except OSError:
            return False


# Changing the file system.


def _change(path: Any, dir_fd: int | None, action: str, target: object = None) -> str | None:
    """Note a change of a path and give it, absolute; None where the script may change it as it is."""
    files = guard().files
    wanted = files.absolute(path, dir_fd)
    if files.is_safe(wanted, follow=False) and files.find(wanted) == wanted:
        return None
    if not files.is_unremarkable(wanted):
        note(action, os.fsdecode(path) if target is None else target, seen=True)
    return wanted


def _must_exist(path: str, shown: Any) -> None:
    if not guard().files.exists(path):
        raise failure(errno.ENOENT, os.fsdecode(shown))


@stands_in_for("os:mkdir")
def _mkdir(original: Any, path: Any, mode: int = 0o777, **where: Any) -> Any:
    files, dir_fd = guard().files, where.get("dir_fd")
    wanted = files.absolute(path, dir_fd)
    if files.exists(wanted):
        raise failure(errno.EEXIST, os.fsdecode(path))
    if not files.exists(os.path.dirname(wanted)):
        raise failure(errno.ENOENT, os.fsdecode(path))
    if _change(path, dir_fd, "make folder {}") is None:
        return original(path, mode, **where)
    place = files.find(wanted)
    place = place if place is not None and files.is_safe(place) else files.place_for(wanted)
    with trusted():
        return original(place)


@stands_in_for("os:remove", "os:unlink", "os:rmdir")
def _remove(original: Any, path: Any, **where: Any) -> Any:
    files, dir_fd = guard().files, where.get("dir_fd")
    _must_exist(files.absolute(path, dir_fd), path)
    wanted = _change(path, dir_fd, "delete {}")
    if wanted is None:
        return original(path, **where)
    with trusted():
        is_folder = os.path.isdir(files.find(wanted) or wanted)
    if is_folder and files.names_in(wanted):
        raise failure(errno.ENOTEMPTY, os.fsdecode(path))
    if is_folder != original.__name__.startswith("rmdir"):
        raise failure(errno.EISDIR if is_folder else errno.ENOTDIR, os.fsdecode(path))
    files.put(wanted, None)
    return None


@stands_in_for("shutil:rmtree")
def _rmtree(original: Any, path: Any, ignore_errors: bool = False, *args: Any, **kwargs: Any) -> None:
    files = guard().files
    wanted = files.absolute(path, kwargs.get("dir_fd"))
    if not files.exists(wanted):
        if ignore_errors or args or kwargs:
            return None
        raise failure(errno.ENOENT, os.fsdecode(path))
    if _change(wanted, None, "delete folder {}") is None:
        with trusted():  # it takes a folder apart by numbers of open ones
            return original(path, ignore_errors, *args, **kwargs)  # type: ignore[no-any-return]
    files.put(wanted, None)
    return None


@stands_in_for("os:rename", "os:replace", "os:link", "os:symlink")
def _rename(original: Any, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
    files = guard().files
    kind = original.__name__
    is_link = kind == "symlink"
    here = kwargs.get("dir_fd") if is_link else kwargs.get("src_dir_fd")
    there = kwargs.get("dir_fd") if is_link else kwargs.get("dst_dir_fd")
    new = files.absolute(target, there)
    # What a link says is relative to where it is.
    named = os.path.join(os.path.dirname(new), os.fsdecode(source)) if is_link else source
    old = files.absolute(named, None if is_link else here)
    if not is_link:
        _must_exist(old, source)
    if kind in ("link", "symlink") and files.exists(new):
        raise failure(errno.EEXIST, os.fsdecode(target))
    with trusted():
        free = all(files.is_safe(one, follow=False) and files.find(one) == one for one in (old, new))
    if free:
        return original(source, target, *args, **kwargs)  # type: ignore[no-any-return]
    verb = {"rename": "rename", "replace": "rename"}.get(kind, "link")
    _change(target, there, f"{verb} {{}}", f"{os.fsdecode(source)} to {os.fsdecode(target)}")
    if verb == "rename":
        files.rename(old, new)
    else:
        files.put(new, files.find(old))
    return None


@stands_in_for(
    "os:chmod", "os:lchmod", "os:fchmod", "os:chown", "os:lchown", "os:fchown", "os:utime", "os:setxattr",
    "os:removexattr", "os:chflags",
)  # fmt: skip
def _mark(original: Any, path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
    files = guard().files
    if isinstance(path, int):
        with trusted():
            is_own = files.is_safe(f"/proc/self/fd/{path}")
        if is_own:
            return original(path, *args, **kwargs)  # type: ignore[no-any-return]
        return note(f"{original.__name__} of an open file", seen=True)
    wanted = files.absolute(path, dir_fd)
    _must_exist(wanted, path)
    place = files.find(wanted)
    if place is not None and files.is_safe(place):
        with trusted():
            return original(place, *args, **kwargs)  # type: ignore[no-any-return]
    return note(f"{original.__name__} {{}}", os.fsdecode(path), seen=True)


@stands_in_for("os:truncate", "os:ftruncate")
def _truncate(original: Any, path: Any, length: int) -> None:
    if isinstance(path, int):
        if path in OUTPUTS:  # a file that a shell sends them to
            return note("truncate the output", seen=True)
        return original(path, length)  # type: ignore[no-any-return]
    files = guard().files
    wanted = files.absolute(path)
    if not files.is_safe(wanted):
        note("truncate {}", os.fsdecode(path), seen=True)
    with trusted():
        return original(files.to_write(wanted, fresh=False, create=False), length)  # type: ignore[no-any-return]


@stands_in_for("fcntl:ioctl")
def _control(original: Any, fd: Any, *args: Any) -> Any:
    number = fd if isinstance(fd, int) else fd.fileno()
    with trusted():
        is_file = stat.S_ISREG(os.fstat(number).st_mode) and not guard().files.is_safe(f"/proc/self/fd/{number}")
    if is_file:  # of a file it sets flags, as chattr does
        return note("ioctl of an open file", seen=True)
    return original(fd, *args)


@stands_in_for("os:mkfifo", "os:mknod")
def _make_node(original: Any, path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
    wanted = _change(path, dir_fd, f"{original.__name__} {{}}")
    if wanted is None:
        return original(path, *args, **kwargs)  # type: ignore[no-any-return]
    with trusted():
        return Path(guard().files.place_for(wanted)).touch()


# Temporary files: the system's folder for them, and what is made there, are the script's own.


@stands_in_for("tempfile:_get_default_tempdir")
def _default_folder(original: Any) -> str:
    with trusted():
        return str(original())


@stands_in_for("tempfile:_mkstemp_inner")
def _temporary_file(original: Any, folder: str, *args: Any) -> tuple[int, Any]:
    if not _is_temporary(folder):
        return original(folder, *args)  # type: ignore[no-any-return]
    with trusted():
        number, path = original(folder, *args)
    guard().files.own(path)
    return number, path


@stands_in_for("tempfile:mkdtemp")
def _temporary_folder(original: Any, suffix: Any = None, prefix: Any = None, dir: Any = None) -> Any:
    if dir is not None and not _is_temporary(dir):
        return original(suffix, prefix, dir)
    with trusted():
        path = original(suffix, prefix, dir)
    guard().files.own(path)
    return path


def _is_temporary(folder: Any) -> bool:
    with trusted():
        return os.path.realpath(os.fsdecode(folder)) == guard().files.temporary


# What the audit hook refuses.


def _check_paths(
    action: str, paths: tuple[int, ...], folders: tuple[int, ...], args: tuple[Any, ...], follow: bool = True
) -> tuple[str, object]:
    """The action of an audit event, unless the script may change all its paths."""
    files = guard().files
    for path, folder in zip(paths, folders):
        if isinstance(args[path], int):
            continue
        base = args[folder] if 0 <= folder < len(args) else None
        if not files.is_safe(files.absolute(args[path], base), follow):
            return action, os.fsdecode(args[path])
    return "", ""


def _check_open(args: tuple[Any, ...]) -> tuple[str, object]:
    path, _, flags = args
    if isinstance(path, int) or not flags & WRITES or "__pycache__" in os.fsdecode(path):
        return "", ""  # Python may write what it compiles
    return _check_paths("open {} for writing", (0,), (-1,), args)


REFUSED["open"] = _check_open
for _event, _action, _paths, _folders in (
    ("os.remove", "delete {}", (0,), (1,)),
    ("os.rmdir", "delete folder {}", (0,), (1,)),
    ("os.mkdir", "make folder {}", (0,), (2,)),
    ("os.rename", "rename {}", (0, 1), (2, 3)),
    ("os.link", "link to {}", (1,), (3,)),
    ("os.symlink", "link to {}", (1,), (2,)),
    ("os.truncate", "truncate {}", (0,), (-1,)),
    ("os.chmod", "chmod {}", (0,), (2,)),
    ("os.chown", "chown {}", (0,), (3,)),
    ("os.lchown", "chown {}", (0,), (-1,)),
    ("os.utime", "utime {}", (0,), (3,)),
    ("os.setxattr", "setxattr {}", (0,), (-1,)),
    ("os.removexattr", "removexattr {}", (0,), (-1,)),
    ("os.chflags", "chflags {}", (0,), (-1,)),
):
    _follow = _event not in ("os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink")
    REFUSED[_event] = partial(_check_paths, _action, _paths, _folders, follow=_follow)
