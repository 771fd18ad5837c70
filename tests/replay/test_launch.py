"""Replays end with the process that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace.api import benchmark
from foretrace.processes import is_alive
from foretrace.replay.harness import PARENT_VARIABLE
from tests.processes import PATIENCE_S, assert_killed_with, descendants, started, wait_until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@LINUX
def test_all_ranks_end_with_a_replay_that_is_killed(on_two_ranks: Callable[[str], Path], tmp_path: Path) -> None:
    folders = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "foretrace", "replay", str(on_two_ranks("ddp")), "--iterations", "1000000"]
    with started(command, stdout=subprocess.DEVNULL, env=folders) as process:
        wait_until(lambda: len(descendants(process.pid)) == 3, "one that starts the ranks, and two of them")
        assert_killed_with(process, descendants(process.pid))
    (left,) = tmp_path.glob("foretrace-*")
    hold = "from foretrace.processes import temporary_folder\nwith temporary_folder(): pass"
    subprocess.run([sys.executable, "-c", hold], env=folders, check=True)
    assert not left.exists(), "the next one removes what the killed one left"


@LINUX
def test_a_benchmark_run_by_hand_outlives_the_shell(on_two_ranks: Callable[[str], Path], tmp_path: Path) -> None:
    folder = benchmark(on_two_ranks("ddp"), tmp_path / "bench")
    shell = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True); input()"
    run = [sys.executable, str(folder / "run.py"), "--alone", "0", "--device", "meta", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
    with (tmp_path / "said").open("w") as said:
        with started(
            [sys.executable, "-c", shell, *run], stdin=subprocess.PIPE, stdout=said, env=environment
        ) as process:
            wait_until(lambda: descendants(process.pid), "it was never started")
            (benchmarking,) = descendants(process.pid)
            process.kill()
        wait_until(lambda: not is_alive(benchmarking), "it never ends")
    assert '"iterations"' in (tmp_path / "said").read_text()


@LINUX
def test_a_benchmark_behind_a_wrapper_ends_with_the_process_that_the_environment_names(
    on_two_ranks: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = benchmark(on_two_ranks("ddp"), tmp_path / "bench")
    run = [sys.executable, str(folder / "run.py"), "--iterations", "1000000"]
    wrapper = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    with (
        started([sys.executable, "-c", "import time; time.sleep(600)"]) as parent,
        started([sys.executable, "-c", wrapper, *run], env={**os.environ, PARENT_VARIABLE: str(parent.pid)}) as process,
    ):
        wait_until(lambda: len(descendants(process.pid)) == 3, "one that starts the ranks, and two of them")
        parent.kill()
        parent.wait()
        assert process.wait(PATIENCE_S) == 0, "the wrapper ends once what it wraps has"
