from __future__ import annotations

import errno
import math
import re
import time

import pytest

from foretrace.calibration.fitting import KEPT
from foretrace.calibration.machine import Outcome, exclusive
from foretrace.calibration.timing import kernels as measuring
from foretrace.calibration.timing.timer import HostTimer
from foretrace.platform.measurements.kernels import read_batches
from foretrace.platform.prior import AUTO
from tests.machines import platform_folder


@pytest.fixture
def asked(monkeypatch):
    """What `foretrace calibrate` would have measured."""
    calls = []

    def calibrate(out, parts, minutes, on, families, like, on_progress, until, prior):
        assert until > time.monotonic() and prior == AUTO
        calls.append((out, parts, minutes, on, tuple(families), like))
        return Outcome(notes=["it was warm"])

    monkeypatch.setattr("foretrace.calibration.machine.calibrate", calibrate)
    return calls


def test_it_measures_says_what_and_can_be_gone_on_with(foretrace, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "BATCH", 4)
    monkeypatch.setattr("foretrace.calibration.machine.SPOILT", math.inf)  # these machines are busy
    monkeypatch.setattr(HostTimer, "flush_cache", lambda clock: None)
    words = ("calibrate", "device", "--out", tmp_path, "--minutes", "0.01", "--family", "fills", "--on", "cpu")
    first, second = foretrace(*words), foretrace(*words)
    assert first.code == second.code == 0, first.err
    assert re.search(r"fills +\d+ +0 ", first.err) and re.search(f"{tmp_path} is (not )?ready", first.err)
    batches = read_batches(tmp_path / "raw" / "fills.jsonl.gz")
    assert len(batches) >= 2 and batches[0].measurements


def test_a_platform_without_any_model_is_not_ready(foretrace, tmp_path, monkeypatch):
    monkeypatch.setattr("foretrace.calibration.fitting.fit", lambda *_, **__: [])
    ran = foretrace("calibrate", "fit", "--out", platform_folder(tmp_path / "mine"))
    assert ran.code == 0 and ran.err == f"foretrace: {tmp_path / 'mine'} is not ready: no kernel has a model\n"


def test_what_is_being_measured_is_not_fitted(foretrace, tmp_path):
    with exclusive(tmp_path):
        ran = foretrace("calibrate", "fit", "--out", tmp_path)
    assert ran.code == 2 and "another calibration is at work in" in ran.err


def test_no_word_means_all(foretrace, tmp_path, asked):
    ran = foretrace("calibrate", "--out", tmp_path, "--minutes", 3)
    assert ran.code == 0 and "foretrace: it was warm\n" in ran.err
    foretrace("calibrate", "host", "--out", tmp_path, "--on", "cpu")
    assert asked == [
        (tmp_path, ("fabric", "device", "host"), 3.0, None, (), None),
        (tmp_path, ("host",), 10.0, "cpu", (), None),
    ]


def test_the_cpu_of_this_machine_is_a_platform_of_the_user_s_own(foretrace, tmp_path, asked, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("foretrace.calibration.fitting.can_fit", lambda: True)
    assert foretrace("calibrate", "cpu").code == 0
    assert foretrace("calibrate", "cpu", "--minutes", 1, "--out", tmp_path / "mine").code == 0
    assert asked == [
        (tmp_path / "foretrace" / "platforms" / "cpu", ("device", "host"), 3.0, "cpu", (), None),
        (tmp_path / "mine", ("device", "host"), 1.0, "cpu", (), None),
    ]


def test_a_cpu_whose_models_can_t_be_fitted_is_not_measured(foretrace, tmp_path, asked, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("foretrace.calibration.fitting.can_fit", lambda: False)
    ran = foretrace("calibrate", "cpu")
    assert ran.code == 2 and "not installed. `pip install 'foretrace[fit]'`" in ran.err and not asked


def test_all_but_the_cpu_of_this_machine_need_a_folder(foretrace, asked):
    ran = foretrace("calibrate", "--minutes", 1)
    assert ran.code == 2 and "--out is missing. Name the platform's folder" in ran.err and not asked


def test_exactly_the_calls_of_a_step_can_be_asked_for(foretrace, tmp_path, asked, trace):
    assert foretrace("calibrate", "device", "--out", tmp_path / "mine", "--for", trace).code == 0
    assert [op.name for op in asked[0][-1].ops if op.name.startswith("aten")] == ["aten::mm", "aten::relu"]


def test_when_stopped_it_says_how_to_go_on(foretrace, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("foretrace.calibration.machine.calibrate", stopped)
    words = ("calibrate", "device", "--out", tmp_path, "--on", "cpu")
    early = foretrace(*words)
    assert early.code == 130 and early.err == "foretrace: stopped; nothing was measured yet\n"
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "device.json").write_text("{}")
    later = foretrace(*words)
    assert later.code == 130 and f"stopped; the same command goes on with {tmp_path}" in later.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--minutes", "nan"), "invalid value for --minutes: nan is no number"),
        (("--minutes", "0"), "--minutes 0 is no time to measure in"),
        (("--minutes", "-1"), "not in the range"),
        (("--for", "train.py", "--family", "matrix"), "with --for no families are measured"),
        (("--prior", "nope"), "no platform is called 'nope'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(foretrace, tmp_path, asked, options, said):
    ran = foretrace("calibrate", "device", "--out", tmp_path / "mine", *options)
    assert ran.code == 2 and said in ran.err and not asked and not (tmp_path / "mine").exists()


def test_a_full_disk_is_reported(foretrace, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("foretrace.calibration.machine.calibrate", full)
    ran = foretrace("calibrate", "--out", tmp_path / "mine")
    assert ran.code == 2 and "nothing more can be written to" in ran.err and "No space left on device" in ran.err
    assert not (tmp_path / "mine").exists()


def test_a_folder_of_something_else_is_left_alone(foretrace, tmp_path, asked):
    (tmp_path / "job.json").write_text("{}")
    for words in (("calibrate",), ("platform", "fabric", "--from", tmp_path / "nccl.log")):
        ran = foretrace(*words, "--out", tmp_path)
        assert ran.code == 2 and "holds something else than a platform (job.json)" in ran.err
    assert not asked and [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_of_the_ranks_of_a_torchrun_one_speaks(foretrace, tmp_path, asked, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert foretrace("calibrate", "--out", tmp_path) == (0, "", "")


def test_measurements_are_fitted_anew_without_the_machine(foretrace, tmp_path, monkeypatch):
    fitted = []
    monkeypatch.setattr(
        "foretrace.calibration.fitting.fit", lambda out, raw, on_progress, prior: fitted.append((out, raw, prior)) or []
    )
    assert foretrace("calibrate", "fit", "--out", tmp_path, "--raw", tmp_path / "kept").code == 0
    assert fitted == [(tmp_path, tmp_path / "kept", KEPT)]


def test_where_nothing_was_measured_nothing_is_fitted(foretrace, tmp_path):
    ran = foretrace("calibrate", "fit", "--out", tmp_path)
    assert ran.code == 2 and "raw holds no measurements" in ran.err


def test_without_lightgbm_the_message_says_what_to_install(foretrace, tmp_path, monkeypatch):
    monkeypatch.setattr("foretrace.calibration.fitting.can_fit", lambda: False)
    ran = foretrace("calibrate", "fit", "--out", platform_folder(tmp_path / "mine"))
    assert ran.code == 2 and "pip install 'foretrace[fit]'" in ran.err


@pytest.mark.parametrize(
    ("word", "option", "value"),
    [
        ("host", "--family", "matrix"),
        ("host", "--for", "train.py"),
        ("host", "--raw", "kept"),
        ("fit", "--minutes", "0"),
        ("fit", "--on", "cpu"),
        ("fabric", "--on", "cpu"),
    ],
)
def test_an_option_that_does_not_apply_is_refused(foretrace, tmp_path, word, option, value):
    ran = foretrace("calibrate", word, "--out", tmp_path / "mine", option, value)
    assert ran.code == 2 and f"calibrate {word} does not use {option}. Leave {option} out; it belongs to" in ran.err
    assert not (tmp_path / "mine").exists()


def test_a_fabric_is_not_measured_alone(foretrace, tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    ran = foretrace("calibrate", "fabric", "--out", tmp_path)
    assert ran.code == 2 and "torchrun --nproc-per-node" in ran.err


def test_an_unknown_family_is_answered_with_the_known_ones(foretrace, tmp_path):
    ran = foretrace("calibrate", "device", "--out", tmp_path, "--family", "magic", "--on", "cpu")
    assert ran.code == 2 and "no family is called 'magic'. Known are: matrix" in ran.err


def test_a_missing_device_is_reported(foretrace, tmp_path):
    for name in ("nonsense", "mps:0", "cpu:7"):
        ran = foretrace("calibrate", "device", "--out", tmp_path, "--on", name)
        assert ran.code == 2 and name in ran.err and "Traceback" not in ran.err


def test_every_option_is_in_its_page(foretrace, request):
    page = (request.config.rootpath / "docs" / "calibrate.md").read_text()
    options = set(re.findall(r"--[a-z]+", foretrace("calibrate", "--help").out)) - {"--help"}
    assert options and all(f"`{option}" in page for option in options)


@pytest.mark.parametrize("there", [False, True])
def test_a_device_that_is_not_here_leaves_no_folder(foretrace, tmp_path, monkeypatch, there):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = tmp_path / "new"
    if there:
        out.mkdir()
    ran = foretrace("calibrate", "device", "--out", out, "--on", "cuda")
    assert ran.code == 2 and "cannot use cuda" in ran.err
    assert out.exists() == there
