"""An overlay of the file system for a sketched script: what it writes goes to a scratch folder, deletions are noted.

The file system itself is only read. A dictionary says where a path that the script changed is now: in the scratch
folder, at its old place after a rename, or gone.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from foretrace.record.guard.guard import trusted

MAX_COPIED = 64 << 20
"""Bytes of a file that are copied where a script changes a part of it; of a larger one there are zeros to write on."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""Devices that keep nothing of what is written to them, and the terminal."""
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
"""Variables that name the caches of PyTorch and its compilers."""
HIDDEN = (".cache", ".config", ".matplotlib", ".nv", ".triton")
"""Folders of a user's home in which libraries cache facts about the machine."""
TEMPORARY = "foretrace-sketch-"

PathLike = str | bytes | os.PathLike[Any]


class Overlay:
    """The files of a sketched script.

    What is written goes to ``scratch``; without it, to a folder that is made when it is first needed and removed when
    ``stack`` closes.
    """

    def __init__(self, stack: ExitStack, scratch: Path | None = None) -> None:
        self._stack = stack
        self._scratch = None if scratch is None else os.path.realpath(scratch)
        self._places: dict[str, str | None] = {}
        """Where a path is that was changed; None for one that is gone. Those below it are below that."""
        self._made = 0
        self._own: set[str] = set()
        """Temporary files and folders that the script made, and may change."""
        with trusted():
            self.temporary = os.path.realpath(tempfile.gettempdir())
            """The system's folder for temporary files; a script may choose another one for its own."""
        self._caches = tuple(os.path.realpath(os.environ[name]) for name in CACHES if name in os.environ)
        home = os.path.expanduser("~")
        known = [f"{home}/{name}" for name in HIDDEN]
        self._unremarkable = tuple(map(os.path.realpath, [*known, os.environ.get("XDG_CACHE_HOME") or known[0]]))
        self.saved: dict[str, Any] = {}
        """What the script saved with torch.save, by the path of the scratch file."""

    @property
    def scratch(self) -> str:
        """The folder for what is written."""
        if self._scratch is None:
            with trusted():
                self._scratch = os.path.realpath(tempfile.mkdtemp(prefix=TEMPORARY))
            self._stack.callback(shutil.rmtree, self._scratch, ignore_errors=True)
        return self._scratch

    def absolute(self, path: PathLike, dir_fd: int | None = None) -> str:
        """The path with all links resolved but the last: what a deletion would delete."""
        text = os.fsdecode(path)
        with trusted():
            if dir_fd is not None and dir_fd >= 0:
                text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
            folder, name = os.path.split(os.path.abspath(text))
            return os.path.join(os.path.realpath(folder), name)

    def find(self, path: str) -> str | None:
        """Where a path is now; None where it is gone."""
        below, above = "", path
        while self._places:
            if above in self._places:
                place = self._places[above]
                return None if place is None else place + below
            if above == os.sep or not above:
                break
            above, _, last = above.rpartition(os.sep)
            below, above = f"{os.sep}{last}{below}", above or os.sep
        return path

    def exists(self, path: str) -> bool:
        """Whether the script finds something there."""
        place = self.find(path)
        with trusted():
            return place is not None and os.path.lexists(place)

    def is_safe(self, path: str, follow: bool = True) -> bool:
        """Whether the script may write to it: a file that it made, a cache, or a device that keeps nothing."""
        with trusted():
            place = os.path.realpath(path) if follow else self.absolute(path)
        if place in DEVICES or place.startswith(("/dev/pts/", f"/proc/{os.getpid()}/")):
            return True
        inductor = os.path.join(self.temporary, "torchinductor_")
        within = [folder for folder in (self._scratch, *self._own, *self._caches) if folder]
        return place.startswith(inductor) or any(place == one or place.startswith(one + os.sep) for one in within)

    def is_unremarkable(self, path: str) -> bool:
        """Whether it is a cache of some library: redirected like others, but not noted."""
        return path.endswith(".pyc") or f"{path}{os.sep}".startswith(
            tuple(folder + os.sep for folder in self._unremarkable)
        )

    def own(self, path: str) -> None:
        """Let the script change a temporary file or folder that it made."""
        self._own.add(self.absolute(path))

    def to_write(self, path: str, fresh: bool, create: bool = True) -> str:
        """Where to write what the script would write to a path: what is there already is copied, unless it starts anew.

        Raises what opening the file would raise: where its folder is not there, or it is one.
        """
        place = self.find(path)
        with trusted():
            above = self.find(os.path.dirname(path))
            if above is None or not os.path.isdir(above):
                raise failure(errno.ENOENT if above is None or not os.path.exists(above) else errno.ENOTDIR, path)
            there = place is not None and os.path.exists(place)
            if not there and not create:
                raise failure(errno.ENOENT, path)
            if place is not None and os.path.isdir(place):
                raise failure(errno.EISDIR, path)
            if place is not None and self.is_safe(place):
                return place
            made = self.place_for(path)
            if there and place is not None:
                _copy(place, made, empty=fresh)
        return made

    def place_for(self, path: str) -> str:
        """A place in the scratch folder that stands for a path from now on."""
        self._made += 1
        folder = os.path.join(self.scratch, str(self._made))
        with trusted():
            os.mkdir(folder)
        self.put(path, os.path.join(folder, os.path.basename(path) or "root"))
        return str(self._places[path])

    def put(self, path: str, place: str | None) -> None:
        """Say where a path is from now on, and with it all that is below it."""
        for below in [key for key in self._places if key.startswith(path + os.sep)]:
            del self._places[below]
        self._places[path] = place

    def rename(self, source: str, target: str) -> None:
        """Move a path, with all that is below it."""
        place = self.find(source)
        inner = {key[len(source) :]: at for key, at in self._places.items() if key.startswith(source + os.sep)}
        self.put(target, place)
        self._places.update({target + below: at for below, at in inner.items()})
        self.put(source, None)

    def names_in(self, path: str) -> list[str]:
        """What the script finds in a folder."""
        place = self.find(path)
        if place is None:
            raise failure(errno.ENOENT, path)
        with trusted():
            names = dict.fromkeys(os.listdir(place))
        for key, at in self._places.items():
            if os.path.dirname(key) == path and key != path:
                names.pop(os.path.basename(key), None)
                if at is not None:
                    names[os.path.basename(key)] = None
        return list(names)

    @property
    def is_unchanged(self) -> bool:
        """Whether the script has written nothing yet."""
        return not self._places


def failure(number: int, path: str) -> OSError:
    """What the system would raise for a path.

    >>> type(failure(errno.ENOENT, "nowhere")).__name__
    'FileNotFoundError'
    """
    return OSError(number, os.strerror(number), path)


def _copy(source: str, target: str, empty: bool) -> None:
    size = 0 if empty else os.path.getsize(source)
    if 0 < size <= MAX_COPIED:
        shutil.copyfile(source, target)
        return
    with open(target, "wb") as file:
        file.truncate(size)
