"""The file that a host's calibration adds to."""

from __future__ import annotations

from math import isnan

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.measurements.host import HOST_FILE, Calls, read_host_runs
from foretrace.platform.measurements.journal import append

CALLS = Calls(["aten::mm", "aten::t"], [0, 1], [1, 0], [0, 0])
HEAD = [{"run": {"device": "cpu"}}, CALLS.line("step", "tiny"), CALLS.line("single", "")]
PROFILED: dict[str, list[float]] = {
    "to_launch": [3.0, -1.0], "launching": [2.0, -1.0], "between": [0.0, -1.0], "after": [1.0, -1.0],
    "launches": [1, 0],
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    append(tmp_path / HOST_FILE, HEAD)
    return tmp_path / HOST_FILE


def test_rounds_are_read_back_with_the_calls_they_belong_to(path):
    append(
        path, [{"plain": "tiny", "us": [[0.1, 1.0, 2.0, 3.0]]}, {"profiled": "tiny", **PROFILED}, {"alone": [4.0, 5.0]}]
    )
    append(path, [{"plain": "tiny", "us": [[0.2, 1.5, 2.5, 3.5]]}])
    (run,) = read_host_runs(path)
    assert run.steps["tiny"].calls == CALLS
    assert run.steps["tiny"].plain == [[0.1, 1.0, 2.0, 3.0], [0.2, 1.5, 2.5, 3.5]]
    assert run.steps["tiny"].profiled[0].launches == [1, 0]
    assert run.alone == [[4.0, 5.0]]


def test_steps_after_a_wait_are_kept_apart(path):
    append(path, [{"rested": "tiny", "waited": 4.1, "us": [0.1, 1.0, 2.0, 3.0]}])
    (run,) = read_host_runs(path)
    assert run.steps["tiny"].rested == [(4.1, [0.1, 1.0, 2.0, 3.0])]
    assert not run.steps["tiny"].plain


def test_an_older_file_does_not_tell_how_long_clearing_took(path):
    append(path, [{"plain": "tiny", "us": [[1.0, 2.0, 3.0]]}])
    ((clearing, *rest),) = read_host_runs(path)[0].steps["tiny"].plain
    assert isnan(clearing) and rest == [1.0, 2.0, 3.0]


def test_in_an_older_file_a_compiled_backward_is_entered_like_a_forward(path):
    append(path, [{"compiled": [90.0, 3.0, 15.0, 4.0]}, {"compiled": [90.0, 3.0, 15.0, 4.0, 70.0]}])
    assert [costs[-1] for costs in read_host_runs(path)[-1].compiled] == [90.0, 70.0]


def test_a_later_run_stands_beside_the_first(path):
    append(path, HEAD)
    assert len(read_host_runs(path)) == 2


def test_what_was_being_written_when_it_was_stopped_is_left_out(path):
    whole = path.read_bytes()
    append(path, [{"plain": "tiny", "us": [[1.0, 2.0, 3.0]]}])
    path.write_bytes(path.read_bytes()[:-3])
    (run,) = read_host_runs(path)
    assert path.read_bytes().startswith(whole) and not run.steps["tiny"].plain


@pytest.mark.parametrize(
    "line",
    [
        {"plain": "unknown", "us": []},
        {"plain": "tiny", "us": [[1.0, 2.0]]},
        {"profiled": "tiny", **PROFILED, "after": [1.0]},
        {"profiled": "tiny", **{name: column[:1] for name, column in PROFILED.items()}},
        {"alone": [1.0]},
        {"launched": [1.0]},
        {"alone": ["fast", "slow"]},
        {"something": "else"},
    ],
)
def test_a_line_that_is_no_measurement_is_named(path, line):
    append(path, [line])
    with pytest.raises(ForetraceError, match="line 4"):
        read_host_runs(path)


def test_no_file_holds_no_runs(tmp_path):
    assert read_host_runs(tmp_path / HOST_FILE) == []
