"""Stand-ins for functions of the C library that a script calls through `ctypes` or `cffi`: none of them is called."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from typing import Any

from foretrace.record.guard.files import WRITES
from foretrace.record.guard.guard import REFUSED, applies, note, stands_in_for, trusted

OPENS = ("open", "open64", "openat", "openat64")
RETURNS_NULL = ("fopen", "fopen64", "freopen", "popen", "fdopen")
REFUSED_FUNCTIONS = re.compile(
    r"(?:_*|__libc_|_Py_)(?:"
    r"open(?:at)?2?|creat|f(?:d|re)?open|w?fopen(?:_obj)?|popen|mk(?:d|s|os)temps?|(?:shm|sem|mq)_(?:open|unlink)"
    r"|unlink(?:at)?|remove|rmdir|rename(?:at2?)?|(?:sym)?link(?:at)?|mk(?:dir|fifo)(?:at)?|x?mknod(?:at)?"
    r"|f?truncate|(?:posix_)?fallocate|[fl]?ch(?:mod|own|flags)(?:at2?)?|[fl]?utimes?|futimesat|utimensat|futimens"
    r"|[fl]?(?:set|remove)xattr|ioctl|mount|umount2?|pivot_root|chroot|swapo(?:n|ff)|acct|quotactl"
    r"|system|v?fork|clone[23]?|forkpty|daemon|f?exec[lv]p?e?|execvpe|execveat|posix_spawnp?|wordexp|unshare|setns"
    r"|t?g?kill|killpg|raise|abort|alarm|(?:rt_)?sigqueue|pthread_(?:kill|sigqueue)|pidfd_(?:send_signal|getfd)|ptrace"
    r"|process_(?:vm_writev|madvise)|setpriority|prlimit|sched_set\w+|setpgid|ioprio_set|(?:shm|sem|msg)ctl|semop|msgsnd"
    r"|connect|bind|send(?:to|m?msg)?|sethostname|setdomainname|reboot|klogctl|v?syslog|settimeofday|clock_settime"
    r"|adjtimex?|(?:init|finit|delete)_module|kexec_load|bpf|io_uring_\w+|syscall|dlv?sym"
    r")(?:64)?"
)
"""Those that change something outside of the process, or end it; by their names in every library: what else goes by
such a name calls the C library's."""


class _CFunction:
    """A function of C that fails as one that is not permitted, while the guard is active."""

    def __init__(self, function: Any, name: str) -> None:
        self.__dict__.update(_function=function, _name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._function, name, value)

    def __call__(self, *args: Any) -> Any:
        if not applies() or self._only_reads(args):
            return self._function(*args)
        path = next((os.fsdecode(arg) for arg in args if isinstance(arg, (bytes, str))), "")
        note(f"call {self._name} of the C library{' on {}' if path else ''}", path)
        ctypes.set_errno(errno.EPERM)
        return None if self._name in RETURNS_NULL else -1

    def _only_reads(self, args: tuple[Any, ...]) -> bool:
        flags = args[1 + self._name.startswith("openat") :][:1] if self._name in OPENS else ()
        return bool(flags) and isinstance(flags[0], int) and not flags[0] & WRITES


@stands_in_for("ctypes:CDLL.__getitem__")
def _c_function(original: Any, self: Any, name: Any) -> Any:
    with trusted():
        function = original(self, name)
    return _CFunction(function, name) if REFUSED_FUNCTIONS.fullmatch(str(name)) else function


class _CLibrary:
    """A library of C that cffi has opened."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        return _CFunction(found, name) if REFUSED_FUNCTIONS.fullmatch(name) else found


@stands_in_for("cffi:FFI.dlopen", "cffi.api:FFI.dlopen")
def _open_library(original: Any, self: Any, name: Any, flags: int = 0) -> Any:
    return _CLibrary(original(self, name, flags))


def _check_symbol(args: tuple[Any, ...]) -> tuple[str, object]:
    """Functions are looked up by prototypes too, and by `_ctypes`: no stand-in sees their calls."""
    return ("find {} of the C library", args[1]) if REFUSED_FUNCTIONS.fullmatch(str(args[1])) else ("", "")


REFUSED["ctypes.dlsym"] = REFUSED["ctypes.dlsym/handle"] = _check_symbol
