"""Examples import each other by file name, as they do when they are run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm

FOLDER = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run_example() -> Callable[..., str]:
    """Run an example as a user would and return what it prints."""

    def run(script: str, *options: str) -> str:
        done = warm.run([sys.executable, str(FOLDER / script), *options])
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
