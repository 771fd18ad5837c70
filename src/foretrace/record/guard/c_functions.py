"""Stand-ins for functions of the C library that a script calls through `ctypes`: none of them is called."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

from foretrace.record.guard.files import WRITES
from foretrace.record.guard.guard import REFUSED, applies, note, stands_in_for, trusted

OPENS = ("open", "open64", "openat", "openat64")
RETURNS_NULL = ("fopen", "fopen64", "freopen", "popen", "fdopen")
REFUSED_FUNCTIONS = frozenset(
    (
        *OPENS, *RETURNS_NULL, "creat", "creat64",
        "unlink", "unlinkat", "remove", "rmdir", "mkdir", "mkdirat", "mkstemp", "mkdtemp", "rename", "renameat",
        "renameat2", "link", "linkat", "symlink", "symlinkat", "truncate", "truncate64", "mknod", "mkfifo",
        "chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "futimes", "lutimes",
        "utimensat", "futimens", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "shm_open", "shm_unlink",
        "system", "fork", "vfork", "clone", "forkpty", "daemon", "execv", "execve", "execvp", "execl", "execlp",
        "posix_spawn", "posix_spawnp", "kill", "killpg", "tgkill", "sigqueue", "ptrace", "process_vm_writev",
        "connect", "bind", "send", "sendto", "sendmsg", "mount", "umount", "umount2", "reboot", "sethostname",
        "setpriority", "prlimit", "prlimit64", "syscall", "dlsym", "dlvsym",
    )
)  # fmt: skip
"""By their names in every library: what else goes by such a name calls the C library's."""


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
    return _CFunction(function, name) if name in REFUSED_FUNCTIONS else function


def _check_symbol(args: tuple[Any, ...]) -> tuple[str, object]:
    """Functions are looked up by prototypes too, and by `_ctypes`: no stand-in sees their calls."""
    return ("find {} of the C library", args[1]) if args[1] in REFUSED_FUNCTIONS else ("", "")


REFUSED["ctypes.dlsym"] = REFUSED["ctypes.dlsym/handle"] = _check_symbol
