"""A host as a file."""

from __future__ import annotations

import json
from dataclasses import astuple

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.host import TERMS, BetweenCalls, CallCost, Host
from foretrace.platform.registry import SHIPPED

COST = CallCost(to_launch=6.0, launch=4.0, between=3.0, after=1.0, tensor=0.0, spread=0.1)
VIEW = CallCost(to_launch=2.0, launch=4.0, between=3.0, after=0.0, tensor=0.0, spread=0.1)
HOST = Host("mine", {"aten::mm": COST}, COST, VIEW, BetweenCalls(*[1.0] * len(TERMS)), common=0.1, provenance="made up")


@pytest.fixture
def path(tmp_path):
    HOST.write(tmp_path / "host.json")
    return tmp_path / "host.json"


def test_it_is_read_as_it_was_written(path):
    assert Host.read(path) == HOST


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda facts: facts["before"].pop("released"), "before.released"),
        (lambda facts: facts["calls"]["aten::mm"].update(launch="long"), "calls.aten::mm.launch"),
        (lambda facts: facts["view"].update(spread=-1), "view.spread"),
        (lambda facts: facts.update(common=0), "common"),
        (lambda facts: facts.update(speed=3), "speed"),
    ],
)
def test_a_damaged_file_says_which_field_is_wrong(path, change, says):
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))
    with pytest.raises(ForetraceError, match=says):
        Host.read(path)


def test_a_name_never_measured_costs_what_such_calls_do():
    assert HOST.cost("custom::fast", launches=2) is COST
    assert HOST.cost("custom::look", launches=0) is VIEW


def test_the_shipped_host_knows_the_calls_of_training_and_what_passes_between_them():
    host = Host.read(SHIPPED / "h200" / "host.json")
    assert {"aten::addmm", "aten::convolution", "aten::_embedding_bag", "aten::_foreach_addcdiv_"} <= host.calls.keys()
    assert host.calls["aten::view"].to_launch < host.calls["aten::addmm"].to_launch
    assert sum(astuple(host.before)) > 0
    assert 0.05 < host.common < 0.3
