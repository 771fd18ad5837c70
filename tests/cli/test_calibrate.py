from __future__ import annotations

import re

from foretrace.platform.measure.calibrate import Progress
from foretrace.platform.measurements import read_batches


def test_it_measures_says_what_and_can_be_gone_on_with(foretrace, tmp_path):
    words = ("calibrate", "device", "--out", tmp_path, "--minutes", "0.02", "--family", "fills", "--on", "cpu")
    first, second = foretrace(*words), foretrace(*words)
    assert first.code == second.code == 0
    assert "fills" in first.err and f"measured into {tmp_path}" in first.err.replace("\n", "")
    batches = read_batches(tmp_path / "fills.jsonl.gz")
    assert len(batches) >= 2 and batches[0].measurements


def test_when_stopped_it_says_how_to_go_on(foretrace, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("foretrace.platform.measure.calibrate.calibrate", stopped)
    ran = foretrace("calibrate", "device", "--out", tmp_path, "--on", "cpu")
    assert ran.code == 130 and "stopped; the same command goes on" in ran.err


def test_a_device_that_slows_down_is_said_so(foretrace, tmp_path, monkeypatch):
    slow = [Progress("matrix", references=[100.0, 150.0])]
    monkeypatch.setattr("foretrace.platform.measure.calibrate.calibrate", lambda *_: slow)
    ran = foretrace("calibrate", "device", "--out", tmp_path, "--on", "cpu")
    assert ran.code == 0 and "busy or throttled: one and the same product took up to 50% longer" in ran.err


def test_an_unknown_family_is_answered_with_the_known_ones(foretrace, tmp_path):
    ran = foretrace("calibrate", "device", "--out", tmp_path, "--family", "magic", "--on", "cpu")
    assert ran.code == 2 and "no family is called 'magic'. Known are: matrix" in ran.err


def test_a_device_that_is_not_there_is_said_so(foretrace, tmp_path):
    for name in ("nonsense", "mps:0"):
        ran = foretrace("calibrate", "device", "--out", tmp_path, "--on", name)
        assert ran.code == 2 and name in ran.err and "Traceback" not in ran.err


def test_every_option_is_in_its_page(foretrace, request):
    page = (request.config.rootpath / "docs" / "calibrate.md").read_text()
    options = set(re.findall(r"--[a-z]+", foretrace("calibrate", "device", "--help").out)) - {"--help"}
    assert options and all(option in page for option in options)
