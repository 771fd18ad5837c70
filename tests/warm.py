"""Programs in processes of their own that have torch already: importing it takes longer than what most of them do."""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from tests.narrowing import present

PATIENCE_S = 240
_forks = get_context("forkserver")
# The second comes with the first optimizer, the third is what sketches scripts.
_forks.set_forkserver_preload(["torch", "torch._dynamo", "torch.utils.flop_counter", "foretrace.record.run_script"])


def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` runs a Python, a program and its options, and captures what it says as text."""
    words = list(command[1:])
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        out.touch()
        err.touch()
        process = _forks.Process(target=_become, args=(words, dict(os.environ), out, err))
        process.start()
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        return subprocess.CompletedProcess(command, present(process.exitcode), out.read_text(), err.read_text())


def _become(words: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
    """Be the program: its arguments, its folder first on the path, its output in files."""
    for number, path in enumerate((out, err), start=1):
        os.dup2(os.open(path, os.O_WRONLY), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


PIPE = subprocess.PIPE
_args_from_interpreter_flags = subprocess._args_from_interpreter_flags  # type: ignore[attr-defined]


class Popen:
    """As `subprocess.Popen` starts the process in which scripts are sketched (see `sketch_process`)."""

    def __init__(self, words: Sequence[str], stdin: int, stdout: int, stderr: int) -> None:
        given, asks = os.pipe()
        answers, told = os.pipe()
        says, printed = os.pipe() if stderr == PIPE else (-1, os.dup(stderr))
        handed = [Connection(given), Connection(told), Connection(printed)]
        *_, path, parent = words
        self._process = _forks.Process(target=_sketch, args=(path, parent, os.environ.copy(), str(Path.cwd()), *handed))
        self._process.start()
        for end in handed:
            end.close()
        self.stdin: IO[bytes] = os.fdopen(asks, "wb")
        self.stdout: IO[bytes] = os.fdopen(answers, "rb")
        self.stderr: IO[bytes] | None = os.fdopen(says, "rb") if says >= 0 else None
        self.pid = self._process.pid

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def wait(self) -> Any:
        """Its exit code."""
        self._process.join()
        return self._process.exitcode


def _sketch(path: str, parent: str, environment: dict[str, str], folder: str, *handed: Connection) -> None:
    """Be the process that sketches: its input, its answers, and where it prints."""
    from foretrace.record.sketch_process import main

    for number, end in enumerate(handed):
        os.dup2(end.fileno(), number)
    sys.stdin = os.fdopen(0, "r")
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = json.loads(path)[1:]
    sys.argv = ["-c", path, parent]
    gc.disable()
    main()
