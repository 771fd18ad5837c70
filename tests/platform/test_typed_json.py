from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.typed_json import Positive, read_as, read_object, write


@dataclass(frozen=True)
class Spoke:
    length: Positive
    bent: bool = False


@dataclass(frozen=True)
class Wheel:
    name: str
    spokes: tuple[Spoke, ...]
    teeth: int
    wear: float | None = None
    sizes: dict[str, tuple[int, float]] = field(default_factory=dict)


SOUND = {"name": "front", "spokes": [{"length": 30}], "teeth": 0, "sizes": {"rim": [1, 2.5]}}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "wheel.json"
    write(path, SOUND)
    assert read_as(Wheel, path) == Wheel("front", (Spoke(30),), 0, None, {"rim": (1, 2.5)})
    assert [found.name for found in tmp_path.iterdir()] == ["wheel.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 3}, "the field 'name' holds 3; it should be a text"),
        ({"name": None}, "the field 'name' holds None; it should be a text"),
        ({"teeth": 1.5}, "the field 'teeth' holds 1.5; it should be a whole number"),
        ({"teeth": True}, "the field 'teeth' holds True; it should be a whole number"),
        ({"wear": "much"}, "the field 'wear' holds 'much'; it should be a number"),
        ({"wear": -1.0}, "the field 'wear' holds -1.0; it should be finite and not negative"),
        ({"wear": 10**400}, "the field 'wear' holds 1000"),
        ({"wear": 1e300}, "the field 'wear' holds 1e+300; it should be at most 9,007,"),
        ({"teeth": 10**30}, "the field 'teeth' holds 1000000000000000000000000000000; it should be at most 9,007,"),
        ({"spokes": {}}, "the field 'spokes' holds {}; it should be a list"),
        ({"spokes": [3]}, "the field 'spokes[0]' holds 3; it should be an object"),
        ({"spokes": [{"length": 1}, {}]}, "the field 'spokes[1].length' is missing"),
        ({"spokes": [{"length": 0}]}, "the field 'spokes[0].length' holds 0; it should be a number above 0"),
        ({"spokes": [{"length": 1, "bent": 1}]}, "the field 'spokes[0].bent' holds 1; it should be true or false"),
        ({"sizes": {"rim": [1]}}, "the field 'sizes.rim' holds [1]; it should be a list of 2"),
        ({"sizes": []}, "the field 'sizes' holds []; it should be an object"),
        ({"hub": 3}, "the field 'hub' means nothing"),
        ({"name": ["x" * 200]}, "the field 'name' holds ['xxxx"),
    ],
)
def test_a_damaged_file_says_which_field(tmp_path, change, said):
    path = tmp_path / "wheel.json"
    write(path, {**SOUND, **change})
    with pytest.raises(ForetraceError) as raised:
        read_as(Wheel, path, "Turn it.")
    assert raised.value.what.startswith(f"{path}: {said}") and len(raised.value.what) < len(str(path)) + 150
    assert raised.value.advice == "Turn it."


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "[" * 100_000])
def test_what_is_no_file_of_facts_is_named(tmp_path, text):
    path = tmp_path / "wheel.json"
    path.write_text(text)
    with pytest.raises(ForetraceError, match=r"wheel\.json"):
        read_as(Wheel, path)


def test_numbers_that_json_does_not_have_are_refused(tmp_path):
    path = tmp_path / "wheel.json"
    path.write_text('{"name": "front", "spokes": [], "teeth": 1, "wear": NaN}')
    with pytest.raises(ForetraceError, match="the field 'wear' holds nan; it should be finite"):
        read_as(Wheel, path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "wheel.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ForetraceError, match=r"wheel\.json is not readable as JSON"):
        read_as(Wheel, path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ForetraceError, match=r"wheel\.json does not exist"):
        read_as(Wheel, tmp_path / "wheel.json")


def test_a_file_without_end_is_refused(tmp_path, monkeypatch):
    (tmp_path / "device.json").symlink_to("/dev/zero")
    with pytest.raises(ForetraceError, match=r"device\.json is a device: reading it may never end"):
        read_object(tmp_path / "device.json")
    monkeypatch.setattr("foretrace.platform.typed_json.MAX_FILE_BYTES", 10)
    (tmp_path / "large.json").write_text("{" + " " * 20 + "}")
    with pytest.raises(ForetraceError, match=r"large\.json is too large for a platform"):
        read_object(tmp_path / "large.json")


def test_a_link_among_a_platform_s_files_stays(tmp_path):
    (tmp_path / "device.json").symlink_to("elsewhere.json")
    write(tmp_path / "device.json", {"a": 1})
    assert (tmp_path / "device.json").is_symlink() and read_object(tmp_path / "elsewhere.json") == {"a": 1}
