"""What all tests share."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import warm

# Tests run side by side, and so do the ranks of a job: with threads for all cores each would wait for the others.
os.environ["OMP_NUM_THREADS"] = "1"
# A test sketches what it says, whatever was sketched before.
os.environ["FORETRACE_CACHE"] = "off"

# On a busy machine everything is slow: that says nothing about a strategy. A folder may serve for all examples.
harmless = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("unhurried", deadline=None, suppress_health_check=harmless)
settings.load_profile("unhurried")

# A shell that starts something in the background has it ignore Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published measurements beside the repository."""
    folder = Path(__file__).resolve().parents[1].parent / "shared"
    if not (folder / "public").is_dir():
        pytest.skip(f"no measurements at {folder}: this test reads published traces that are not part of the project")
    return folder


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks run in processes that have torch already."""
    monkeypatch.setattr("foretrace.replay.running.subprocess", warm)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cold: sketches scripts in processes that are started as for a user")


@pytest.fixture(autouse=True)
def warm_sketches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts are sketched in processes that have torch already, but where a test looks at how they are started."""
    if "cold" not in request.keywords:
        monkeypatch.setattr("foretrace.record.sketch_process.subprocess", warm)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Gives what is to be at a place of that name, made by whoever asks first of all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def once(name: str, make: Callable[[Path], object]) -> Path:
        out = common / name
        with (common / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not out.exists():
                make(out)
        return out

    return once


EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
JOBS = {"ddp": ("gpt.py", "--ddp"), "fsdp": ("gpt.py", "--fsdp"), "hybrid": ("dlrm_distributed.py",)}
"""Examples on two ranks: data parallel, sharded weights, sharded tables with data-parallel layers."""


@pytest.fixture(scope="session")
def on_two_ranks(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Callable[[str], Path]:
    """Gives the recording of a job of that name under torchrun and gloo; beside it lies what the job said."""
    from tests.record.jobs import SHORT_STEPS, run_recorded

    def recording(name: str) -> Path:
        def make(out: Path) -> None:
            example, *options = JOBS[name]
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
            done = run_recorded(out, *command, EXAMPLES / example, *options, "--steps", SHORT_STEPS)
            assert done.returncode == 0, done.stderr
            out.with_suffix(".txt").write_text(done.stdout)

        return made_once(f"on-two-ranks-{name}", make)

    return recording
