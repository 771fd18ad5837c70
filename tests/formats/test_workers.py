"""Worker processes that read files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foretrace.formats import workers
from foretrace.formats.workers import Worker, parallel_map
from foretrace.graph import ForetraceError
from tests.processes import assert_killed_with, descendants, started, wait_until


def squared(number: int) -> int:
    return number * number


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_results_come_back_in_order(monkeypatch: pytest.MonkeyPatch, cores: int, count: int) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: cores)
    assert parallel_map(squared, range(count)) == [i * i for i in range(count)]


def test_several_processes_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 3)
    assert len(set(parallel_map(lambda _: os.getpid(), range(6)))) == 3


def test_an_error_in_another_process_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> int:
        if number == 1:
            raise ForetraceError("rank 1 is broken", "Leave it out.")
        return number

    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    with pytest.raises(ForetraceError, match="rank 1 is broken"):
        parallel_map(refuse, [0, 1, 2])


def test_what_cannot_be_sent_back_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    made = parallel_map(lambda number: lambda: number, [1, 2])
    assert [give() for give in made] == [1, 2]


def test_a_late_answer_is_never_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()

    def slow_elsewhere(number: int) -> int:
        if os.getpid() != here:
            time.sleep(0.2)
        return number

    monkeypatch.setattr(workers, "RESULT_TIMEOUT_S", 0.01)
    worker: Worker[int, int] = Worker(slow_elsewhere)
    worker.submit(1)
    assert worker.result() == 1
    time.sleep(0.3)
    worker.submit(2)
    assert worker.result() == 2
    worker.stop()


def test_no_process_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 4)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if not children.exists():
        pytest.skip("this system does not list a process's children")
    before = children.read_text()
    parallel_map(squared, range(8))
    assert children.read_text() == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_worker_ends_with_the_process_it_works_for() -> None:
    busy = "import time; from foretrace.formats.workers import Worker; workers = [Worker(time.sleep) for _ in range(2)]"
    busy += "; [worker.submit(600) for worker in workers]; print('submitted', flush=True); time.sleep(600)"
    with started([sys.executable, "-c", busy], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == "submitted\n"
        wait_until(lambda: len(descendants(process.pid)) == 2, "no workers")
        assert_killed_with(process, descendants(process.pid))
