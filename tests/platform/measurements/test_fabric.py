from __future__ import annotations

import gzip
import json

import pytest

from foretrace.errors import ForetraceError
from foretrace.platform.measurements.fabric import (
    FABRIC_FILE,
    TimedCollective,
    add_collectives,
    begin_run,
    read_fabric_runs,
)


def test_measurements_of_several_runs_follow_each_other(tmp_path):
    path = tmp_path / FABRIC_FILE
    for us in (80.0, 90.0):
        begin_run(path, {"provenance": "gloo"})
        add_collectives(path, [TimedCollective("all_reduce", 2, 1, 1024, (us,))])
    assert [run.collectives[0].us for run in read_fabric_runs(path)] == [(80.0,), (90.0,)]


@pytest.mark.parametrize("line", [{"kind": "all_reduce"}, {"ranks": "two"}, 3])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / FABRIC_FILE
    path.write_bytes(gzip.compress((json.dumps({"run": {}}) + "\n" + json.dumps(line) + "\n").encode()))
    with pytest.raises(ForetraceError, match=r"fabric\.jsonl\.gz: line 2 is no measurement of a fabric"):
        read_fabric_runs(path)
