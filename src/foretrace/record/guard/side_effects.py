"""Side effects that a sketched script tried, with the line of the script, and the notes on them."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

MAX_NOTED = 12
"""Different side effects that a note lists; a script that has more does little else."""
MAX_TARGETS = 3
"""Files, addresses or commands of one line of a script that are named, before the rest are counted."""
MAX_TARGET = 80
"""Characters of a command or an address that a note shows."""
OURS = str(Path(__file__).resolve().parents[2]) + os.sep
PYTHONS = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
STARTED_AT: weakref.WeakKeyDictionary[threading.Thread, str] = weakref.WeakKeyDictionary()
"""The line of the script that started a thread."""


class SideEffects:
    """The side effects that a script tried, each with its line.

    >>> effects = SideEffects()
    >>> effects.add("open {} for writing", "log.txt", "train.py:8")
    >>> effects.add("open {} for writing", "log.txt", "train.py:8")
    >>> effects.add("torch.save to {}", "model.pt", "train.py:12")
    >>> effects.notes()
    ['not done while sketching: open log.txt for writing, 2 times (train.py:8); torch.save to model.pt (train.py:12)']
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], dict[str, int]] = {}
        self.skipped: list[str] = []
        """Statements of the script's top level that were left out, each with the reason."""
        self._below_folder = re.compile("(?!)")
        """Where a text names the working folder: paths in it are shown without it."""
        with suppress(OSError):  # it was deleted
            folder = str(Path.cwd()).rstrip(os.sep)
            self._below_folder = re.compile(rf"(?<![\w.-]){re.escape(folder + os.sep)}" if folder else "(?!)")
        self.asked: list[str] = []
        """Lines of the script that asked another machine for something, and got an empty answer."""
        self.failed: list[str] = []
        """Threads of the script that failed: where they were started, and why."""
        self.total = 0
        self.answered = 0
        """Those after which the script sees another result than in a real run."""

    def add(self, action: str, target: object, place: str) -> None:
        """Add one: the action, with ``{}`` where its target goes, and the line of the script."""
        text = self._below_folder.sub("", str(target))
        text = text if len(text) <= MAX_TARGET or " " not in text else f"{text[:MAX_TARGET]}…"
        targets = self._counts.setdefault((action, place), {})
        targets[text] = targets.get(text, 0) + 1
        self.total += 1

    def notes(self) -> list[str]:
        """Notes for the reader: none where nothing was tried."""
        found = [_sentence(action, place, targets) for (action, place), targets in list(self._counts.items())]
        if len(found) > MAX_NOTED:
            found = [*found[:MAX_NOTED], f"and {len(found) - MAX_NOTED} more"]
        notes = [f"not done while sketching: {'; '.join(found)}"] if found else []
        notes += [f"a thread of the script failed while sketching: {failure}" for failure in self.failed[:1]]
        return [*notes, f"skipped while sketching: {'; '.join(self.skipped)}"] if self.skipped else notes


def _sentence(action: str, place: str, targets: dict[str, int]) -> str:
    names, count = list(targets), sum(targets.values())
    if len(names) > MAX_TARGETS:
        listed = f"{', '.join(names[: MAX_TARGETS - 1])} and {len(names) - MAX_TARGETS + 1:,} others"
    else:
        listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    times = f", {count:,} times" if count > len(names) else ""
    return f"{action.format(listed)}{times}{f' ({place})' if place else ''}"


def script_line() -> str:
    """The innermost line of the user's code, as ``train.py:12``; that which started the thread where it runs none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return STARTED_AT.get(current_thread(), "")  # type: ignore[arg-type]


@cache
def is_users(file: str) -> bool:
    """Whether a file is the user's own code; asked for every call of a step."""
    return not file.startswith(("<", OURS, *PYTHONS)) and not any(part in file for part in INSTALLED)


def current_thread() -> threading.Thread | None:
    """This thread; None for one that `threading` did not start."""
    return threading._active.get(threading.get_ident())  # type: ignore[attr-defined, no-any-return]


def shown(value: Any) -> str:
    """A path, an address or a command, as a user would write it.

    >>> shown(["git", "log"]), shown(("localhost", 80)), shown(b"a b")
    ('git log', 'localhost:80', 'a b')
    """
    if isinstance(value, (bytes, os.PathLike)):
        return os.fsdecode(value)
    if isinstance(value, tuple) and len(value) in (2, 4) and isinstance(value[1], int):
        return f"{value[0] or '*'}:{value[1]}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(shown, value))
    return str(value)
