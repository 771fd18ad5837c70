"""Examples import each other by file name, as they do when they are run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run_example() -> Callable[..., str]:
    """Run an example as a user would and return what it prints; ``ranks`` puts it under torchrun."""

    def run(script: str, *options: str, ranks: int = 0) -> str:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
        command = [sys.executable, *launcher, str(FOLDER / script), *options]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
