"""Stand-ins for programs and processes: each has run, ended with code 0, and printed nothing."""

from __future__ import annotations

import errno
import io
import itertools
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from foretrace.record.guard.guard import (
    REFUSED,
    REPLACED,
    UNIMPORTABLE,
    Inert,
    RefusedError,
    does_nothing,
    guard,
    note,
    stands_in_for,
    trusted,
)
from foretrace.record.guard.side_effects import is_users, shown

WAIT_S = 2.0
"""How long a script waits for another process, before it gets an error."""
NO_PID = 1 << 22
"""Ids of processes that were never started: above all that Linux assigns."""
_pids = itertools.count(NO_PID)
_forked: list[int] = []
"""Processes that `os.fork` seemed to start, and that were not waited for."""
IGNORED = ("SIGCHLD", "SIGURG", "SIGWINCH", "SIGCONT")
"""Signals that do nothing to a process that does not handle them."""
ALARMS = ("SIGALRM", "SIGVTALRM", "SIGPROF")
"""The signals of timers: by real time, by the process's own, and that with the kernel's for it."""
EXECS = ("execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp", "execlpe")


@stands_in_for("subprocess:Popen.__init__")
def _run(
    original: Any, self: Any, args: Any, bufsize: int = -1, executable: Any = None, stdin: Any = None,
    stdout: Any = None, stderr: Any = None, *more: Any, **kwargs: Any,
) -> None:  # fmt: skip
    note("run {}", shown(args))
    text = any(kwargs.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
    empty: type[io.StringIO | io.BytesIO] = io.StringIO if text else io.BytesIO
    self.args, self.pid, self.returncode = args, next(_pids), 0
    self.stdin, self.stdout, self.stderr = (empty() if s == subprocess.PIPE else None for s in (stdin, stdout, stderr))
    self.text_mode, self.encoding, self.errors, self.pipesize = text, None, None, -1
    self.universal_newlines = text
    self._child_created, self._waitpid_lock, self._input = False, threading.Lock(), None
    self._communication_started = self._closed_child_pipe_fds = self._sketched = True
    self._sigint_wait_secs = 0


@stands_in_for("subprocess:Popen.communicate")
def _communicate(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if not getattr(self, "_sketched", False):
        return original(self, *args, **kwargs)
    return tuple(None if stream is None else stream.read() for stream in (self.stdout, self.stderr))


stands_in_for("os:system")(does_nothing("run {}", 0, 0))
stands_in_for("readline:write_history_file", "readline:append_history_file")(does_nothing("write a history"))
stands_in_for("syslog:syslog")(does_nothing("write to the system's log"))
stands_in_for("os:setpriority")(does_nothing("set the priority of process {}", 1))
stands_in_for("resource:prlimit")(does_nothing("set limits of process {}", 0, (-1, -1)))
stands_in_for(*(f"os:{name}" for name in EXECS))(does_nothing("become the program {}", 0))
stands_in_for("os:posix_spawn", "os:posix_spawnp")(does_nothing("run {}", 1, lambda: next(_pids)))
stands_in_for("_multiprocessing:sem_unlink")(does_nothing("delete the semaphore {}", 0))
stands_in_for("os:setpgid")(does_nothing("change the group of process {}", 0))
stands_in_for("os:chroot")(does_nothing("change the root folder to {}", 0))
stands_in_for("os:startfile", "webbrowser:open", "pty:spawn")(does_nothing("open {}", 0, False))
stands_in_for("subprocess:_fork_exec", "_posixsubprocess:fork_exec")(does_nothing("run {}", 0, lambda: next(_pids)))


@stands_in_for("os:fork")
def _fork(original: Any) -> int:
    note("fork")
    _forked.append(next(_pids))
    return _forked[-1]


@stands_in_for("os:forkpty", "pty:fork")
def _fork_terminal(original: Any) -> tuple[int, int]:
    note("fork")
    return next(_pids), os.open(os.devnull, os.O_RDWR)


@stands_in_for(*(f"os:spawn{way}" for way in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")))
def _spawn(original: Any, mode: int, file: Any, *args: Any) -> int:
    note("run {}", shown(file))
    return 0 if mode == os.P_WAIT else next(_pids)


@stands_in_for("os:wait", "os:wait3", "os:waitid")
def _wait_for_any(original: Any, *args: Any) -> Any:
    if not _forked:
        return original(*args)
    process = _forked.pop()
    return {"wait": (process, 0), "wait3": (process, 0, None)}.get(original.__name__)


@stands_in_for("os:waitpid", "os:wait4")
def _wait(original: Any, process: int, options: int) -> Any:
    if process < NO_PID:
        return original(process, options)
    return (process, 0) if original.__name__ == "waitpid" else (process, 0, None)


@stands_in_for("os:kill", "os:killpg", "signal:pidfd_send_signal")
def _signal(original: Any, process: int, number: int, *args: Any) -> Any:
    if not number:
        return original(process, number, *args)
    with suppress(ValueError):
        number = signal.Signals(number)
    name = getattr(number, "name", number)
    if original.__name__ == "pidfd_send_signal":
        note(f"send {name} to the process of descriptor {{}}", process)
    else:
        note(f"send {name} to process {{}}", "itself" if process == os.getpid() else process)
    return None


def _ends_process(name: str) -> bool:
    """Whether a signal would end or stop this process: no function of the script's handles it."""
    handler = signal.getsignal(signal.Signals[name])
    return not callable(handler) and not (handler == signal.SIG_IGN or name in IGNORED)


@stands_in_for("signal:raise_signal", "signal:pthread_kill")
def _signal_itself(original: Any, *args: Any) -> Any:
    name = signal.Signals(args[-1]).name if args[-1] else ""
    if not name or not _ends_process(name):
        return original(*args)
    return note("send {} to itself", name)


@stands_in_for("signal:alarm", "signal:setitimer")
def _set_alarm(original: Any, *args: Any) -> Any:
    is_alarm = original.__name__ == "alarm"
    if not _ends_process(ALARMS[0 if is_alarm else args[0]]):
        return original(*args)
    note("end by an alarm after {} s", args[0 if is_alarm else 1])
    return 0 if is_alarm else (0.0, 0.0)


@stands_in_for("faulthandler:dump_traceback_later")
def _end_later(original: Any, timeout: float, *args: Any, **kwargs: Any) -> None:
    note(f"print where it is after {timeout} s")


class _AsyncProcess(Inert):
    """A process that `asyncio` would have started: it has ended, and printed nothing."""

    async def wait(self) -> int:
        """The exit code."""
        return 0

    async def communicate(self, *_: Any) -> tuple[Any, Any]:
        """What it printed, where that was asked for."""
        return tuple(None if stream is None else b"" for stream in (self.stdout, self.stderr))  # type: ignore[return-value]


async def _run_later(original: Any, *words: Any, **kwargs: Any) -> _AsyncProcess:
    from asyncio import StreamReader

    note("run {}", shown(words))
    streams: dict[str, Any] = {}
    for name in ("stdout", "stderr"):
        streams[name] = StreamReader() if kwargs.get(name) == subprocess.PIPE else None
        if streams[name] is not None:
            streams[name].feed_eof()
    stdin = Inert(drain=_nothing_to_wait_for) if kwargs.get("stdin") == subprocess.PIPE else None
    return _AsyncProcess(pid=next(_pids), returncode=0, stdin=stdin, **streams)


async def _nothing_to_wait_for() -> None:
    pass


for _module in ("asyncio", "asyncio.subprocess"):
    stands_in_for(f"{_module}:create_subprocess_exec", f"{_module}:create_subprocess_shell")(_run_later)


@stands_in_for("psutil:Process.nice", "psutil:Process.ionice", "psutil:Process.cpu_affinity", "psutil:Process.rlimit")
def _priority(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    is_limit = original.__name__ == "rlimit"  # its first argument says which one
    if len(args) + len(kwargs) <= is_limit:
        return original(self, *args, **kwargs)
    return note(f"set {original.__name__} of process {{}}", self.pid)


@stands_in_for("os:sched_setaffinity", "os:sched_setscheduler", "os:sched_setparam")
def _schedule(original: Any, process: int, *args: Any) -> Any:
    if process in (0, os.getpid()):
        return original(process, *args)
    return note(f"{original.__name__} of process {{}}", process)


# Neither stand-ins nor audit hooks are there in another interpreter.
for _interpreters in ("_xxsubinterpreters", "_interpreters"):
    stands_in_for(f"{_interpreters}:create")(does_nothing("make another interpreter", gives=lambda: next(_pids)))
    stands_in_for(*(f"{_interpreters}:{name}" for name in ("run_string", "run_func", "exec", "call", "destroy")))(
        does_nothing("run code in another interpreter")
    )
stands_in_for("_testcapi:run_in_subinterp")(does_nothing("run code in another interpreter", gives=0))
stands_in_for("os:closerange")(lambda original, *_: None)  # the sketch needs its own files


@stands_in_for("atexit:register")
def _at_exit(original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    if is_users(sys._getframe(2).f_code.co_filename):
        note("call {} at exit", getattr(function, "__name__", type(function).__name__), seen=True)
    return original(function, *args, **kwargs)


ABORTED = 128 + signal.SIGABRT
"""The code that a shell gives for a process that aborted."""


@stands_in_for("os:_exit", "os:abort")
def _exit(original: Any, code: int = ABORTED) -> Any:
    note("end the process with code {}", code)
    raise SystemExit(code)


@stands_in_for("multiprocessing.process:BaseProcess.start")
def _start_process(original: Any, self: Any) -> None:
    target = getattr(self, "_target", None)
    note("start a process for {}", getattr(target, "__name__", type(self).__name__))
    self._popen = Inert(0, pid=next(_pids), returncode=0, sentinel=-1)


@stands_in_for("torch.multiprocessing.spawn:start_processes", "torch.multiprocessing:start_processes")
def _start_processes(
    original: Any, function: Any, args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any
) -> Any:
    import torch.distributed as dist

    note("start a process for {}", getattr(function, "__name__", str(function)))
    if dist.is_available() and dist.is_initialized():  # the pretended group: this process is its first rank
        function(0, *args)
    return None if join else Inert(True, processes=(), pids=list)


@stands_in_for("multiprocessing.pool:Pool.__init__")
def _pool(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    from multiprocessing.pool import ThreadPool

    if isinstance(self, ThreadPool):
        return original(self, *args, **kwargs)  # type: ignore[no-any-return]
    note("start processes of a pool (a thread does their work)")
    self.__class__ = ThreadPool
    given = dict(zip(("processes", "initializer", "initargs"), args)) | kwargs
    return ThreadPool.__init__(self, 1, given.get("initializer"), given.get("initargs", ()))


@stands_in_for("concurrent.futures.process:ProcessPoolExecutor.__init__")
def _executor(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    note("start processes of a pool (a thread does their work)")
    self.__class__ = ThreadPoolExecutor
    given = dict(zip(("max_workers", "mp_context", "initializer", "initargs"), args)) | kwargs
    ThreadPoolExecutor.__init__(self, 1, "", given.get("initializer"), given.get("initargs", ()))


@stands_in_for("joblib.parallel:Parallel.__init__")
def _parallel(original: Any, self: Any, n_jobs: Any = None, *args: Any, **kwargs: Any) -> None:
    if n_jobs not in (None, 1):
        note("start processes of a pool (the script does their work itself)")
    original(self, 1, *args, **kwargs)


@stands_in_for("multiprocessing.managers:BaseManager.start")
def _manager(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    note("start the process of a manager")
    self.__class__ = _Manager


class _Manager(Inert):
    """A multiprocessing manager whose objects are those of one process."""

    def __getattr__(self, name: str) -> Any:
        from multiprocessing import dummy

        return getattr(dummy, name, None) or super().__getattr__(name)


class _Semaphore:
    """A lock of multiprocessing by one of threading: the system's own is a file."""

    def __init__(self, recursive: bool, value: int) -> None:
        self._lock: Any = threading.RLock() if recursive else threading.Semaphore(value)
        self._value, self._owner, self.name, self.handle = value, 0, None, 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """As threading's; a lock that only another process would release is refused after a while."""
        wait = WAIT_S if timeout is None else max(0.0, timeout)
        got = bool(self._lock.acquire(True, wait) if block else self._lock.acquire(False))
        if block and timeout is None and not got:
            raise RefusedError(errno.EPERM, "no other process is there to wait for while sketching")
        if got:
            self._value, self._owner = self._value - 1, threading.get_ident()
        return got

    def release(self) -> None:
        """As threading's."""
        self._value += 1
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *failure: object) -> None:
        self.release()

    def _count(self) -> int:
        return 1 - self._value if self._is_mine() else 0

    def _is_mine(self) -> bool:
        return self._value <= 0 and self._owner == threading.get_ident()

    def _get_value(self) -> int:
        return max(0, self._value)

    def _is_zero(self) -> bool:
        return self._value <= 0


@stands_in_for("_multiprocessing:SemLock")
def _semaphore(original: Any, kind: int, value: int, *_: Any, **__: Any) -> _Semaphore:
    return _Semaphore(kind == 0, value)


@stands_in_for("multiprocessing.queues:Queue.get")
def _get(original: Any, self: Any, block: bool = True, timeout: float | None = None) -> Any:
    if not block or timeout is not None:
        return original(self, block, timeout)
    try:
        return original(self, True, WAIT_S)
    except Exception as error:
        raise RefusedError(errno.EPERM, "no other process sends anything while sketching") from error


@stands_in_for(
    "multiprocessing.connection:_ConnectionBase.recv", "multiprocessing.connection:_ConnectionBase.recv_bytes"
)
def _receive_from_process(original: Any, self: Any, *args: Any) -> Any:
    if not self.poll(WAIT_S):
        raise EOFError("no other process sends anything while sketching")
    return original(self, *args)


stands_in_for("multiprocessing.resource_tracker:ResourceTracker.ensure_running")(lambda original, self: None)
stands_in_for("multiprocessing.resource_tracker:ResourceTracker._send")(lambda original, self, *_: None)


@stands_in_for("multiprocessing.util:get_temp_dir")
def _temporary(original: Any) -> str:
    folder = Path(guard().files.scratch) / "multiprocessing"
    with trusted():
        folder.mkdir(exist_ok=True)
    return str(folder)


UNIMPORTABLE["mpi4py.MPI"] = "MPI starts a daemon, and ends the process where it can't"
REPLACED["multiprocessing.heap"] = [("Arena._dir_candidates", [])]


def _shared(name: str) -> Path:
    """The file that stands for a piece of shared memory."""
    return Path(guard().files.scratch) / f"shared-{name.strip('/')}"


@stands_in_for("_posixshmem:shm_open")
def _open_shared(original: Any, path: str, flags: int, mode: int = 0o777) -> int:
    with trusted():
        return os.open(_shared(path), flags, mode)


@stands_in_for("_posixshmem:shm_unlink")
def _unlink_shared(original: Any, path: str) -> None:
    with trusted():
        _shared(path).unlink()


@stands_in_for("ctypes.util:find_library", "platform:_Processor.from_subprocess", "platform:_syscmd_file")
def _ask_the_system(original: Any, *args: Any) -> Any:
    """Python finds a library or the name of a processor by programs that only read."""
    with trusted():
        return original(*args)


def _event(action: str, at: int = 0) -> Any:
    return lambda args: (action, shown(args[at]) if len(args) > at else "")


def _check_signal(args: tuple[Any, ...]) -> tuple[str, object]:
    return ("send a signal to process {}", args[0]) if args[1] else ("", "")


REFUSED.update(
    {
        "subprocess.Popen": _event("run {}", 1),
        "os.system": _event("run {}"),
        "os.exec": _event("become the program {}"),
        "os.spawn": _event("run {}", 1),
        "os.posix_spawn": _event("run {}"),
        "os.startfile": _event("open {}"),
        "os.fork": _event("fork"),
        "os.forkpty": _event("fork"),
        "os.kill": _check_signal,
        "os.killpg": _check_signal,
        "pty.spawn": _event("run {}"),
        "syslog.syslog": _event("write to the system's log"),
        "webbrowser.open": _event("open {}"),
    }
)
