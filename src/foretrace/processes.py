"""Child processes that end with their parent, and working folders that are owned by a process.

Standard library only: it is imported inside training images.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

Task = TypeVar("Task")
Result = TypeVar("Result")

OWNER = "owner.json"
"""The file in a working folder that names its process; locked as long as that process lives."""
PR_SET_PDEATHSIG = 1
"""Linux's prctl option that has the kernel send a signal when the parent ends."""
POLL_S = 1.0
"""How often to check for the parent where the kernel sends no signal."""
UNKNOWN_OWNER_S = 86_400.0
"""Age at which a working folder without an owner file counts as abandoned: it may be from another machine."""
LOCK_TIMEOUT_S = 2.0
"""How long to wait for a folder's lock, which is held for milliseconds; a calibration may hold it for hours."""
TEMPORARY = "foretrace-"
"""How the names of temporary folders begin."""


def exit_with_parent(parent: int) -> None:
    """End this process as soon as process ``parent`` has ended, even by SIGKILL.

    On Linux the kernel kills a child with its parent. Elsewhere, or if ``parent`` is not the direct parent, a thread
    checks for it once a second.
    """
    if os.getppid() == parent and _killed_by_kernel():
        if os.getppid() != parent:  # it ended before the request
            os._exit(1)
        return
    if not is_alive(parent):
        os._exit(1)
    threading.Thread(target=_exit_after, args=(parent, os.getppid()), daemon=True).start()


def _killed_by_kernel() -> bool:
    """Ask the kernel to kill this process with its parent; False if it can't."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        return ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0  # type: ignore[no-any-return]
    except (ImportError, OSError, AttributeError):
        return False


def _exit_after(parent: int, direct: int) -> None:
    """End this process once ``parent`` is gone, or the direct parent it had at first."""
    while is_alive(parent) and os.getppid() == direct:
        time.sleep(POLL_S)
    os._exit(1)


def is_alive(pid: int, started: int | None = None) -> bool:
    """Whether a process of this machine runs; with ``started``, only the one that started then.

    >>> is_alive(os.getpid()), is_alive(os.getpid(), started=-1), is_alive(0)
    (True, False, False)
    """
    if pid <= 0:
        return False
    if os.name == "posix":
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:  # another user's, and so alive
            pass
    state, ticks = _state(pid)
    return state not in ("Z", "X") and (started is None or ticks is None or ticks == started)


def _state(pid: int) -> tuple[str, int | None]:
    """The state of a process and when it started, in clock ticks; unknown without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", None


def _host() -> str:
    import socket  # as below: most commands start a process at most, and need no more of these modules

    return socket.gethostname()


@dataclass(frozen=True)
class Owner:
    """The process that a working folder belongs to."""

    host: str
    pid: int
    started: int | None = None
    job: str = ""
    """The job that the process is a part of; empty for none."""
    part: str = ""
    """Which part: its rank, or whatever distinguishes it from the others."""

    @classmethod
    def here(cls, job: str = "", part: str = "") -> Owner:
        """This process."""
        return cls(_host(), os.getpid(), _state(os.getpid())[1], job, part)

    def shares_with(self, other: Owner) -> bool:
        """Whether both are different parts of one job.

        >>> ranks = [Owner("node-1", pid, None, "job 7", rank) for pid, rank in ((10, "0"), (11, "1"), (12, "1"))]
        >>> ranks[0].shares_with(ranks[1]), ranks[1].shares_with(ranks[2])
        (True, False)
        """
        return bool(self.job) and self.job == other.job and self.part != other.part


class Claim:
    """Ownership of a working folder by this process until it is released, or the process ends.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Claim(folder):
    ...     owner_of(folder).pid == os.getpid(), is_held(folder)
    (True, True)
    >>> is_held(folder)
    False
    """

    def __init__(self, folder: Path, owner: Owner | None = None) -> None:
        self._file = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT, 0o644)
        os.write(self._file, json.dumps(asdict(owner or Owner.here())).encode())
        if fcntl is not None:
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._folder: Path | None = folder

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Release the folder; may be called several times."""
        folder, self._folder = self._folder, None
        if folder is not None:
            os.close(self._file)
            with suppress(OSError):
                (folder / OWNER).unlink()


def owner_of(folder: Path) -> Owner | None:
    """The owner that a working folder names; None if it names none."""
    try:
        return Owner(**json.loads((folder / OWNER).read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def is_held(folder: Path) -> bool:
    """Whether a live process owns a working folder. For processes on other machines only a lock shows it."""
    owner = owner_of(folder)
    if owner is None:
        return False
    if _is_locked(folder / OWNER):
        return True
    return owner.host == _host() and is_alive(owner.pid, owner.started)


def is_abandoned(folder: Path) -> bool:
    """Whether the owner of a working folder ended on this machine without removing it.

    Without an owner file the number in the name and the age decide: another machine's folder may look the same.
    """
    owner = owner_of(folder)
    if owner is not None:
        return owner.host == _host() and not is_held(folder)
    number = re.search(r"\d+", folder.name)
    try:
        age = time.time() - folder.stat().st_mtime
    except OSError:
        return False
    return age > UNKNOWN_OWNER_S and number is not None and not is_alive(int(number[0]))


def _is_locked(path: Path) -> bool:
    if fcntl is None:
        return False
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # some file systems have no locks
        return False
    finally:
        os.close(file)
    return False


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes out of the same section for this folder, if the file system has locks."""
    file = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if file is not None:
            _wait_for_lock(file)
        yield
    finally:
        if file is not None:
            os.close(file)


def _wait_for_lock(file: int) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        except OSError:  # some file systems have no locks
            return None


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A temporary folder; folders abandoned by killed processes of the same user are removed.

    >>> with temporary_folder() as folder:
    ...     folder.is_dir()
    True
    >>> folder.exists()
    False
    """
    remove_abandoned()
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{os.getpid()}-"))
    try:
        with Claim(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove temporary folders of killed processes: Foretrace's by name, by user and by the owner that they name."""
    import tempfile

    for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}[0-9]*-*"):
        with suppress(OSError):
            mine = not hasattr(os, "getuid") or folder.lstat().st_uid == os.getuid()
            if mine and folder.is_dir() and not folder.is_symlink() and owner_of(folder) and is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def map_in_processes(
    work: Callable[[Task], Result],
    todo: Sequence[Task],
    count: int,
    start: Callable[..., None] | None = None,
    arguments: tuple[Any, ...] = (),
) -> Iterator[Result]:
    """The results of tasks, as they become ready, by so many new processes, which end with this one.

    Parameters
    ----------
    work, todo, count
        A function of a module, what it is called with, and how many processes call it.
    start, arguments
        What each process calls first, and with what.

    Raises
    ------
    concurrent.futures.process.BrokenProcessPool
        If one of them was killed.
    """
    from concurrent.futures import as_completed

    with worker_pool(count, start, arguments) as submit:
        for task in as_completed(submit(work, todo)):
            yield task.result()


@contextmanager
def worker_pool(
    count: int, start: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()
) -> Iterator[Callable[[Callable[[Task], Result], Sequence[Task]], list[Future[Result]]]]:
    """So many new processes, which end with this one: what gives them a function of a module and what to call it with.

    As in `map_in_processes`, which gives them work once.
    """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context

    others = set(active_children())
    pool = ProcessPoolExecutor(count, get_context("spawn"), _start_worker, (os.getpid(), start, arguments))

    def submit(work: Callable[[Task], Result], todo: Sequence[Task]) -> list[Future[Result]]:
        with _uninterrupted(), _without_script():
            return [pool.submit(work, task) for task in todo]

    try:
        yield submit
    finally:
        # What is still to be done after an interrupt is not waited for. The pool is left to find its processes
        # ended: were its tasks cancelled as well, it would complain of them, or still be there when Python ends.
        for process in set(active_children()) - others:
            process.terminate()
        pool.shutdown()


def _start_worker(parent: int, start: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    exit_with_parent(parent)  # its queue stays open in the other workers: it would wait for ever
    if start is not None:
        start(*arguments)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes started meanwhile never hear of Ctrl-C, which a terminal sends to all of them; this one does later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_script() -> Iterator[None]:
    """Processes started meanwhile do not run the script that asks for them, which would ask for them again.

    Python runs it in each of them for what it may define; what they work with is Foretrace's own.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
