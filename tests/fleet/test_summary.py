"""Where a fleet's hours go."""

from __future__ import annotations

import pytest

from foretrace.errors import ForetraceError
from foretrace.fleet.adding import add_recordings
from foretrace.fleet.store import Store
from foretrace.fleet.summary import summarize


def test_hours_of_families_and_idle_time_add_up_to_all(fleet):
    summary = summarize(fleet)
    assert summary.recordings == 3 and summary.hours == 111.0
    busy = sum(row.hours for row in summary.by_family)
    assert busy == pytest.approx(summary.active * 111) and busy + summary.idle * 111 == pytest.approx(111)
    assert sum(row.hours for row in summary.by_idle) == pytest.approx(summary.idle * 111)


def test_hours_are_by_team_and_by_job(fleet):
    summary = summarize(fleet)
    assert [(row.name, row.hours) for row in summary.by_team] == [("feed", 100.0), ("ads", 10.0), ("(none)", 1.0)]
    assert [row.name for row in summary.by_job] == ["large", "small", "middle"]


def test_only_recordings_with_a_label_are_counted(fleet):
    assert summarize(fleet, ["team=ads"]).hours == 10.0
    with pytest.raises(ForetraceError, match="no label to choose recordings by"):
        summarize(fleet, ["taem=ads"])
    with pytest.raises(ForetraceError, match="no recording with these labels"):
        summarize(fleet, ["team=none"])


def test_the_tree_has_all_hours_at_every_level(fleet):
    tree = summarize(fleet).tree
    assert sum(branch["value"] for branch in tree) == pytest.approx(111)
    for branch in tree:
        assert sum(child["value"] for child in branch["children"]) == pytest.approx(branch["value"])


def test_a_job_that_got_slower_than_its_own_history_is_found_with_the_reason(tmp_path, traces):
    store = Store.open(tmp_path / "fleet", create=True)
    took = {"w1": 41.0, "w2": 40.0, "w3": 41.5, "w4": 160.0}
    folder = traces(**took)
    table = {name: {"job": "dlrm", "date": f"2026-10-{5 + 7 * place:02d}"} for place, name in enumerate(took)}
    add_recordings(store, [str(folder)], by_recording=table, workers=1)
    summary = summarize(store)
    assert [(row.job, row.recording, row.before) for row in summary.outliers] == [("dlrm", "w4", "w1")]
    assert summary.outliers[0].why[0].startswith("matrix product: device +0.119 ms")
    assert [week.week for week in summary.weeks] == ["2026-W41", "2026-W42", "2026-W43", "2026-W44"]
    assert all(sum(week.by_family.values()) == pytest.approx(week.hours) for week in summary.weeks)


def test_an_empty_store_says_what_to_do(tmp_path):
    with pytest.raises(ForetraceError, match=r"holds no recording.*fleet add"):
        summarize(Store.open(tmp_path / "fleet", create=True))
