from __future__ import annotations

import json

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.folder import ABOUT, SHIPPED, VERSION, About, find, platforms, read_about, write_about


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's own platforms."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "foretrace" / "platforms"
    folder.mkdir(parents=True)
    return folder


def make(folder, **changes):
    folder.mkdir(exist_ok=True)
    write_about(folder, About(folder.name, "2026-11-15", "measured here", {"torch": "2.11"}))
    facts = {**json.loads((folder / ABOUT).read_text()), **changes}
    (folder / ABOUT).write_text(json.dumps(facts))
    return folder


def test_platforms_of_the_user_are_found_by_name_beside_the_shipped_ones(home):
    make(home / "mine")
    (home / "no platform").mkdir()
    assert set(platforms()) == {"mine", "h200"}
    assert find("mine") == home / "mine" and find("h200") == SHIPPED / "h200"


def test_the_shipped_platform_keeps_its_name(home):
    make(home / "h200")
    assert find("h200") == SHIPPED / "h200"
    assert find(home / "h200") == home / "h200"


def test_a_folder_is_found_by_its_path(tmp_path, monkeypatch):
    make(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert read_about(find("here")).name == "here"


def test_a_platform_nobody_knows_is_answered_with_those_that_are_known(home):
    make(home / "mine")
    with pytest.raises(ForetraceError, match=r"no platform is called 'h2000'.*mean h200.*Known are: .*a100.*cpu.*mine"):
        find("h2000")


def test_a_folder_that_is_no_platform_is_said_so(tmp_path):
    with pytest.raises(ForetraceError, match=r"is not a platform: it has no platform\.json"):
        read_about(tmp_path)


def test_a_folder_that_was_measured_and_not_fitted_is_told_how(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "device.json").write_text("{}")
    with pytest.raises(ForetraceError, match=r"was measured, and not fitted yet\. `foretrace calibrate fit --out "):
        read_about(tmp_path)


def test_a_platform_of_an_older_version_is_refused_with_the_way_to_refit_it(tmp_path):
    folder = make(tmp_path / "old", version=VERSION - 1, words="of the past")
    (folder / "raw").mkdir()
    with pytest.raises(ForetraceError) as raised:
        read_about(folder)
    assert f"{folder} is of format version {VERSION - 1}, this Foretrace reads version {VERSION}" in raised.value.what
    assert f"`foretrace calibrate fit --out {folder}` makes it anew" in raised.value.advice


def test_without_measurements_the_way_back_is_to_measure_again(tmp_path):
    with pytest.raises(ForetraceError, match="keeps no measurements: `foretrace calibrate --out"):
        read_about(make(tmp_path / "old", version=VERSION - 1))


def test_a_platform_of_a_newer_version_asks_for_a_newer_foretrace(tmp_path):
    folder = make(tmp_path / "new", version=VERSION + 1, words="of the future")
    (folder / "raw").mkdir()
    with pytest.raises(
        ForetraceError, match=rf"version {VERSION + 1}.*A newer Foretrace made it: `pip install --upgrade"
    ):
        read_about(folder)


@pytest.mark.parametrize(
    ("field", "value"), [("name", 3), ("versions", []), ("versions", {"torch": 2}), ("version", "2"), ("made", None)]
)
def test_a_damaged_field_is_named(tmp_path, field, value):
    with pytest.raises(ForetraceError, match=rf"platform\.json: the field '{field}[\w.]*' holds"):
        read_about(make(tmp_path / "mine", **{field: value}))


def test_another_tool_s_file_is_refused(tmp_path):
    with pytest.raises(ForetraceError, match="the field 'format' holds 'winamp skin'"):
        read_about(make(tmp_path / "mine", format="winamp skin"))
