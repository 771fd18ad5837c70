"""A fabric measured for real: two processes and gloo."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foretrace.calibration.timing.collectives import KINDS, World, _shared, process_group
from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Fabric
from foretrace.platform.measurements.fabric import (
    FABRIC_FILE,
    OVERLAPPED,
    WORK,
    read_fabric_runs,
)

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("fabric") / "two"
    words = ["-m", "foretrace", "calibrate", "fabric", "--out", str(out), "--minutes", "0.01"]
    done = subprocess.run([*TORCHRUN, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is ready") == 1, "one rank speaks"
    return out


@pytest.mark.slow
def test_all_kinds_are_measured_between_two_processes(measured):
    (run,) = read_fabric_runs(measured / "raw" / FABRIC_FILE)
    assert {exchange.kind for exchange in run.collectives} == {*KINDS, WORK, OVERLAPPED}
    assert {(one.ranks, one.nodes) for one in run.collectives if one.kind != WORK} == {(2, 1)}
    assert all(us > 0 for exchange in run.collectives for us in exchange.us)
    assert run.machine["provenance"].startswith("gloo between 2 ranks on")


@pytest.mark.slow
def test_a_large_collective_is_predicted_to_take_longer_than_a_small_one(measured):
    fabric = Fabric.read(measured / "fabric.json")
    assert {curve.kind for curve in fabric.curves} == set(KINDS)
    small, large = (price_collective(fabric, "all_reduce", nbytes, range(2)) for nbytes in (2**10, 2**24))
    assert 0 < small.low < small.typical < large.typical < large.high


@pytest.mark.slow
def test_it_is_known_how_processes_slow_each_other(measured):
    alone, two = Fabric.read(measured / "fabric.json").crowd
    assert (alone.ranks, alone.slower, alone.behind) == (1, 1.0, 0.0)
    assert two.ranks == 2 and two.slower > 0.5 and two.behind > 0


@pytest.mark.slow
def test_it_is_known_how_work_and_exchanges_slow_each_other(measured):
    beside = Fabric.read(measured / "fabric.json").beside
    assert beside is not None and beside.work >= 1.0 and beside.transfer >= 1.0


@pytest.mark.parametrize("kind, shared", [("all_reduce", 2.0), ("broadcast", 3.0)])
def test_who_came_last_says_what_a_collective_takes_but_for_one_that_only_sends(kind, shared):
    class Other(World):
        """The rank beside this one, which took 2 seconds."""

        def __init__(self) -> None:
            """Alone, with no process group."""

        def largest(self, number: float) -> float:
            return max(number, 2.0 if number > 0 else -2.0)

    assert _shared(kind, 3.0, outside=False, world=Other()) == shared


def test_alone_a_process_is_told_how_to_start_several(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ForetraceError, match=r"this one is alone\. Start one a GPU: torchrun"), process_group():
        pass


def test_one_process_is_no_fabric(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ForetraceError, match="two processes at least"), process_group():
        pass
