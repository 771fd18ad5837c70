from __future__ import annotations

import json

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.platform import ABOUT, VERSION, About, Platform, read_about, write_about
from foretrace.platform.registry import SHIPPED, find_platform, platform_folders
from tests.machines import CURVE, host, platform_folder
from tests.narrowing import present


def spoil(path, **changes):
    facts = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in facts.items() if value is not Ellipsis}))


def test_a_platform_is_read_from_its_folder(tmp_path):
    folder = platform_folder(tmp_path / "mine", without=())
    platform = Platform.read(folder)
    assert (platform.name, platform.device.name, platform.host.name) == ("mine", "toy", "mine")
    assert present(platform.fabric).curves == (CURVE,)
    assert platform.models == folder / "models" and platform.about.versions["driver"] == "580"


def test_nothing_measured_between_ranks_is_no_fabric(tmp_path):
    assert Platform.read(platform_folder(tmp_path / "mine")).fabric is None


@pytest.mark.parametrize("part", ["device", "host"])
def test_a_part_that_was_not_measured_is_named_with_the_way_to_it(tmp_path, part):
    folder = platform_folder(tmp_path / "mine", without=(part,))
    with pytest.raises(ForetraceError) as raised:
        Platform.read(folder)
    assert f"{folder} has no {part}.json: its {part} was not measured" in raised.value.what
    assert f"`foretrace calibrate {part} --out {folder}`" in raised.value.advice


def test_measurements_that_were_not_fitted_are_said_so(tmp_path):
    folder = platform_folder(tmp_path / "mine")
    (folder / "models" / "index.json").unlink()
    (folder / "models").rmdir()
    with pytest.raises(ForetraceError, match=r"has no models/.*`foretrace calibrate fit --out"):
        Platform.read(folder)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("platform.json", {"name": 3}, "the field 'name' holds 3"),
        ("platform.json", {"made": ...}, "the field 'made' is missing"),
        ("device.json", {"sms": "many"}, "the field 'sms' holds 'many'"),
        ("device.json", {"measured": {"tflops": {"float32": 0}}}, r"the field 'measured\.tflops\.float32' holds 0"),
        ("host.json", {"common": -1}, "the field 'common' holds -1"),
        ("host.json", {"calls": {"aten::mm": {}}}, r"the field 'calls\.aten::mm\.to_launch' is missing"),
        ("fabric.json", {"curves": [{}]}, r"the field 'curves\[0\]\.kind' is missing"),
        ("fabric.json", {"cost": 1}, "the field 'cost' means nothing"),
    ],
)
def test_a_damaged_file_says_which_field_of_which_file(tmp_path, file, change, said):
    folder = platform_folder(tmp_path / "mine", without=())
    spoil(folder / file, **change)
    with pytest.raises(ForetraceError, match=rf"mine/{file}: {said}"):
        Platform.read(folder)


@pytest.mark.parametrize("file", ["platform.json", "device.json", "host.json", "fabric.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\x01"])
def test_a_file_that_was_cut_is_named(tmp_path, file, text):
    folder = platform_folder(tmp_path / "mine", without=())
    (folder / file).write_text(text)
    with pytest.raises(ForetraceError, match=rf"mine/{file}"):
        Platform.read(folder)


def test_another_version_is_refused_before_anything_else_is_looked_at(tmp_path):
    folder = platform_folder(tmp_path / "mine")
    spoil(folder / "platform.json", version=VERSION + 1, whatever="there is")
    (folder / "device.json").write_text("of the future")
    with pytest.raises(ForetraceError, match=f"format version {VERSION + 1}"):
        Platform.read(folder)


def test_another_host_is_one_word(tmp_path):
    platform = Platform.read(platform_folder(tmp_path / "mine"))
    slow = platform.having(host=host(us=60.0, name="slow"))
    assert (slow.host.name, slow.device) == ("slow", platform.device)
    assert platform.having() == platform


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
    assert set(platform_folders()) == {"mine", "h200"}
    assert find_platform("mine") == home / "mine" and find_platform("h200") == SHIPPED / "h200"


def test_the_shipped_platform_keeps_its_name(home):
    make(home / "h200")
    assert find_platform("h200") == SHIPPED / "h200"
    assert find_platform(home / "h200") == home / "h200"


def test_a_folder_is_found_by_its_path(tmp_path, monkeypatch):
    make(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert read_about(find_platform("here")).name == "here"


def test_a_platform_nobody_knows_is_answered_with_those_that_are_known(home):
    make(home / "mine")
    with pytest.raises(ForetraceError, match=r"no platform is called 'h2000'.*mean h200.*Known are: .*a100.*cpu.*mine"):
        find_platform("h2000")


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
