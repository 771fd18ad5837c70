from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foretrace.formats import workers as hands
from foretrace.formats.workers import Hand, shared_out
from foretrace.graph import ForetraceError
from tests.processes import assert_killed_with, descendants, started, wait_until


def squared(number: int) -> int:
    return number * number


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_work_that_is_shared_out_comes_back_in_order(monkeypatch: pytest.MonkeyPatch, cores: int, count: int) -> None:
    monkeypatch.setattr(hands, "usable_cores", lambda: cores)
    assert shared_out(squared, range(count)) == [i * i for i in range(count)]


def test_several_processes_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "usable_cores", lambda: 3)
    assert len(set(shared_out(lambda _: os.getpid(), range(6)))) == 3


def test_an_error_in_another_process_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> int:
        if number == 1:
            raise ForetraceError("rank 1 is broken", "Leave it out.")
        return number

    monkeypatch.setattr(hands, "usable_cores", lambda: 2)
    with pytest.raises(ForetraceError, match="rank 1 is broken"):
        shared_out(refuse, [0, 1, 2])


def test_what_cannot_be_sent_back_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "usable_cores", lambda: 2)
    made = shared_out(lambda number: lambda: number, [1, 2])
    assert [give() for give in made] == [1, 2]


def test_a_late_answer_is_never_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()

    def slow_elsewhere(number: int) -> int:
        if os.getpid() != here:
            time.sleep(0.2)
        return number

    monkeypatch.setattr(hands, "PATIENCE_S", 0.01)
    hand: Hand[int, int] = Hand(slow_elsewhere)
    hand.give(1)
    assert hand.result() == 1
    time.sleep(0.3)
    hand.give(2)
    assert hand.result() == 2
    hand.dismiss()


def test_no_process_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "usable_cores", lambda: 4)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if not children.exists():
        pytest.skip("this system does not list a process's children")
    before = children.read_text()
    shared_out(squared, range(8))
    assert children.read_text() == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_hand_ends_with_the_process_it_works_for() -> None:
    busy = "import time; from foretrace.formats.workers import Hand; hands = [Hand(time.sleep) for _ in range(2)]"
    busy += "; [hand.give(600) for hand in hands]; print('given', flush=True); time.sleep(600)"
    with started([sys.executable, "-c", busy], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == "given\n"
        wait_until(lambda: len(descendants(process.pid)) == 2, "no hands")
        assert_killed_with(process, descendants(process.pid))
