"""Programs in processes of their own that have torch already: importing it takes longer than what most of them do."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

PATIENCE_S = 240
_forks = get_context("forkserver")
_forks.set_forkserver_preload(["torch", "torch._dynamo"])  # the second comes with the first optimizer


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
        return subprocess.CompletedProcess(command, process.exitcode, out.read_text(), err.read_text())


def _become(words: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
    """Be the program: its arguments, its folder first on the path, its output in files."""
    for number, path in enumerate((out, err), start=1):
        os.dup2(os.open(path, os.O_WRONLY), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")
