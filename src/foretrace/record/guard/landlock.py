"""A sandbox for a process by the kernel: Linux's Landlock, which needs no privileges and can't be lifted again.

It stops what no Python function sees: libraries in C that write files, connect by TCP, or signal other processes. What
it does not cover (UDP, permissions and times of files) is left to the stand-ins and the audit hook.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from glob import glob

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""The numbers of its system calls, alike on all architectures."""
PR_SET_NO_NEW_PRIVS = 38
RULE_PATH_BENEATH = 1
WRITE_FILE, TRUNCATE, IOCTL_DEV = 1 << 1, 1 << 14, 1 << 15
MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 13))
"""Removing folders and files; making devices, folders, files, sockets, pipes, block devices and links."""
REFER = 1 << 13
BIND_AND_CONNECT_TCP = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
NODES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts")
"""Devices that keep nothing of what is written to them."""
ACCELERATORS = ("/dev/nvidia*", "/dev/dri", "/dev/kfd", "/dev/dxg")
"""Devices that a driver must open for writing to say whether there is a GPU."""

OWN = "/proc/self"
"""The kernel's files of this process: CUDA names its threads there, and does not start where it can't."""


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """The version of Landlock that this kernel has; 0 for none.

    >>> version() >= 0
    True
    """
    if sys.platform != "linux":
        return 0
    try:
        return max(0, _syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))
    except (OSError, AttributeError):
        return 0


def restrict(writable: Iterable[str]) -> bool:
    """Let this thread, and all that it starts, write only below these folders and not connect; False if unsupported."""
    abi = version()
    if not abi:
        return False
    files = WRITE_FILE | MAKE_AND_REMOVE
    files |= (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0) | (IOCTL_DEV if abi >= 5 else 0)
    rules = _Ruleset(files, BIND_AND_CONNECT_TCP if abi >= 4 else 0, ABSTRACT_SOCKETS_AND_SIGNALS if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _syscall(CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    try:
        for path in (*writable, OWN):
            _allow(ruleset, path, files)
        nodes = [*NODES, *(path for pattern in ACCELERATORS for path in glob(pattern))]
        for path in nodes:
            _allow(ruleset, path, files & (WRITE_FILE | TRUNCATE | IOCTL_DEV))
        libc = ctypes.CDLL(None)
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            return False
        return _syscall(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, what: int) -> None:
    """Allow some kinds of access below a path, if it exists."""
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = _PathRule(what, parent)
        _syscall(ADD_RULE, ctypes.c_int(ruleset), RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(parent)


def _syscall(number: int, *args: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *args))
