"""A fabric measured for real: two processes and gloo."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Curve, Fabric
from foretrace.platform.fabric_measurements import (
    BESIDE,
    FABRIC_FILE,
    WORK,
    Exchange,
    add_exchanges,
    open_run,
    read_runs,
)
from foretrace.platform.measure.fabric import _shared, joined
from foretrace.platform.measure.fabric_calls import KINDS

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
    (run,) = read_runs(measured / "raw" / FABRIC_FILE)
    assert {exchange.kind for exchange in run.exchanges} == {*KINDS, WORK, BESIDE}
    assert {(one.ranks, one.nodes) for one in run.exchanges if one.kind != WORK} == {(2, 1)}
    assert all(us > 0 for exchange in run.exchanges for us in exchange.us)
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
    class Other:
        """The rank beside this one, which took 2 seconds."""

        def agreed(self, number: float) -> float:
            return max(number, 2.0 if number > 0 else -2.0)

    assert _shared(kind, 3.0, outside=False, world=Other()) == shared


def test_alone_a_process_is_told_how_to_start_several(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ForetraceError, match=r"this one is alone\. Start one a GPU: torchrun"), joined():
        pass


def test_one_process_is_no_fabric(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ForetraceError, match="two processes at least"), joined():
        pass


def curve(**changes):
    return Curve(**{
        "kind": "all_reduce", "ranks": 2, "nodes": 1, "latency_us": 10.0, "gbps": 100.0, "bend": 1.0,
        "knots": ((1024.0, 1.0),), "spread": 0.02, **changes,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"latency_us": 0.0}, r"'curves\[0\].latency_us' holds 0.0"),
        ({"gbps": -1.0}, r"'curves\[0\].gbps' holds -1.0"),
        ({"knots": ((1024.0,),)}, r"'curves\[0\].knots\[0\]' holds \[1024.0\]"),
        ({"ranks": 1.5}, r"'curves\[0\].ranks' holds 1.5"),
        ({"ranks": 1}, r"'curves\[0\]' has one rank"),
        ({"nodes": 3}, r"'curves\[0\]' has 2 ranks on 3 nodes"),
        ({"knots": ()}, r"'curves\[0\]' has no knots"),
        ({"knots": ((2048.0, 1.0), (1024.0, 1.0))}, r"'curves\[0\]' has knots that do not rise"),
        ({"kind": "shout"}, r"'curves\[0\]' is of 'shout', which is no collective"),
    ],
)
def test_a_damaged_fabric_says_which_field(tmp_path, change, said):
    Fabric("two", (curve(**change),), "made up").write(tmp_path / "fabric.json")
    with pytest.raises(ForetraceError, match=rf"fabric\.json: the field {said}"):
        Fabric.read(tmp_path / "fabric.json")


def test_measurements_of_several_runs_follow_each_other(tmp_path):
    path = tmp_path / FABRIC_FILE
    for us in (80.0, 90.0):
        open_run(path, {"provenance": "gloo"})
        add_exchanges(path, [Exchange("all_reduce", 2, 1, 1024, (us,))])
    assert [run.exchanges[0].us for run in read_runs(path)] == [(80.0,), (90.0,)]


@pytest.mark.parametrize("line", [{"kind": "all_reduce"}, {"ranks": "two"}, 3])
def test_a_damaged_line_is_named(tmp_path, line):
    import gzip

    path = tmp_path / FABRIC_FILE
    path.write_bytes(gzip.compress((json.dumps({"run": {}}) + "\n" + json.dumps(line) + "\n").encode()))
    with pytest.raises(ForetraceError, match=r"fabric\.jsonl\.gz: line 2 is no measurement of a fabric"):
        read_runs(path)
