"""Sketches of compiled scripts on disk: compiling takes most of their time, and the same script gives the same graph.

A stored sketch is used again where nothing that it depends on has changed: the script with its arguments, folder and
environment; every file that it read or imported, by content (by size and time in installed packages); Python, PyTorch
and Foretrace. Only the standard library is imported.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

VARIABLE = "FORETRACE_CACHE"
"""Environment variable that names the folder; ``off`` for none."""
NOTE = f"this sketch is from an earlier one of the same script: {VARIABLE}=off sketches it anew"
MAX_SKETCHES = 64
MAX_HASHED = 4 << 20
"""Bytes of the largest file that is compared by content."""
IRRELEVANT = frozenset({
    VARIABLE, "_", "SHLVL", "OLDPWD", "COLUMNS", "LINES", "TERM", "PS1", "LS_COLORS", "WINDOWID", "FORETRACE_DEBUG",
    "PYTEST_CURRENT_TEST", "PYTEST_VERSION", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "XDG_SESSION_ID",
})  # fmt: skip
"""Environment variables that change with each shell, and no step."""
ELSEWHERE = ("/proc/", "/sys/", "/dev/")
OWN = Path(__file__).parents[1]

Fingerprints = dict[str, Any]
"""By path of a file what it was: its hash, or its size and time; None where there was none."""


class SketchCache:
    """The place of one sketch: of a script, asked for in a certain way."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._path: Path | None = None
        named = os.environ.get(VARIABLE, "")
        if named == "off":
            return
        home = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foretrace"
        with suppress(OSError, RuntimeError):  # no home folder
            name = hashlib.sha256(json.dumps([asked, _surroundings()], default=str).encode()).hexdigest()[:32]
            self._path = home / "sketches" / f"{name}.jsonl.gz"

    def read(self) -> list[bytes]:
        """The lines of the stored answer; none where there is none, or something that it depends on has changed."""
        if self._path is None:
            return []
        with suppress(OSError, EOFError, ValueError, KeyError, TypeError):
            head, *lines = gzip.decompress(self._path.read_bytes()).splitlines(keepends=True)
            files = json.loads(head)["files"]
            if files and all(fingerprint(path) == was for path, was in files.items()):
                os.utime(self._path)
                return lines
        return []

    def write(self, files: Fingerprints, lines: Iterable[bytes]) -> None:
        """Store an answer; where that is not possible, nothing is stored."""
        if self._path is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            head = json.dumps({"files": files}).encode() + b"\n"
            partial.write_bytes(gzip.compress(b"".join([head, *lines]), 1))
            partial.replace(self._path)
            stored = sorted(self._path.parent.glob("*.jsonl.gz"), key=lambda path: path.stat().st_mtime)
            for old in stored[:-MAX_SKETCHES]:
                old.unlink()


def _surroundings() -> list[Any]:
    """What every sketch depends on besides its script."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    own = [(str(path), *_stat(path)) for path in sorted(OWN.rglob("*.py"))]
    variables = {name: value for name, value in os.environ.items() if name not in IRRELEVANT}
    return [sys.version, sys.path, torch, own, str(Path.cwd()), sorted(variables.items())]


def _stat(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def fingerprint(path: str) -> Any:
    """What a file is: the hash of its content, or size and time where it is large or installed; None for none.

    A folder is what can be imported from it; one that the script has listed, named with a slash at its end, all names.

    >>> fingerprint("/nowhere") is None
    True
    """
    try:
        file = Path(path)
        if file.is_dir():
            listed = path.endswith(os.sep)
            names = [each.name for each in file.iterdir() if listed or _is_module(each)]
            return hashlib.blake2b("\n".join(sorted(names)).encode(), digest_size=16).hexdigest()
        size, time = _stat(file)
        if not file.is_file() or size > MAX_HASHED or "-packages" in path:
            return [size, time]
        return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None


def _caller() -> str:
    """The file of the code that lists a folder, perhaps through a function of the guard."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(str(OWN)):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def _is_module(path: Path) -> bool:
    return path.suffix in (".py", ".so") or (not path.suffix and (path / "__init__.py").exists())


class FilesRead:
    """Files that this process opens or imports from now on."""

    def __init__(self, but: Iterable[Path]) -> None:
        """``but``: folders that do not count, such as scratch folders."""
        self._but = tuple(f"{folder}{os.sep}" for folder in but)
        self._paths: set[str] = set()
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and args and isinstance(args[0], (str, bytes)):
            with suppress(OSError, ValueError):
                path = str(Path(os.fsdecode(args[0])).absolute())
                if event != "open" and "importlib" not in _caller():
                    self._paths.add(path + os.sep)
                elif event != "open" or not isinstance(args[1], str) or "r" in args[1]:
                    self._paths.add(path)

    def fingerprints(self) -> Fingerprints:
        """All files that the process depends on, as they are."""
        modules = {str(file) for module in tuple(sys.modules.values()) if (file := getattr(module, "__file__", None))}
        torch = str(Path(getattr(sys.modules.get("torch"), "__file__", None) or "/torch/").parent) + os.sep
        library = str(Path(os.__file__).parent) + os.sep
        found = {}
        for path in sorted(self._paths | modules):
            known = path.startswith((torch, str(OWN))) or (path.startswith(library) and "-packages" not in path)
            if not known and not f"{path}{os.sep}".startswith((*ELSEWHERE, *self._but)) and not path.endswith(".pyc"):
                found[path] = fingerprint(path)
        return found
