"""Processes that end with their parent, and the working folders of those that were killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from foretrace import processes
from foretrace.processes import Claim, Owner, is_abandoned, is_alive, is_held, temporary_folder
from tests.processes import PATIENCE_S, started, wait_until

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""
CHILD = """
import os, time
from foretrace import processes
{prelude}
processes.exit_with_parent({parent})
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("prelude", "parent"),
    [
        ("", "os.getppid()"),
        ("processes._kernel_ends_this = lambda: False", "os.getppid()"),
        ("parent = os.getppid()\nif os.fork():\n    os.wait()\n    raise SystemExit", "parent"),
    ],
    ids=["by the kernel", "by looking", "a grandchild"],
)
def test_a_process_ends_when_its_parent_is_killed(prelude: str, parent: str) -> None:
    child = CHILD.format(prelude=prelude, parent=parent)
    with started([sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        try:
            time.sleep(0.5)
            assert is_alive(number)
            process.send_signal(signal.SIGKILL)
            process.wait()
            wait_until(lambda: not is_alive(number), "the child lives on")
        finally:
            if is_alive(number):
                os.kill(number, signal.SIGKILL)


def test_a_process_whose_parent_ended_before_it_looked_ends_at_once() -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    child = f"from foretrace.processes import exit_with_parent; exit_with_parent({int(gone.stdout)}); print('alive')"
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1 and done.stdout == ""


def test_a_process_lives_on_while_its_parent_does() -> None:
    child = "import os, time; from foretrace.processes import exit_with_parent\n"
    child += "exit_with_parent(os.getppid()); time.sleep(1.5)"
    assert subprocess.run([sys.executable, "-c", child], timeout=PATIENCE_S).returncode == 0


def test_a_zombie_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        wait_until(lambda: not is_alive(process.pid), "a process that ended counts as alive")


def dead(owner: Owner) -> Owner:
    """The same process with a start that none of that number has."""
    return replace(owner, started=-1)


def owned(folder: Path, owner: Owner) -> Path:
    folder.mkdir()
    (folder / processes.OWNER).write_text(json.dumps(owner.__dict__))
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a process started")
def test_a_folder_is_abandoned_once_its_process_is_gone(tmp_path: Path) -> None:
    gone, there = owned(tmp_path / "a.1", dead(Owner.here())), owned(tmp_path / "a.2", Owner.here())
    assert is_abandoned(gone) and not is_held(gone)
    assert is_held(there) and not is_abandoned(there)


def test_a_folder_of_another_machine_is_never_taken_for_abandoned(tmp_path: Path) -> None:
    other = owned(tmp_path / "a.1", replace(dead(Owner.here()), host="elsewhere"))
    assert not is_abandoned(other) and not is_held(other)


def test_a_locked_folder_is_held_though_its_number_is_of_no_process_here(tmp_path: Path) -> None:
    with Claim(tmp_path, dead(Owner.here())):
        assert is_held(tmp_path) and not is_abandoned(tmp_path)


def test_a_folder_that_names_no_owner_is_abandoned_after_a_day(tmp_path: Path) -> None:
    folder = tmp_path / f".r.{2**22 + 1}.partial"  # more than Linux gives
    folder.mkdir()
    assert not is_abandoned(folder)
    os.utime(folder, (0, 0))
    assert is_abandoned(folder)


def test_temporary_folders_of_killed_processes_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = "with temporary_folder() as folder: print(folder, flush=True); time.sleep(600)"
    hold = f"import time; from foretrace.processes import temporary_folder\n{hold}"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "foretrace-1-notes").mkdir()  # a user's own: it names no owner
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with started([sys.executable, "-c", hold], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with temporary_folder() as mine:
            assert left.is_dir() and mine.is_dir(), "both are at work"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert left.is_dir()
    with temporary_folder() as mine:
        assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "foretrace-1-notes", mine])
