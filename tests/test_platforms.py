from __future__ import annotations

import pytest

import foretrace as ft
from foretrace import platforms
from foretrace.calibrating import Outcome
from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Fabric
from foretrace.platform.folder import VERSION
from foretrace.platform.platform import Platform
from tests.machines import CURVE, host, platform_folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where the user's own platforms are."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "foretrace" / "platforms"


def test_a_platform_with_another_s_host_is_one_line(home):
    platform_folder(home / "fast")
    platform_folder(home / "slow", us=60.0, without=("device", "fabric"))
    platform = ft.platform("fast", host="slow")
    assert (platform.name, platform.host.name) == ("fast", "slow")
    assert platform.host.calls["aten::mm"].to_launch == 60.0


def test_a_platform_without_a_host_takes_another_s(home):
    platform_folder(home / "bare", without=("host", "fabric"))
    platform_folder(home / "slow", us=60.0, without=("device", "fabric"))
    assert ft.platform("bare", host="slow").host.name == "slow"
    with pytest.raises(ForetraceError, match=r"has no host.json.*another platform's \(--host\)"):
        ft.platform("bare")


def test_a_host_a_platform_or_a_folder_will_do(home, tmp_path):
    platform_folder(home / "fast")
    folder = platform_folder(tmp_path / "elsewhere", us=60.0, without=())
    for given in (host(60.0), Platform.read(folder), folder, str(folder)):
        assert ft.platform("fast", host=given).host.calls["aten::mm"].to_launch == 60.0
    for given in (Fabric("ours", (CURVE,), ""), Platform.read(folder), folder):
        assert ft.platform("fast", fabric=given).fabric.curves == (CURVE,)
    assert ft.platform(Platform.read(folder)).name == "elsewhere"


def test_a_gpu_that_is_only_described_has_no_host_to_take(home):
    with pytest.raises(ForetraceError, match="a100 has no host: nobody measured it"):
        ft.platform("h200", host="a100")


def test_a_fabric_has_a_name_of_its_own_or_a_file(home, tmp_path):
    platform_folder(home / "fast")
    assert ft.platform("fast", fabric="h100-8x").fabric == Fabric.named("h100-8x")
    assert ft.platform("fast", fabric="h100-nvswitch").fabric.curves == ()
    Fabric("ours", (CURVE,), "").write(tmp_path / "ours.json")
    assert ft.platform("fast", fabric=tmp_path / "ours.json").fabric.name == "ours"
    with pytest.raises(ForetraceError, match=r"no fabric is called 'h1000'.*h100-8x"):
        ft.platform("fast", fabric="h1000")


def test_a_platform_s_fabric_comes_before_one_of_the_same_name(home):
    platform_folder(home / "h100-8x", without=())
    assert ft.platform("h100-8x", fabric="h100-8x").fabric.curves == (CURVE,)


def test_a_fabric_that_is_not_there_is_said_so(home):
    folder = platform_folder(home / "fast")
    with pytest.raises(ForetraceError, match=r"has no fabric\.json: its fabric was not measured"):
        ft.platform("fast", fabric="fast")
    with pytest.raises(ForetraceError, match="fast has no fabric"):
        ft.platform("fast", fabric=Platform.read(folder))


def test_the_machine_at_hand_is_measured_on_first_use_and_kept(home, monkeypatch, capsys):
    measured = []

    def calibrate(folder, parts, minutes, on, told):
        measured.append((parts, on))
        platform_folder(folder)
        return Outcome(notes=["it was warm"])

    monkeypatch.setattr("foretrace.calibrating.calibrate", calibrate)
    monkeypatch.setattr("foretrace.fitting.can_fit", lambda: True)
    assert ft.platform("cpu").folder == ft.platform("cpu").folder == home / "cpu"
    assert measured == [(("device", "host"), "cpu")]
    said = capsys.readouterr().err
    assert said.count("measuring the CPU of this machine") == 1 and str(home / "cpu") in said
    assert "foretrace: it was warm\n" in said


def test_the_machine_at_hand_is_not_measured_for_a_fabric_that_one_process_cannot_see(home):
    with pytest.raises(ForetraceError, match="nobody measured what joins the processes"):
        ft.platform("h200", fabric="cpu")


def test_where_nothing_can_be_fitted_nothing_is_measured(home, monkeypatch):
    monkeypatch.setattr("foretrace.fitting.can_fit", lambda: False)
    with pytest.raises(ForetraceError, match=r"not installed. `pip install 'foretrace\[fit\]'`"):
        platforms.platform("cpu")


def test_a_part_of_another_version_is_refused(home):
    platform_folder(home / "fast")
    old = platform_folder(home / "old")
    about = old / "platform.json"
    about.write_text(about.read_text().replace(f'"version": {VERSION}', '"version": 99'))
    with pytest.raises(ForetraceError, match="old is of format version 99"):
        ft.platform("fast", host="old")
