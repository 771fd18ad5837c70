"""Labels of recordings."""

from __future__ import annotations

import pytest

from foretrace.errors import ForetraceError
from foretrace.fleet.labels import parse_labels, read_labels


def table(tmp_path, text):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    return path


def test_a_table_has_labels_by_recording(tmp_path):
    found = read_labels(table(tmp_path, "recording,team,gpu_hours\nbert,ads,12\nruns/gpt/,,3.5\n"))
    assert found == {"bert": {"team": "ads", "gpu_hours": "12"}, "runs/gpt": {"gpu_hours": "3.5"}}


def test_a_file_that_is_no_table_is_refused(tmp_path):
    path = table(tmp_path, "")
    path.write_bytes(b"recording,team\nbert,a\rds\n")
    with pytest.raises(ForetraceError, match=r"labels\.csv can't be read"):
        read_labels(path)


def test_two_labels_for_one_job_are_refused(tmp_path):
    with pytest.raises(ForetraceError, match=r"line 3: bert is labelled twice, team=ads and team=feed"):
        read_labels(table(tmp_path, "recording,team\nbert,ads\nbert,feed\n"))


@pytest.mark.parametrize("hours", ["0", "-3", "many", "inf"])
def test_hours_that_are_no_number_above_zero_are_refused(tmp_path, hours):
    with pytest.raises(ForetraceError, match=r"line 2: gpu_hours can't be .*Give a number above 0"):
        read_labels(table(tmp_path, f"recording,gpu_hours\nbert,{hours}\n"))
    with pytest.raises(ForetraceError, match="gpu_hours can't be"):
        parse_labels([f"gpu_hours={hours}"])


def test_a_table_without_recordings_says_what_it_lacks(tmp_path):
    with pytest.raises(ForetraceError, match="no column 'recording'"):
        read_labels(table(tmp_path, "name,team\nbert,ads\n"))


def test_dates_are_checked():
    with pytest.raises(ForetraceError, match="'yesterday' is no date"):
        parse_labels(["date=yesterday"])
