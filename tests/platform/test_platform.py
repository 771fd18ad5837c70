from __future__ import annotations

import json

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.folder import VERSION
from foretrace.platform.platform import Platform
from tests.machines import CURVE, host, platform_folder


def spoil(path, **changes):
    facts = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in facts.items() if value is not Ellipsis}))


def test_a_platform_is_read_from_its_folder(tmp_path):
    folder = platform_folder(tmp_path / "mine", without=())
    platform = Platform.read(folder)
    assert (platform.name, platform.device.name, platform.host.name) == ("mine", "toy", "mine")
    assert platform.fabric.curves == (CURVE,)
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
