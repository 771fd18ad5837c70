from __future__ import annotations

import pytest

import foretrace as ft
from foretrace.graph import ForetraceError
from foretrace.platform.device import DEVICES
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import VERSION, Platform
from tests.machines import CURVE, host, platform_folder
from tests.narrowing import present


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where the user's own platforms are."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "foretrace" / "platforms"


def test_a_platform_with_another_s_host_is_one_line(home):
    platform_folder(home / "fast")
    platform_folder(home / "slow", us=60.0, without=("device", "fabric"))
    platform = ft.load_platform("fast", host="slow")
    assert (platform.name, platform.host.name) == ("fast", "slow")
    assert platform.host.calls["aten::mm"].to_launch == 60.0


def test_a_platform_without_a_host_takes_another_s(home):
    platform_folder(home / "bare", without=("host", "fabric"))
    platform_folder(home / "slow", us=60.0, without=("device", "fabric"))
    assert ft.load_platform("bare", host="slow").host.name == "slow"
    with pytest.raises(ForetraceError, match=r"has no host.json.*another platform's \(--host\)"):
        ft.load_platform("bare")


def test_a_host_a_platform_or_a_folder_will_do(home, tmp_path):
    platform_folder(home / "fast")
    folder = platform_folder(tmp_path / "elsewhere", us=60.0, without=())
    for given in (host(60.0), Platform.read(folder), folder, str(folder)):
        assert ft.load_platform("fast", host=given).host.calls["aten::mm"].to_launch == 60.0
    for fabric in (Fabric("ours", (CURVE,), ""), Platform.read(folder), folder):
        assert present(ft.load_platform("fast", fabric=fabric).fabric).curves == (CURVE,)
    assert ft.load_platform(Platform.read(folder)).name == "elsewhere"


def test_a_gpu_that_is_only_described_has_no_host_to_take(home):
    with pytest.raises(ForetraceError, match="a100 has no host: it was not calibrated"):
        ft.load_platform("h200", host="a100")


def test_a_file_that_describes_a_gpu_is_a_platform(home, tmp_path):
    text = (DEVICES / "a100.json").read_text().replace('"name": "a100"', '"name": "ours"').replace("2039", "4078")
    (tmp_path / "gpu.json").write_text(text)
    ours = ft.load_platform(tmp_path / "gpu.json")
    assert ours.name == "ours" and ours.device.memory_gbps == 4078
    (tmp_path / "gpu.json").write_text(text.replace('"sms"', '"processors"'))
    with pytest.raises(ForetraceError, match=r"gpu.json: the field .processors. means nothing"):
        ft.load_platform(tmp_path / "gpu.json")


def test_a_fabric_has_a_name_of_its_own_or_a_file(home, tmp_path):
    platform_folder(home / "fast")
    assert ft.load_platform("fast", fabric="h100-8x").fabric == Fabric.named("h100-8x")
    assert present(ft.load_platform("fast", fabric="h100-nvswitch").fabric).curves == ()
    Fabric("ours", (CURVE,), "").write(tmp_path / "ours.json")
    assert present(ft.load_platform("fast", fabric=tmp_path / "ours.json").fabric).name == "ours"
    with pytest.raises(ForetraceError, match=r"no fabric is called 'h1000'.*h100-8x"):
        ft.load_platform("fast", fabric="h1000")


def test_a_platform_s_fabric_comes_before_one_of_the_same_name(home):
    platform_folder(home / "h100-8x", without=())
    assert present(ft.load_platform("h100-8x", fabric="h100-8x").fabric).curves == (CURVE,)


def test_a_fabric_that_is_not_there_is_said_so(home):
    folder = platform_folder(home / "fast")
    with pytest.raises(ForetraceError, match=r"has no fabric\.json: its fabric was not measured"):
        ft.load_platform("fast", fabric="fast")
    with pytest.raises(ForetraceError, match="fast has no fabric"):
        ft.load_platform("fast", fabric=Platform.read(folder))


def test_the_cpu_of_this_machine_is_measured_by_a_command_and_not_by_asking_for_it(home):
    said = r"the CPU of this machine was not calibrated\. `foretrace calibrate cpu` measures it"
    for ask in (lambda: ft.load_platform("cpu"), lambda: ft.load_platform("h200", host="cpu")):
        with pytest.raises(ForetraceError, match=said):
            ask()
    assert not home.exists()


def test_the_cpu_of_this_machine_is_found_by_its_name_once_it_is_calibrated(home):
    platform_folder(home / "cpu")
    assert ft.load_platform("cpu").folder == home / "cpu"


def test_the_cpu_of_this_machine_has_no_fabric_that_one_process_could_measure(home):
    with pytest.raises(ForetraceError, match="collectives between processes of this machine were not measured"):
        ft.load_platform("h200", fabric="cpu")


def test_a_part_of_another_version_is_refused(home):
    platform_folder(home / "fast")
    old = platform_folder(home / "old")
    about = old / "platform.json"
    about.write_text(about.read_text().replace(f'"version": {VERSION}', '"version": 99'))
    with pytest.raises(ForetraceError, match="old is of format version 99"):
        ft.load_platform("fast", host="old")
