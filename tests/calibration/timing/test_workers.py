"""Two processes measure tiny calls on the CPU, for real."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
import torch

from foretrace.calibration.timing import kernels as measuring
from foretrace.calibration.timing.device import device_name, machine_facts
from foretrace.calibration.timing.kernels import CaseRange, measure_families, next_case_in
from foretrace.calibration.timing.workers import Pace, Workers, workers_for
from foretrace.cost_models.kernels.families import DRAWN, case_number
from foretrace.platform.measurements.cases import case_key
from foretrace.platform.measurements.kernels import Batch, open_batch, read_batches
from tests.processes import assert_killed_with, descendants
from tests.processes import started as process_started

CPU = torch.device("cpu")


def started(crew: Workers) -> Workers:
    end = time.monotonic() + 120
    while not crew.ready and time.monotonic() < end:
        time.sleep(0.05)
    assert crew.ready
    return crew


@pytest.fixture(scope="module")
def crew():
    with Workers(CPU, 2) as crew:
        yield started(crew)


def measured(crew, path, first=0, seconds=1.0):
    drawn = CaseRange("fills", first, first + 3, 4096, "cpu")
    return list(crew.measure(path, drawn, machine_facts(CPU), until=time.monotonic() + seconds))


def test_each_measures_cases_of_its_own(crew, tmp_path):
    batches = measured(crew, tmp_path / "fills.jsonl.gz")
    assert [(batch.first, batch.last) for batch in batches] == [(0, 3), (3, 6)]
    written = [found for batch in read_batches(tmp_path / "fills.jsonl.gz") for found in batch.measurements]
    assert [case_key(found.case) for found in written] == [
        case_key(case_number("fills", number, 4096, "cpu")) for number in range(6)
    ]
    assert all(found.us("cold") > 0 and found.us("warm") > 0 for found in written)


def test_a_family_that_is_planned_is_theirs_and_others_are_not(crew, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "BATCH", 2)
    monkeypatch.setattr(measuring, "MAX_ELEMENTS", {"cpu": 2**12})
    monkeypatch.setattr(type(DRAWN["fills"]), "slow_to_plan", True)
    asked, measure = [], crew.measure
    monkeypatch.setattr(
        crew, "measure", lambda path, *rest, **more: asked.append(path.name) or measure(path, *rest, **more)
    )
    seen = []
    done = measure_families(tmp_path, CPU, 0.05, ["fills", "dropout"], lambda p: seen.append(p.text), workers=crew)
    assert set(asked) == {"fills.jsonl.gz"}
    assert [progress.cases > 0 for progress in done] == [True, True]
    assert {"fills", "dropout"} == {text.partition(":")[0] for text in seen}, "all progress is reported"
    batches = read_batches(tmp_path / "fills.jsonl.gz")
    assert sorted(batch.first for batch in batches) == [2 * n for n in range(len(batches))], "no case is measured twice"


def test_planning_takes_its_part_of_the_time_by_what_was_measured(crew, tmp_path):
    measured(crew, tmp_path / "fills.jsonl.gz")
    pace = crew._pace["fills"]
    assert 0 < pace.plan < 1 and 0 < pace.measure < 1
    slow, fast = Pace(plan=0.1, measure=0.01), Pace(plan=0.01, measure=0.01)
    assert slow.planning(20, 4) > fast.planning(20, 4) > fast.planning(20, 8)


def test_a_process_that_dies_leaves_the_rest_to_the_others(tmp_path):
    path = tmp_path / "fills.jsonl.gz"
    with Workers(CPU, 2) as crew:
        first, second = started(crew).workers
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        batches = measured(crew, path)
        assert [len(batch.measurements) for batch in batches] == [0, 3]
        assert crew.workers == [second] and crew.ready
        assert [batch.first for batch in measured(crew, path, first=6)] == [6]
    assert second.process.returncode is not None
    assert [batch.first for batch in read_batches(path)] == [0, 3, 6], "what took a process down is not tried again"
    assert not crew.ready


def test_an_interruption_keeps_what_was_written_and_ends_them(tmp_path):
    path = tmp_path / "fills.jsonl.gz"
    with pytest.raises(KeyboardInterrupt), Workers(CPU, 2) as crew:
        workers = started(crew).workers[:]
        for _ in crew.measure(
            path, CaseRange("fills", 0, 3, 4096, "cpu"), machine_facts(CPU), until=time.monotonic() + 1
        ):
            raise KeyboardInterrupt
    assert [len(batch.measurements) for batch in read_batches(path)] == [3]
    assert all(worker.process.poll() is not None for worker in workers)


def test_one_goes_on_after_the_highest_number_whatever_their_order(tmp_path):
    path = tmp_path / "fills.jsonl.gz"
    for first in (0, 512, 256):
        open_batch(path, Batch(first, first + 256, machine_facts(CPU)))
    assert next_case_in(path, device_name(CPU)) == 768


def test_none_are_started_where_they_do_not_pay(monkeypatch):
    gpu = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 24 * 2**30))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(16)))
    assert workers_for(gpu, seconds=60.0) == 3, "as many as its memory holds"
    assert workers_for(gpu, seconds=5.0) == 0, "they would be needed no more when they had started"
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2})
    assert workers_for(gpu, seconds=60.0) == 0, "one alone gains nothing"


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_crew_ends_with_the_process_that_measures():
    lead = "import time, torch; from foretrace.calibration.timing.workers import Workers\n"
    lead += "crew = Workers(torch.device('cpu'), 2)"
    lead += "\nwhile not crew.ready: time.sleep(0.1)\nprint('ready', flush=True); time.sleep(600)"
    with process_started([sys.executable, "-c", lead], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert_killed_with(process, descendants(process.pid))
